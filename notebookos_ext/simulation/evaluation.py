"""Makes docs/evaluation.md: our policies on the workloads that the paper's figures stand on."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from notebookos_ext.cluster.options import Options
from notebookos_ext.cluster.policies import POLICIES
from notebookos_ext.simulation.cost import Prices
from notebookos_ext.simulation.delays import Delays
from notebookos_ext.simulation.distributions import percentile
from notebookos_ext.simulation.experiment import Outcome, compare, read_workload
from notebookos_ext.simulation.faults import CHAOS, COMMON, Faults
from notebookos_ext.simulation.machines import HostShape
from notebookos_ext.simulation.plans import Plan, usual_options
from notebookos_ext.simulation.plots import plot_all
from notebookos_ext.simulation.report import cost_markdown, markdown, percent, table
from notebookos_ext.simulation.studies import Job, Measured, measure_all, spread_table, study_table
from notebookos_ext.simulation.workload import bounds, whole_hosts_gpu_h

CANONICAL = "synthetic_idlt17h5"
WINDOWS = {
    "2 June, sparse": "adobe_window_june02_sparse",
    "21 June, sparse": "adobe_window_june21_sparse",
    "21 June, dense": "adobe_window_june21_dense",
}
ORDER = ("reservation", "batch", "replicated", "pooled")
DEFAULT = "replicated"
LIMITS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
DAYS_HOSTS_MAX = 120
"""The summer has up to 432 reserved GPUs; more hosts than ever needed."""
TEMPLATE = Path(__file__).with_name("evaluation_template.md")


class Scope(msgspec.Struct, frozen=True):
    """How much is evaluated."""

    data: Path | None
    """The folder of the traces; without it the built-in profile stands in for the canonical file,
    and the real windows are left out."""
    plots: Path | None
    """Where plots go; None draws none."""
    seeds: int = 30
    days_seeds: tuple[int, ...] = (1,)
    """Seeds of the 90-day study; none leaves it out."""
    days_policies: tuple[str, ...] = ORDER
    workers: int = 1


Told = Callable[[str], None]


def policies() -> list[str]:
    """All policies, the paper's order first."""
    return [*(p for p in ORDER if p in POLICIES), *(p for p in sorted(POLICIES) if p not in ORDER)]


def evaluate(scope: Scope, told: Told) -> str:
    """The whole page. Raises Defect when a rule is broken, InvalidRequest for unreadable data."""
    filled = {"delays": _delays(), "days_hosts": str(DAYS_HOSTS_MAX)}
    filled |= _canonical(scope, told)
    filled |= _sensitivity(scope, told)
    filled["windows"] = _windows(scope, told)
    filled["seeds"] = _seeds(scope, told)
    filled["days"] = _days(scope, told)
    page = TEMPLATE.read_text(encoding="utf-8")
    for name, text in filled.items():
        page = page.replace(f"{{{name}}}", text.strip())
    return page


def _canonical_name(scope: Scope) -> str:
    return "idlt17h5" if scope.data is None else str(scope.data / CANONICAL)


def _delays() -> str:
    delays, rows = Delays(), []
    for field in msgspec.structs.fields(Delays):
        value = getattr(delays, field.name)
        if isinstance(value, int | float):
            rows.append([f"`{field.name}`", f"{value:,g}"])
    rng = random.Random(0)
    drawn = sorted(1000 * delays.commit_s.draw(rng) for _ in range(20_000))
    shares = [f"{percentile(drawn, share):.0f}" for share in (0.5, 0.9, 0.99)]
    rows.append(["`commit_s`", f"drawn: {' / '.join(shares)} ms at p50 / p90 / p99"])
    sizes = ", ".join(f"{size / 1e6:,.0f}" for size in delays.checkpoint_bytes)
    rows.append(["`checkpoint_bytes`", f"one of {sizes} MB for each session"])
    return table(["delay", "seconds, or bytes per second"], rows)


def _canonical(scope: Scope, told: Told) -> dict[str, str]:
    workload = read_workload(_canonical_name(scope))
    outcomes = compare(workload, {policy: Plan(policy=policy) for policy in policies()})
    told("the canonical workload")
    limits, hosts = bounds(workload), whole_hosts_gpu_h(workload, HostShape().gpus)
    plots = ""
    if scope.plots is not None:
        recorders = {name: outcome.run.recorder for name, outcome in outcomes.items()}
        for path in plot_all(recorders, workload.horizon_s, scope.plots):
            plots += f"![{path.stem}]({scope.plots.name}/{path.name})\n\n"
    return {
        "canonical_about": (
            f"{workload.source}: {len(workload.sessions)} sessions, {workload.cell_count:,} "
            f"cells, 4 to 30 hosts of 8 GPUs. Reservation {limits.reservation_gpu_h:,.1f} GPU-h "
            f"({hosts.reservation_gpu_h:,.1f} in whole hosts), oracle "
            f"{limits.oracle_gpu_h:,.1f} ({hosts.oracle_gpu_h:,.1f} in whole hosts)."
        ),
        "canonical": markdown({name: outcome.figures for name, outcome in outcomes.items()}),
        "canonical_cost": cost_markdown({n: o.cost(Prices()) for n, o in outcomes.items()}),
        "plots": plots,
        "aims": _aims(outcomes),
    }


