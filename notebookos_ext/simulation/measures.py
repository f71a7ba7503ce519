"""Takes the figures of the paper from scheduler events and actions, simulated or recorded.

It knows nothing of policies and looks into no state: the same recorder measures a simulation and
the journal of a live server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from notebookos_ext.cluster import actions as a
from notebookos_ext.cluster import events as e
from notebookos_ext.cluster.model import CellId, HostId, KernelId, Outcome, ReplicaId

AT_ONCE_S = 1.0
"""A cell starts at once when its GPUs are bound and its executor runs it within this time of its
submission, election, staging and migration included."""


class Steps:
    """A quantity that jumps: its integral, its largest value, and every jump."""

    def __init__(self) -> None:
        self.times_s: list[float] = [0.0]
        self.values: list[float] = [0.0]
        self._total = 0.0

    @property
    def now(self) -> float:
        """The value since the last jump."""
        return self.values[-1]

    def add(self, at_s: float, change: float) -> None:
        """It jumps by `change`."""
        self.set(at_s, self.values[-1] + change)

    def set(self, at_s: float, value: float) -> None:
        """It jumps to `value`."""
        if value == self.values[-1]:
            return
        last = self.times_s[-1]
        self._total += self.values[-1] * (at_s - last)
        if at_s == last:
            self.values[-1] = value
        else:
            self.times_s.append(at_s)
            self.values.append(value)

    def integral(self, upto_s: float) -> float:
        """Its integral from 0 to that time."""
        if upto_s >= self.times_s[-1]:
            return self._total + self.values[-1] * (upto_s - self.times_s[-1])
        total = 0.0
        for at_s, after_s, value in zip(
            self.times_s, [*self.times_s[1:], upto_s], self.values, strict=True
        ):
            if at_s >= upto_s:
                break
            total += value * (min(after_s, upto_s) - at_s)
        return total


@dataclass(slots=True)
class CellRecord:
    """What became of one cell."""

    kernel: KernelId
    cell: CellId
    gpus: int
    submitted_s: float
    started_s: float | None = None
    """When its code began; of the last attempt that did."""
    ended_s: float | None = None
    end: str = ""
    """`done`, `failed`, `lost`, `rejected` or `aborted`; empty while it has not ended."""
    replica: ReplicaId | None = None
    same_executor: bool | None = None
    """Whether it ran where the kernel's cell before it did; None for the first."""

    @property
    def wait_s(self) -> float | None:
        """From its submission to the start of its code."""
        return None if self.started_s is None else self.started_s - self.submitted_s

    @property
    def completion_s(self) -> float | None:
        """From its submission to its end (the paper's task completion time)."""
        return None if self.ended_s is None else self.ended_s - self.submitted_s


@dataclass(slots=True)
class _Bound:
    """An attempt that holds GPUs."""

    replica: ReplicaId
    host: HostId
    gpus: int


