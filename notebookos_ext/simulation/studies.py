"""Many runs at once, on several processor cores, and the tables that compare them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import msgspec

from notebookos_ext.errors import NotebookOSError
from notebookos_ext.simulation.cost import CostStudy, Prices
from notebookos_ext.simulation.experiment import read_workload, run_plan
from notebookos_ext.simulation.figures import Figures
from notebookos_ext.simulation.plans import Plan
from notebookos_ext.simulation.report import percent, table


class Job(msgspec.Struct, frozen=True):
    """One run: a workload by its name or path, and how it is run."""

    name: str
    workload: str
    plan: Plan
    workload_seed: int = 0


class Measured(msgspec.Struct, frozen=True):
    """What a job came to, or why it was refused."""

    figures: Figures | None
    cost: CostStudy | None = None
    events: int = 0
    refused: str = ""
    problems: tuple[str, ...] = ()


def measure(job: Job, prices: Prices) -> Measured:
    """Run one job here. Raises Defect when a rule is broken."""
    workload = read_workload(job.workload, seed=job.workload_seed)
    outcome = run_plan(workload, job.plan)
    rejected = outcome.figures.counts.get("kernels rejected", 0)
    if rejected == len(workload.sessions):
        return Measured(None, refused="every kernel was refused")
    return Measured(
        outcome.figures,
        outcome.cost(prices),
        outcome.run.events,
        problems=tuple(outcome.run.problems),
    )


def measure_all(
    jobs: Sequence[Job],
    *,
    workers: int,
    prices: Prices | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> dict[str, Measured]:
    """Run all jobs; `told` hears the name of each that is done. Names must differ."""
    prices = prices or Prices()
    found: dict[str, Measured] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=workers, mp_context=context) as pool:
        futures = {pool.submit(_measure_or_refuse, job, prices): job.name for job in jobs}
        for future in as_completed(futures):
            found[futures[future]] = future.result()
            told(futures[future])
    return {job.name: found[job.name] for job in jobs}


def _measure_or_refuse(job: Job, prices: Prices) -> Measured:
    try:
        return measure(job, prices)
    except NotebookOSError as error:
        return Measured(None, refused=error.message)


# ---- tables

Column = tuple[str, Callable[[Figures], str]]

COLUMNS: tuple[Column, ...] = (
    ("provisioned GPU-h", lambda f: f"{f.provisioned_gpu_h:,.0f}"),
    ("saved GPU-h", lambda f: f"{f.saved_gpu_h:,.0f}"),
    ("of the possible", lambda f: percent(f.saved_share)),
    ("at once", lambda f: percent(f.at_once.share)),
    ("… cells of 8 GPUs", lambda f: _of_gpus(f, 8)),
    ("wait mean, s", lambda f: f"{f.wait.mean_s:.2f}"),
    ("wait p99, s", lambda f: f"{f.wait.percentiles_s[-1]:.1f}"),
    ("migrations", lambda f: f"{f.counts.get('migrations', 0):,}"),
    ("same executor", lambda f: percent(f.same_executor_share)),
    ("unfinished", lambda f: f"{f.unfinished_cells:,}"),
)


def _of_gpus(f: Figures, gpus: int) -> str:
    return percent(f.at_once_by_gpus[gpus].share) if gpus in f.at_once_by_gpus else "-"


def study_table(measured: Mapping[str, Measured], first: str) -> str:
    """One line per run; what was refused says so."""
    rows = []
    for name, result in measured.items():
        if result.figures is None:
            rows.append([name, f"refused: {result.refused}", *[""] * (len(COLUMNS) - 1)])
        else:
            rows.append([name, *(of(result.figures) for _, of in COLUMNS)])
    return table([first, *(title for title, _ in COLUMNS)], rows)


def spread_table(measured: Mapping[str, Sequence[Measured]]) -> str:
    """One line per policy over many seeds: mean, and 5 % to 95 %, of the figures that matter."""
    rows = []
    for name, results in measured.items():
        figures = [result.figures for result in results if result.figures is not None]
        rows.append(
            [
                name,
                _spread([f.saved_share for f in figures], percent),
                _spread([f.at_once.share for f in figures], percent),
                _spread([f.wait.mean_s for f in figures], "{:.2f}".format),
                _spread([f.wait.percentiles_s[-1] for f in figures], "{:.1f}".format),
                _spread([f.provisioned_gpu_h for f in figures], "{:,.0f}".format),
                str(sum(f.unfinished_cells for f in figures)),
            ]
        )
    head = ["policy", "share of the possible saving", "at once", "wait mean, s", "wait p99, s"]
    return table([*head, "provisioned GPU-h", "unfinished"], rows)


def _spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    ordered = sorted(values)
    last = len(ordered) - 1
    low, high = ordered[round(0.05 * last)], ordered[round(0.95 * last)]
    return f"{form(sum(ordered) / len(ordered))} ({form(low)} … {form(high)})"
