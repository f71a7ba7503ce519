"""What cells took and what a reservation would have held: events in, usage records out.

Two kinds of records, each written again under its key when more of it is known. A cell's says how
long its GPUs were bound and used; a kernel's says for how long it lived while its cells could ask
for so many GPUs, which a reservation would have held all that time (paper section 5.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from notebookos_ext.cluster import actions, events
from notebookos_ext.cluster.model import CellId, KernelId, Outcome

NOTE_S = 60.0
"""Kernels that live are written down this often: what a killed server forgets is no more."""


class CellUsage(msgspec.Struct, frozen=True):
    """One attempt that ran a cell. Times are the clock's; key: kernel and attempt.

    `bound_at` to `released_at` its GPUs were nobody else's, `started_at` to `ended_at` its code
    ran. `released_at` is None until they are given back.
    """

    kernel: KernelId
    attempt: int
    cell: CellId
    gpus: int
    submitted_at: float
    bound_at: float
    started_at: float
    ended_at: float
    released_at: float | None
    outcome: Outcome
    user: str = ""
    """Whose kernel it was; empty where that is not known."""


class KernelUsage(msgspec.Struct, frozen=True):
    """A stretch of a kernel's life in which its cells asked for `gpus`; key: kernel and `since`."""

    kernel: KernelId
    notebook_path: str
    gpus: int
    since: float
    until: float
    user: str = ""
    """Whose kernel it is; empty where that is not known."""


Usage = CellUsage | KernelUsage


class _Running:
    """A cell from its arrival on."""

    def __init__(self, submitted_at: float) -> None:
        self.submitted_at = submitted_at
        self.attempt = 0
        self.gpus = 0
        self.bound_at = submitted_at
        self.started_at: float | None = None


class Meter:
    """Watches one scheduler. `observe` is told each event with the actions that it led to."""

    def __init__(self) -> None:
        self._cells: dict[tuple[KernelId, CellId], _Running] = {}
        self._unreleased: dict[tuple[KernelId, int], CellUsage] = {}
        self._kernels: dict[KernelId, KernelUsage] = {}
        self._noted_at: float | None = None
        self._table: dict[type[Any], Callable[..., Iterable[Usage]]] = {
            events.KernelRequested: self._kernel_begins,
            events.KernelRevived: self._kernel_begins,
            events.KernelStopped: self._kernel_stopped,
            events.KernelSettingsChanged: self._settings_changed,
            events.CellSubmitted: self._cell_submitted,
            events.AttemptStarted: self._attempt_started,
            events.AttemptClosed: self._attempt_closed,
            events.GpusReleased: self._gpus_released,
            events.Ticked: self._ticked,
        }

    def observe(self, event: events.Event, answers: Iterable[actions.Action]) -> list[Usage]:
        """The records that are new or changed, in order."""
        handler = self._table.get(type(event))
        found = [] if handler is None else list(handler(event))
        for action in answers:
            if isinstance(action, actions.StartAttempt):
                cell = self._cells.get((action.kernel, action.cell))
                if cell is not None:
                    cell.attempt, cell.gpus = action.attempt, len(action.devices)
                    cell.bound_at, cell.started_at = event.at, None
            elif isinstance(action, actions.CellAborted | actions.CellRejected):
                self._cells.pop((action.kernel, action.cell), None)
            elif isinstance(action, actions.KernelRejected):
                self._kernels.pop(action.kernel, None)
        return found

    def finish(self, at: float) -> list[Usage]:
        """The scheduler ends, its kernels may not: their lives up to now."""
        return [msgspec.structs.replace(kernel, until=at) for kernel in self._kernels.values()]

    def _kernel_begins(
        self, event: events.KernelRequested | events.KernelRevived
    ) -> Iterable[Usage]:
        spec = event.spec
        self._kernels[spec.kernel] = KernelUsage(
            kernel=spec.kernel,
            notebook_path=spec.notebook_path,
            gpus=spec.gpus_per_cell,
            since=event.at,
            until=event.at,
            user=spec.user,
        )
        return ()

    def _kernel_stopped(self, event: events.KernelStopped) -> Iterable[Usage]:
        for key in [key for key in self._cells if key[0] == event.kernel]:
            del self._cells[key]
        kernel = self._kernels.pop(event.kernel, None)
        if kernel is not None:
            yield msgspec.structs.replace(kernel, until=event.at)

    def _settings_changed(self, event: events.KernelSettingsChanged) -> Iterable[Usage]:
        kernel = self._kernels.get(event.kernel)
        if kernel is None or event.gpus_per_cell in (None, kernel.gpus):
            return
        yield msgspec.structs.replace(kernel, until=event.at)
        self._kernels[event.kernel] = msgspec.structs.replace(
            kernel, gpus=event.gpus_per_cell, since=event.at, until=event.at
        )

    def _cell_submitted(self, event: events.CellSubmitted) -> Iterable[Usage]:
        self._cells[event.cell.kernel, event.cell.cell] = _Running(event.at)
        return ()

    def _attempt_started(self, event: events.AttemptStarted) -> Iterable[Usage]:
        cell = self._cells.get((event.kernel, event.cell))
        if cell is not None and cell.attempt == event.attempt:
            cell.started_at = event.at
        return ()

    def _attempt_closed(self, event: events.AttemptClosed) -> Iterable[Usage]:
        cell = self._cells.get((event.kernel, event.cell))
        if cell is None or cell.attempt != event.attempt or cell.started_at is None:
            return
        del self._cells[event.kernel, event.cell]
        usage = CellUsage(
            kernel=event.kernel,
            attempt=event.attempt,
            cell=event.cell,
            gpus=cell.gpus,
            submitted_at=cell.submitted_at,
            bound_at=cell.bound_at,
            started_at=cell.started_at,
            ended_at=event.at,
            released_at=None if cell.gpus else event.at,
            outcome=event.outcome,
            user=kernel.user if (kernel := self._kernels.get(event.kernel)) else "",
        )
        if cell.gpus:
            self._unreleased[event.kernel, event.attempt] = usage
        yield usage

    def _gpus_released(self, event: events.GpusReleased) -> Iterable[Usage]:
        usage = self._unreleased.pop((event.kernel, event.attempt), None)
        if usage is not None:
            yield msgspec.structs.replace(usage, released_at=event.at)

    def _ticked(self, event: events.Ticked) -> Iterable[Usage]:
        if self._noted_at is not None and event.at - self._noted_at < NOTE_S:
            return
        self._noted_at = event.at
        # GPUs of a lost host are never released; nobody else's were they either.
        for key in [k for k, u in self._unreleased.items() if event.at - u.ended_at > NOTE_S]:
            del self._unreleased[key]
        for kernel in self._kernels.values():
            yield msgspec.structs.replace(kernel, until=event.at)