@dataclass
class Recorder:
    """Watches events and the actions that they led to."""

    cells: list[CellRecord] = field(default_factory=list)
    provisioned: Steps = field(default_factory=Steps)
    """GPUs of hosts that exist, from their request on where it is known."""
    bound: Steps = field(default_factory=Steps)
    """GPUs that attempts hold, from the choice of the executor until they are given back."""
    running: Steps = field(default_factory=Steps)
    """GPUs on which the code of a cell runs."""
    subscribed: Steps = field(default_factory=Steps)
    """GPUs that the sessions of all kernels ask for."""
    counts: Counter[str] = field(default_factory=Counter)
    _open: dict[tuple[KernelId, CellId], CellRecord] = field(default_factory=dict)
    _bound: dict[KernelId, dict[int, _Bound]] = field(default_factory=dict)
    _runs: dict[KernelId, tuple[int, CellRecord]] = field(default_factory=dict)
    _last: dict[KernelId, ReplicaId] = field(default_factory=dict)
    _chosen: dict[KernelId, ReplicaId] = field(default_factory=dict)
    _asks: dict[KernelId, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._events: dict[type, Callable[..., None]] = {
            e.KernelRequested: self._kernel_requested,
            e.KernelStopped: self._kernel_stopped,
            e.KernelSettingsChanged: self._settings_changed,
            e.CellSubmitted: self._cell_submitted,
            e.AttemptStarted: self._attempt_started,
            e.AttemptClosed: self._attempt_closed,
            e.AttemptRefused: self._attempt_refused,
            e.GpusReleased: self._gpus_released,
            e.HostLost: self._host_lost,
            e.ReplicaLost: self._replica_lost,
        }
        self._actions: dict[type, Callable[..., None]] = {
            a.StartAttempt: self._start_attempt,
            a.CloseAttempt: self._close_attempt,
            a.CellRejected: self._cell_rejected,
            a.CellAborted: self._cell_aborted,
            a.KernelRejected: self._kernel_rejected,
            a.StartReplica: self._start_replica,
        }

    def observe(self, event: e.Event, actions: Sequence[a.Action]) -> None:
        """One event, and what the scheduler answered."""
        self.counts["events"] += 1
        handler = self._events.get(type(event))
        if handler is not None:
            handler(event)
        for action in actions:
            answer = self._actions.get(type(action))
            if answer is not None:
                answer(action, event.at)

    @property
    def open_cells(self) -> list[CellRecord]:
        """Cells that have not ended."""
        return list(self._open.values())

    # ---- events

    def _kernel_requested(self, event: e.KernelRequested) -> None:
        self._asks[event.spec.kernel] = event.spec.gpus_per_cell
        self.subscribed.add(event.at, event.spec.gpus_per_cell)

    def _settings_changed(self, event: e.KernelSettingsChanged) -> None:
        asked = self._asks.get(event.kernel)
        if asked is not None and event.gpus_per_cell is not None:
            self._asks[event.kernel] = event.gpus_per_cell
            self.subscribed.add(event.at, event.gpus_per_cell - asked)

    def _kernel_stopped(self, event: e.KernelStopped) -> None:
        self._forget(event.kernel, event.at)

    def _cell_submitted(self, event: e.CellSubmitted) -> None:
        cell = event.cell
        record = CellRecord(cell.kernel, cell.cell, cell.gpus, event.at)
        self._open[cell.kernel, cell.cell] = record
        self.cells.append(record)

    def _attempt_started(self, event: e.AttemptStarted) -> None:
        record = self._open.get((event.kernel, event.cell))
        if record is None:
            return
        record.started_s = event.at
        record.replica = self._chosen.get(event.kernel)
        last = self._last.get(event.kernel)
        record.same_executor = None if last is None else last == record.replica
        if record.replica is not None:
            self._last[event.kernel] = record.replica
        self._runs[event.kernel] = (event.attempt, record)
        self.running.add(event.at, record.gpus)

    def _attempt_closed(self, event: e.AttemptClosed) -> None:
        self._stop_running(event.kernel, event.attempt, event.at)
        record = self._open.get((event.kernel, event.cell))
        if record is not None and event.outcome is not Outcome.LOST:
            self._end(record, event.at, str(event.outcome))

    def _attempt_refused(self, event: e.AttemptRefused) -> None:
        self.counts["refused"] += 1
        self._give_back(event.kernel, event.attempt, event.at)

    def _gpus_released(self, event: e.GpusReleased) -> None:
        self._give_back(event.kernel, event.attempt, event.at)

    def _host_lost(self, event: e.HostLost) -> None:
        self.counts["hosts lost"] += 1
        for kernel, attempts in self._bound.items():
            for attempt in [n for n, bound in attempts.items() if bound.host == event.host]:
                self._give_back(kernel, attempt, event.at)

    def _replica_lost(self, _event: e.ReplicaLost) -> None:
        self.counts["replicas lost"] += 1

    # ---- actions

    def _start_attempt(self, action: a.StartAttempt, at: float) -> None:
        self._chosen[action.kernel] = action.replica
        if action.devices:
            attempts = self._bound.setdefault(action.kernel, {})
            # Under a policy that reserves, a replica keeps its GPUs between cells.
            for attempt in [n for n, held in attempts.items() if held.replica == action.replica]:
                self._give_back(action.kernel, attempt, at)
            gpus = len(action.devices)
            attempts[action.attempt] = _Bound(action.replica, action.host, gpus)
            self.bound.add(at, gpus)

    def _close_attempt(self, action: a.CloseAttempt, at: float) -> None:
        self._stop_running(action.kernel, action.attempt, at)
        record = self._open.get((action.kernel, action.cell))
        if action.ends_cell and record is not None:
            self._end(record, at, "lost")

    def _cell_rejected(self, action: a.CellRejected, at: float) -> None:
        record = self._open.get((action.kernel, action.cell))
        if record is not None:
            self._end(record, at, "rejected")

    def _cell_aborted(self, action: a.CellAborted, at: float) -> None:
        record = self._open.get((action.kernel, action.cell))
        if record is not None:
            self._end(record, at, "aborted")

    def _kernel_rejected(self, action: a.KernelRejected, at: float) -> None:
        self.counts["kernels rejected"] += 1
        self._forget(action.kernel, at)

    def _start_replica(self, _action: a.StartReplica, _at: float) -> None:
        self.counts["replica starts"] += 1

    # ---- moves

    def _end(self, record: CellRecord, at: float, how: str) -> None:
        record.ended_s, record.end = at, how
        self.counts[how] += 1
        del self._open[record.kernel, record.cell]

    def _stop_running(self, kernel: KernelId, attempt: int, at: float) -> None:
        run = self._runs.get(kernel)
        if run is not None and run[0] == attempt:
            del self._runs[kernel]
            self.running.add(at, -run[1].gpus)

    def _give_back(self, kernel: KernelId, attempt: int, at: float) -> None:
        bound = self._bound.get(kernel, {}).pop(attempt, None)
        if bound is not None:
            self.bound.add(at, -bound.gpus)

    def _forget(self, kernel: KernelId, at: float) -> None:
        self.subscribed.add(at, -self._asks.pop(kernel, 0))
        for attempt in list(self._bound.get(kernel, {})):
            self._give_back(kernel, attempt, at)
        self._bound.pop(kernel, None)
        self._last.pop(kernel, None)
        self._chosen.pop(kernel, None)
        run = self._runs.get(kernel)
        if run is not None:
            self._stop_running(kernel, run[0], at)
