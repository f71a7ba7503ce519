"""Carries out the scheduler's actions; each has one place that knows how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from notebookos_ext.cluster import actions
from notebookos_ext.cluster.model import CellId, KernelId
from notebookos_ext.live.attempts import Attempts
from notebookos_ext.live.kernel_records import CellState
from notebookos_ext.live.lifecycle import Lifecycle
from notebookos_ext.live.moves import Moves
from notebookos_ext.live.parts import Part, Shared
from notebookos_ext.live.prewarming import Prewarming
from notebookos_ext.live.stored_kernels import StoredKernels
from notebookos_ext.live.unprotected import Unprotected


class Performer(Part):
    """`perform(action)` for every action there is; never waits, posts what comes of it."""

    def __init__(
        self,
        shared: Shared,
        *,
        attempts: Attempts,
        lifecycle: Lifecycle,
        moves: Moves,
        prewarming: Prewarming,
        stored: StoredKernels,
        unprotected: Unprotected,
    ) -> None:
        super().__init__(shared)
        self._table: dict[type[Any], Callable[[Any], None]] = {
            actions.CallElection: attempts.call_election,
            actions.StartAttempt: attempts.start,
            actions.CloseAttempt: attempts.close,
            actions.ReleaseGpus: attempts.release,
            actions.StartReplica: lifecycle.start_replica,
            actions.StopReplica: lifecycle.stop_replica,
            actions.StartEpoch: lifecycle.start_epoch,
            actions.CloseKernel: lifecycle.close_kernel,
            actions.ChangeMembers: moves.change_members,
            actions.CloseMember: moves.close_member,
            actions.MajorityLost: self._majority_lost,
            actions.GoOnUnprotected: unprotected.go_on,
            actions.MigrationEnded: moves.ended,
            actions.ReleaseHost: moves.release_host,
            actions.StartPrewarmed: prewarming.start,
            actions.StopPrewarmed: prewarming.stop,
            actions.StoreKernel: stored.store_kernel,
            actions.RestoreKernel: stored.restore_kernel,
            actions.RequestHosts: self._request_hosts,
            actions.KernelStarted: self._kernel_started,
            actions.KernelRejected: self._kernel_rejected,
            actions.CellWaiting: self._cell_waiting,
            actions.CellRejected: self._cell_rejected,
            actions.CellAborted: self._cell_aborted,
        }

    def perform(self, action: actions.Action) -> None:
        """Begin what the action asks for."""
        self._table[type(action)](action)

    def _request_hosts(self, action: actions.RequestHosts) -> None:
        self._chains.spawn(self._fleet.request_hosts(action.count))

    def _majority_lost(self, action: actions.MajorityLost) -> None:
        self._outlet.warn(action.reason, action.kernel)
        self._outlet.changed(action.kernel, "kernel")

    def _kernel_started(self, action: actions.KernelStarted) -> None:
        self._outlet.changed(action.kernel, "kernel")

    def _kernel_rejected(self, action: actions.KernelRejected) -> None:
        record = self._records.get(action.kernel)
        if record is not None:
            record.rejected = action.reason
            record.closed = True

    def _cell_waiting(self, action: actions.CellWaiting) -> None:
        record = self._records.get(action.kernel)
        cell = record.cell(action.cell) if record is not None else None
        if cell is not None:
            cell.estimate_ms = action.estimate_ms
        self._router.cell_waits(action.kernel, action.cell)
        self._outlet.changed(action.kernel, "waiting")

    def _cell_rejected(self, action: actions.CellRejected) -> None:
        self._end(action.kernel, action.cell, "rejected")
        self._router.fail_cell(
            action.kernel,
            action.cell,
            ename="Infeasible",
            evalue=action.reason,
            hint=action.hint,
        )

    def _cell_aborted(self, action: actions.CellAborted) -> None:
        self._end(action.kernel, action.cell, "aborted")
        self._router.abort_cell(action.kernel, action.cell, action.reason)

    def _end(self, kernel: KernelId, cell: CellId, state: CellState) -> None:
        record = self._records.get(kernel)
        found = record.cell(cell) if record else None
        if found is not None:
            found.end(state, self._clock.now())
        self._outlet.changed(kernel, "cell")
