"""One workload under several plans, side by side; and workloads by the names that people type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from notebookos_ext.cluster.policies import make_policy
from notebookos_ext.errors import InvalidRequest
from notebookos_ext.simulation.cost import CostStudy, Prices, study
from notebookos_ext.simulation.csv_form import read_csv
from notebookos_ext.simulation.driver import Driver, Run
from notebookos_ext.simulation.figures import Figures, figures
from notebookos_ext.simulation.plans import Plan
from notebookos_ext.simulation.profiles import built_in, read_profile
from notebookos_ext.simulation.replay import replay
from notebookos_ext.simulation.templates import RemoteStorage, read_store, read_template
from notebookos_ext.simulation.workload import HOUR_S, Workload, bounds
from notebookos_ext.storage.journal import VERSION, JournalHead, JournalWriter


@dataclass(frozen=True)
class Outcome:
    """A run with its figures."""

    run: Run
    figures: Figures

    def cost(self, prices: Prices) -> CostStudy:
        """What it costs. Raises InvalidRequest for prices that make no sense."""
        policy = make_policy(self.run.plan.policy)
        session_h = sum(s.end_s - s.start_s for s in self.run.workload.sessions) / HOUR_S
        return study(
            self.figures,
            session_h,
            prices,
            replica_count=policy.replica_count(self.run.plan.replica_count),
            reserved=policy.keeps_gpus,
        )


def run_plan(
    workload: Workload,
    plan: Plan,
    progress: Callable[[float, int], None] | None = None,
    journal: Path | None = None,
) -> Outcome:
    """Run a workload, and write its journal if asked to.

    Raises InvalidRequest for a plan that cannot be, Defect for a broken rule, StorageError.
    """
    if journal is None:
        run = Driver(workload, plan).run(progress)
    else:
        head = JournalHead(VERSION, plan.policy, plan.hosts_max, plan.scheduler_options(), 0.0)
        with JournalWriter(journal, head) as writer:
            run = Driver(workload, plan, writer.append).run(progress)
    found = figures(
        run.recorder, bounds(workload), workload.horizon_s, unfinished_cells=run.unfinished_cells
    )
    return Outcome(run, found)


def compare(
    workload: Workload,
    plans: Mapping[str, Plan],
    progress: Callable[[str, float, int], None] | None = None,
    journal: Path | None = None,
) -> dict[str, Outcome]:
    """Run one workload under each plan; raises what `run_plan` does."""
    found = {}
    for name, plan in plans.items():
        told = None if progress is None else _named(progress, name)
        found[name] = run_plan(workload, plan, told, journal)
    return found


def read_workload(name: str, *, seed: int = 0) -> Workload:
    """A workload by what a person types: a built-in profile's name, or the path of CSV files, a
    template, a profile or a journal. Raises InvalidRequest.
    """
    if name in built_in():
        return read_profile(name).generate(seed)
    path = Path(name)
    if path.suffix == ".journal":
        return replay(path)[-1].workload(path.stem)
    if path.suffix == ".json":
        return _read_json(path, seed)
    if path.suffix == ".csv" or (
        path.name and path.with_name(f"{path.name}_sessions.csv").is_file()
    ):
        return read_csv(path)
    raise InvalidRequest(
        f"there is no workload {name!r}; use {' or '.join(built_in())}, or the path of "
        "NAME_sessions.csv, of a template or profile in JSON, or of a journal"
    )


def store_of(name: str) -> RemoteStorage | None:
    """The store that a workload names, as templates may. Raises InvalidRequest."""
    path = Path(name)
    is_file = name not in built_in() and path.suffix == ".json"
    return read_store(path) if is_file and _is_template(path) else None


def _read_json(path: Path, seed: int) -> Workload:
    return read_template(path) if _is_template(path) else read_profile(str(path)).generate(seed)


def _is_template(path: Path) -> bool:
    try:
        return b'"sessions"' in path.read_bytes()
    except OSError as problem:
        raise InvalidRequest(f"cannot read {path}: {problem.strerror}") from problem


def _named(progress: Callable[[str, float, int], None], name: str) -> Callable[[float, int], None]:
    def told(at_s: float, events: int) -> None:
        progress(name, at_s, events)

    return told
