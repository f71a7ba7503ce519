"""What users do, before any scheduler has its say: sessions, and the cells each would submit.

A workload is *closed-loop*: a session submits its next cell a think time after the one before has
completed, so a delay pushes everything after it; the original's driver waits for the reply in the
same way. What an ideal scheduler could do with it is arithmetic, and is computed here exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from notebookos_ext.cluster.options import MOST_GPUS, MOST_S
from notebookos_ext.errors import InvalidRequest

HOUR_S = 3600.0
MOST_BYTES = 2.0**60


class PlannedCell(msgspec.Struct, frozen=True):
    """One cell of a session. `submit_s` is the time without any delay, from the workload's start.

    `think_after_s` is how long its user then takes to submit the next one.
    """

    submit_s: float
    duration_s: float
    gpus: int
    think_after_s: float = 0.0


class PlannedSession(msgspec.Struct, frozen=True):
    """One notebook's kernel, from its start to its shutdown, in seconds from the workload's start.

    `gpus` is what the user would reserve for the whole session. `cpus` are cores and
    `memory_bytes` host memory, 0 where the workload does not say.
    """

    session: str
    start_s: float
    end_s: float
    gpus: int
    cells: tuple[PlannedCell, ...]
    cpus: float = 0.0
    memory_bytes: int = 0


class Workload(msgspec.Struct, frozen=True):
    """Sessions in order of their start. `horizon_s` is the length of what is accounted for."""

    name: str
    horizon_s: float
    sessions: tuple[PlannedSession, ...]
    source: str = ""
    """Where it comes from, for the head of a report."""

    @property
    def cell_count(self) -> int:
        """How many cells it has in all."""
        return sum(len(session.cells) for session in self.sessions)

    @property
    def gpus_most(self) -> int:
        """The most GPUs that one cell asks for."""
        return max((cell.gpus for s in self.sessions for cell in s.cells), default=0)


class Bounds(msgspec.Struct, frozen=True):
    """What is known of a workload without scheduling it, in GPU-hours."""

    reservation_gpu_h: float
    """Every session holds its GPUs from its start to its end, and not a moment longer."""
    oracle_gpu_h: float
    """GPUs are provided only while a cell runs: the least that any policy can provide."""

    @property
    def possible_saving_gpu_h(self) -> float:
        """The most that any policy can save against reservation."""
        return self.reservation_gpu_h - self.oracle_gpu_h


def bounds(workload: Workload) -> Bounds:
    """The ideal reservation and the oracle, exactly: sums over sessions and cells.

    A cell counts in full when it outlasts its session, and up to the horizon when it outlasts that.
    """
    reserved = sum(s.gpus * (s.end_s - s.start_s) for s in workload.sessions)
    used = sum(
        cell.gpus * max(0.0, min(cell.duration_s, workload.horizon_s - cell.submit_s))
        for s in workload.sessions
        for cell in s.cells
    )
    return Bounds(reserved / HOUR_S, used / HOUR_S)


def whole_hosts_gpu_h(workload: Workload, gpus_per_host: int, *, least_hosts: int = 0) -> Bounds:
    """The same two when GPUs come in whole hosts and cells could be moved at will, at no cost."""
    reserved = [(s.start_s, s.end_s, s.gpus) for s in workload.sessions]
    used = [
        (cell.submit_s, cell.submit_s + cell.duration_s, cell.gpus)
        for s in workload.sessions
        for cell in s.cells
    ]
    return Bounds(
        _hosts_gpu_h(reserved, gpus_per_host, least_hosts, workload.horizon_s),
        _hosts_gpu_h(used, gpus_per_host, least_hosts, workload.horizon_s),
    )


def _hosts_gpu_h(
    intervals: Iterable[tuple[float, float, int]], gpus_per_host: int, least: int, horizon_s: float
) -> float:
    changes: list[tuple[float, int]] = [(horizon_s, 0)]
    for start, end, gpus in intervals:
        changes += [(start, gpus), (end, -gpus)]
    total, now, before = 0.0, 0, 0.0
    for at, change in sorted(changes):
        upto = min(at, horizon_s)
        total += max(least, -(-now // gpus_per_host)) * gpus_per_host * (upto - before)
        before, now = upto, now + change
    return total / HOUR_S


def close_loop(
    submitted: Sequence[tuple[float, float, int]],
) -> tuple[PlannedCell, ...]:
    """Cells from (submit time, duration, GPUs) in order: what lies between two is think time.

    Where a trace lets a cell be submitted before the one before has ended, the think time is 0.
    """
    cells = []
    for (submit_s, duration_s, gpus), following in zip(
        submitted, [*submitted[1:], None], strict=True
    ):
        think_s = 0.0 if following is None else max(0.0, following[0] - submit_s - duration_s)
        cells.append(PlannedCell(submit_s, duration_s, gpus, think_s))
    return tuple(cells)


def check_workload(workload: Workload) -> Workload:
    """The workload itself. Raises InvalidRequest with the first thing that makes no sense in it."""
    where = f"workload {workload.name}"
    if not 0 < workload.horizon_s <= MOST_S:
        raise InvalidRequest(
            f"{where} lasts {workload.horizon_s:g} s; give it a length above 0 and up to {MOST_S:g}"
        )
    names: set[str] = set()
    for session in workload.sessions:
        if session.session in names:
            raise InvalidRequest(f"{where} has two sessions called {session.session!r}; rename one")
        names.add(session.session)
        if not (0 <= session.start_s <= MOST_S and 0 <= session.end_s <= MOST_S):
            raise InvalidRequest(
                f"{where}: session {session.session} is there from {session.start_s:g} s to "
                f"{session.end_s:g} s; times must be from 0 to {MOST_S:g} s"
            )
        if not (0 <= session.gpus <= MOST_GPUS and session.cpus >= 0 and session.memory_bytes >= 0):
            raise InvalidRequest(
                f"{where}: session {session.session} asks for {session.gpus} GPUs, "
                f"{session.cpus:g} cores and {session.memory_bytes} bytes of memory; none may be "
                f"below 0, and GPUs at most {MOST_GPUS}"
            )
        if session.end_s < session.start_s:
            raise InvalidRequest(
                f"{where}: session {session.session} ends at {session.end_s} s, "
                f"before its start at {session.start_s} s; exchange them"
            )
        _check_cells(where, session)
    return workload


def _check_cells(where: str, session: PlannedSession) -> None:
    for number, cell in enumerate(session.cells):
        if not 0 <= cell.submit_s <= MOST_S:
            raise InvalidRequest(
                f"{where}: cell {number} of session {session.session} is submitted at "
                f"{cell.submit_s:g} s; times must be from 0 to {MOST_S:g} s"
            )
        if not (
            0 < cell.duration_s <= MOST_S
            and 0 <= cell.gpus <= MOST_GPUS
            and 0 <= cell.think_after_s <= MOST_S
        ):
            raise InvalidRequest(
                f"{where}: cell {number} of session {session.session} has "
                f"{cell.duration_s} s on {cell.gpus} GPUs and {cell.think_after_s} s of think "
                "time; durations must be above 0 and the others at least 0"
            )