def _aims(outcomes: Mapping[str, Outcome]) -> str:
    """The measures that we hold ourselves to, on the canonical workload."""
    rows = []
    default = outcomes[DEFAULT].figures
    rows += [
        _aim("cells at once, replicated", default.at_once.share, 0.97),
        _aim("share of the possible saving, replicated", default.saved_share, 0.72),
        _aim_s("wait mean, replicated", default.wait.mean_s, 2),
        _aim_s("wait p99, replicated", default.wait.percentiles_s[-1], 60),
        [
            "cells unfinished, replicated",
            "0",
            f"{default.unfinished_cells}",
            _yes(default.unfinished_cells == 0),
        ],
    ]
    if "pooled" in outcomes:
        pooled = outcomes["pooled"].figures
        rows += [
            _aim("cells at once, pooled", pooled.at_once.share, 0.90),
            _aim("share of the possible saving, pooled", pooled.saved_share, 0.90),
        ]
    return table(["measure", "aim", "measured", "met"], rows)


def _aim(what: str, value: float, least: float) -> list[str]:
    return [what, f"≥ {least:.0%}", percent(value), _yes(value >= least)]


def _aim_s(what: str, value: float, most: float) -> list[str]:
    return [what, f"≤ {most:g} s", f"{value:.2f} s", _yes(value <= most)]


def _yes(met: bool) -> str:
    return "yes" if met else "**no**"


def _windows(scope: Scope, told: Told) -> str:
    if scope.data is None:
        return "Left out: the traces were not at hand when this page was written."
    parts = []
    for title, name in WINDOWS.items():
        path = str(scope.data / name)
        workload = read_workload(path)
        limits = bounds(workload)
        jobs = [Job(policy, path, Plan(policy=policy)) for policy in policies()]
        measured = _measure(jobs, scope, told, title)
        parts.append(
            f"### {title}\n\n{len(workload.sessions)} sessions, {workload.cell_count:,} cells, "
            f"reservation {limits.reservation_gpu_h:,.0f} GPU-h, "
            f"oracle {limits.oracle_gpu_h:,.0f} GPU-h.\n\n" + study_table(measured, "policy")
        )
    return "\n".join(parts)


def _sensitivity(scope: Scope, told: Told) -> dict[str, str]:
    name, base = _canonical_name(scope), Plan(policy=DEFAULT)
    usual = usual_options(base)
    studies = {
        "replicas": [
            Job(f"{n} replica{'s' if n > 1 else ''}", name, _with(base, replica_count=n))
            for n in (1, 2, 3, 5)
        ],
        "ratios": [Job("without a limit", name, base)]
        + [
            Job(f"at most {limit:g}", name, _with(base, options=_limited(usual, limit)))
            for limit in LIMITS
        ],
        "sizes": [
            Job(
                f"{gpus} GPUs a host",
                name,
                _with(base, shape=HostShape(gpus=gpus), hosts_min=least, hosts_max=most),
            )
            for gpus, least, most in ((4, 8, 60), (8, 4, 30), (16, 2, 15))
        ],
        "faults": [
            Job(words, name, _with(base, faults=faults))
            for words, faults in (("none", Faults()), ("common", COMMON), ("chaos", CHAOS))
        ],
    }
    filled = {
        study: study_table(_measure(jobs, scope, told, study), DEFAULT)
        for study, jobs in studies.items()
    }
    filled["faults_about"] = (
        f"*Common*: {COMMON.host_losses_per_day:.3f} host losses and "
        f"{COMMON.replica_crashes_per_day:.1f} crashes of each replica a day. *Chaos*: "
        f"{CHAOS.host_losses_per_day:g} and {CHAOS.replica_crashes_per_day:g}, "
        f"{CHAOS.refusal_share:.0%} of attempts refused, {CHAOS.store_failure_share:.0%} of "
        "transfers failing. A cell whose executor is lost is submitted again by its user."
    )
    return filled


def _limited(options: Options, limit: float) -> Options:
    return msgspec.structs.replace(options, subscription_limit=limit)


def _seeds(scope: Scope, told: Told) -> str:
    jobs = [
        Job(f"{policy} {seed}", "idlt17h5", Plan(policy=policy, seed=seed), seed)
        for policy in policies()
        for seed in range(1, scope.seeds + 1)
    ]
    measured = _measure(jobs, scope, told, "seeds")
    by_policy: dict[str, list[Measured]] = {}
    for job in jobs:
        by_policy.setdefault(job.plan.policy, []).append(measured[job.name])
    return spread_table(by_policy)


def _days(scope: Scope, told: Told) -> str:
    if not scope.days_seeds:
        return "Left out of this run."
    parts = []
    for seed in scope.days_seeds:
        workload = read_workload("ninety_day", seed=seed)
        limits = bounds(workload)
        jobs = [
            Job(policy, "ninety_day", Plan(policy=policy, hosts_max=DAYS_HOSTS_MAX), seed)
            for policy in scope.days_policies
        ]
        measured = _measure(jobs, scope, told, "90 days")
        costs = {name: m.cost for name, m in measured.items() if m.cost is not None}
        parts.append(
            f"Seed {seed}: {len(workload.sessions):,} sessions, "
            f"{workload.cell_count:,} cells, reservation {limits.reservation_gpu_h:,.0f} GPU-h, "
            f"oracle {limits.oracle_gpu_h:,.0f} GPU-h.\n\n"
            + study_table(measured, "policy")
            + "\n"
            + cost_markdown(costs)
        )
    return "\n".join(parts)


def _measure(jobs: list[Job], scope: Scope, told: Told, title: str) -> dict[str, Measured]:
    return measure_all(jobs, workers=scope.workers, told=lambda name: told(f"{title}: {name}"))


def _with(plan: Plan, **changes: object) -> Plan:
    return msgspec.structs.replace(plan, **changes)
