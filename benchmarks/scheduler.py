"""Measure the scheduler at 12,000 GPUs and 4,000 kernels, and how fast the simulator runs.

    python -m benchmarks.scheduler [--hosts 1500] [--kernels 4000] [--hours 1]

Every event of a simulated day is timed while the scheduler decides on it; the simulator's speed is
taken from runs without that timing. Times under other load mean little.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import msgspec

from notebookos_ext.cluster.actions import Action
from notebookos_ext.cluster.events import Event
from notebookos_ext.cluster.policies import POLICIES
from notebookos_ext.simulation.distributions import percentile
from notebookos_ext.simulation.driver import Driver
from notebookos_ext.simulation.plans import Plan
from notebookos_ext.simulation.profiles import Growing, read_profile
from notebookos_ext.simulation.workload import Workload

GPUS_PER_HOST = 8


def large_workload(kernels: int, hours: float) -> Workload:
    """So many sessions of the 17.5-hour profile, all there from the start."""
    profile = msgspec.structs.replace(
        read_profile("idlt17h5"),
        name="large",
        horizon_s=hours * 3600,
        arrivals=Growing(initial=kernels, target=kernels, lifetime_mean_s=1e9),
    )
    return profile.generate(1)


def time_decisions(workload: Workload, plan: Plan) -> None:
    """Print how long `Scheduler.handle` takes, by kind of event."""
    driver = Driver(workload, plan)
    took_us: dict[str, list[float]] = defaultdict(list)
    handle = driver.scheduler.handle

    def timed(event: Event) -> list[Action]:
        begun = time.perf_counter()
        actions = handle(event)
        took_us[type(event).__name__].append((time.perf_counter() - begun) * 1e6)
        return actions

    driver.scheduler.handle = timed  # type: ignore[method-assign]  # only to time it
    driver.run()
    every = sorted(us for kind in took_us.values() for us in kind)
    print(f"{plan.policy}: {len(every):,} events, decision in µs")
    for name, values in [*sorted(took_us.items()), ("all", every)]:
        ordered = sorted(values)
        shares = [percentile(ordered, share) for share in (0.5, 0.99, 0.999)]
        print(
            f"  {name:24} {len(ordered):>8,}: p50 {shares[0]:7.0f}, p99 {shares[1]:7.0f}, "
            f"p99.9 {shares[2]:7.0f}, max {ordered[-1]:8.0f}"
        )


def time_run(name: str, workload: Workload, plan: Plan) -> None:
    """Print how long a whole simulation takes."""
    begun = time.perf_counter()
    run = Driver(workload, plan).run()
    took_s = time.perf_counter() - begun
    print(f"{name}: {run.events:,} events in {took_s:.1f} s, {run.events / took_s:,.0f} a second")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=1500)
    parser.add_argument("--kernels", type=int, default=4000)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--policies", default="replicated", help=", ".join(sorted(POLICIES)))
    parser.add_argument("--days", action="store_true", help="the 90-day study too, in minutes")
    arguments = parser.parse_args()
    large = large_workload(arguments.kernels, arguments.hours)
    print(
        f"{arguments.hosts:,} hosts of {GPUS_PER_HOST} GPUs, {arguments.kernels:,} kernels, "
        f"{large.cell_count:,} cells in {arguments.hours:g} h"
    )
    for policy in arguments.policies.split(","):
        fixed = Plan(policy=policy, hosts_min=arguments.hosts, hosts_max=arguments.hosts)
        time_decisions(large, fixed)
        time_run("  the simulator on it", large, fixed)
        time_run("  17.5 h", read_profile("idlt17h5").generate(1), Plan(policy=policy))
        if arguments.days:
            days = read_profile("ninety_day").generate(1)
            time_run("  90 days", days, Plan(policy=policy, hosts_max=120))


if __name__ == "__main__":
    main()
