"""Short random lives of a cluster with far more faults than any machine room has, one per seed.

For finding mistakes: hosts and cells are few, faults are frequent, and the scheduler's whole state
is checked after every event. A seed repeats its life on every machine.
"""

from __future__ import annotations

import random

import msgspec

from notebookos_ext.cluster.options import WithoutMajority
from notebookos_ext.cluster.policies import POLICIES
from notebookos_ext.errors import Defect
from notebookos_ext.simulation.delays import Delays
from notebookos_ext.simulation.driver import Driver, Run
from notebookos_ext.simulation.faults import CHAOS
from notebookos_ext.simulation.machines import HostShape
from notebookos_ext.simulation.plans import Plan, usual_options
from notebookos_ext.simulation.workload import PlannedSession, Workload, close_loop


def small_workload(seed: int) -> Workload:
    """A few sessions that want the same few GPUs within minutes."""
    rng = random.Random(f"{seed}/soak")
    sessions = []
    for number in range(rng.randint(2, 6)):
        start_s = rng.uniform(0, 120)
        at_s, submitted = start_s + rng.uniform(0, 60), []
        for _ in range(rng.randint(1, 5)):
            duration_s = rng.expovariate(1 / 40) + 0.1
            submitted.append((at_s, duration_s, rng.choice((0, 1, 1, 2, 4))))
            at_s += duration_s + rng.choice((0.0, 0.0, 5.0, 60.0))
        gpus = max(gpus for _, _, gpus in submitted)
        end_s = at_s + rng.uniform(-60, 60)
        cells = close_loop(submitted)
        sessions.append(PlannedSession(str(number), start_s, max(start_s, end_s), gpus, cells))
    horizon_s = max(session.end_s for session in sessions) + 1
    return Workload(f"soak-{seed}", horizon_s, tuple(sessions), f"soak seed {seed}")


def soak(seed: int, policy: str | None = None) -> Run:
    """Live one life. Raises Defect when a rule is broken.

    Which policy, how many hosts and replicas, and what the scheduler may do belongs to the seed;
    the policy can be given.
    """
    plan = _plan(seed, policy)
    try:
        return Driver(small_workload(seed), plan).run()
    except Defect as defect:
        raise Defect(f"{defect.message} — repeat it with: {command(seed, policy)}") from defect


def _plan(seed: int, policy: str | None) -> Plan:
    rng = random.Random(f"{seed}/plan")
    hosts = rng.randint(3, 6)
    plan = Plan(
        policy=policy or rng.choice(sorted(POLICIES)),
        replica_count=rng.choice((1, 3, 3)),
        shape=HostShape(gpus=4),
        delays=Delays(host_boot_s=20.0),
        hosts_min=hosts - rng.randint(0, 2),
        hosts_max=hosts + rng.randint(0, 2),
        faults=CHAOS,
        seed=seed,
        check_all=True,
        tick_s=20.0,
        users=rng.choice((0, 2)),
    )
    usual = usual_options(plan)
    scaler = None
    if usual.autoscaler is not None and rng.random() < 0.8:
        # Hosts come and go within the minutes that a life has.
        scaler = msgspec.structs.replace(
            usual.autoscaler,
            least_hosts=min(plan.hosts_min, plan.replica_count),
            interval_s=5.0,
            keep_s=rng.choice((20.0, 60.0)),
            active_s=60.0,
        )
    options = msgspec.structs.replace(
        usual,
        autoscaler=scaler,
        idle_s=rng.choice((0.0, 0.0, 30.0)),
        subscription_limit=rng.choice((0.0, 0.0, 1.0, 2.0)),
        quota=rng.choice((0, 0, 4)),
        hints=rng.random() < 0.75,
        without_majority=rng.choice(list(WithoutMajority)),
        majority_grace_s=10.0,
    )
    return msgspec.structs.replace(plan, options=options)


def command(seed: int, policy: str | None = None) -> str:
    """What repeats one life."""
    chosen = f" --policy {policy}" if policy else ""
    return f"python -m notebookos_ext.simulation soak {seed}{chosen}"
