"""Turns what the router and the agents say into scheduler events, and keeps the records true.

Lives on the controller's thread. Late words about an older process of a replica, or about a kernel
that is closed, end here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from notebookos_ext.cluster import events
from notebookos_ext.cluster.gpu_rule import needed_gpus
from notebookos_ext.cluster.messages import control as messages
from notebookos_ext.cluster.model import Cell, HostId, HostSpec, KernelId, ReplicaId
from notebookos_ext.cluster.routing import (
    Activity,
    CellArrived,
    CellReplied,
    Described,
    InterruptAsked,
    ReplicaNeeded,
    RouterEvent,
    ShutdownAsked,
)
from notebookos_ext.errors import InvalidRequest
from notebookos_ext.live.attempts import Attempts
from notebookos_ext.live.kernel_records import (
    CellRecord,
    CellState,
    KernelRecord,
    ReplicaProcess,
    first_line,
)
from notebookos_ext.live.parts import Part, Shared
from notebookos_ext.live.ports import Lives
from notebookos_ext.live.prewarming import Prewarming

ENDED: dict[str, CellState] = {"ok": "done", "error": "failed", "aborted": "aborted"}

log = logging.getLogger(__name__)


class Translation(Part):
    """One method per thing that can be said."""

    def __init__(
        self,
        shared: Shared,
        *,
        attempts: Attempts,
        lives: Lives,
        prewarming: Prewarming,
    ) -> None:
        super().__init__(shared)
        self._attempts = attempts
        self._lives = lives
        self._table: dict[type[Any], Callable[..., None]] = {
            CellArrived: self._cell_arrived,
            CellReplied: self._cell_replied,
            InterruptAsked: lambda said: self._lives.interrupt(said.kernel),
            ShutdownAsked: lambda said: self._lives.shutdown_asked(said.kernel, said.restart),
            Activity: lambda said: self._lives.used(said.kernel),
            ReplicaNeeded: lambda said: self._lives.needed(said.kernel),
            Described: lambda said: self._lives.described(said.kernel, said.content),
        }
        self._notices: dict[type[Any], Callable[..., None]] = {
            messages.ReplicaReady: self._replica_ready,
            messages.ReplicaExited: self._replica_exited,
            messages.PrewarmedReady: prewarming.ready,
            messages.PrewarmedExited: prewarming.exited,
            messages.BallotCommitted: self._ballot,
            messages.AttemptEnded: self._attempt_ended,
            messages.NamespaceReport: self._namespace,
            messages.ReplicaProgress: self._progress,
            messages.AgentWarning: self._agent_warning,
            messages.StoreReport: self._store_report,
        }

    # ---- the router -------------------------------------------------------------------------

    def from_router(self, said: RouterEvent) -> None:
        """A router event, in the order of its thread."""
        handler = self._table.get(type(said))
        # Prompts are the router's own business until something here needs them.
        if handler is not None:
            handler(said)

    def _cell_arrived(self, said: CellArrived) -> None:
        record = self._records.get(said.kernel)
        if record is None or record.closed:
            self._router.abort_cell(said.kernel, said.cell, "the kernel is shut down")
            return
        try:
            need = needed_gpus(said.code, said.metadata, record.gpus_per_cell, record.gpu_names)
        except InvalidRequest as error:
            self._router.fail_cell(
                said.kernel,
                said.cell,
                ename=type(error).__name__,
                evalue=error.message,
                hint=error.hint,
            )
            return
        now = self._clock.now()
        place = said.metadata.get("cellId")
        record.add_cell(
            CellRecord(
                said.cell,
                first_line(said.code),
                need.gpus,
                need.reason,
                now,
                # A client may write anything there.
                notebook_cell=place if isinstance(place, str) else "",
            )
        )
        self._outlet.post(
            events.CellSubmitted(
                cell=Cell(
                    kernel=said.kernel,
                    cell=said.cell,
                    gpus=need.gpus,
                    gpus_reason=need.reason,
                    replica_number=need.replica_number,
                    near=said.near,
                ),
                at=now,
            )
        )

    def _cell_replied(self, said: CellReplied) -> None:
        record = self._records.get(said.kernel)
        cell = record.cell(said.cell) if record else None
        if cell is not None and cell.ended is None:
            cell.end(ENDED.get(said.status, "failed"), self._clock.now())
            self._outlet.changed(said.kernel, "cell")

    # ---- the agents -------------------------------------------------------------------------

    def from_agent(self, host: HostId, notice: messages.AgentNotice) -> None:
        """A notice, in the order of its connection."""
        self._notices[type(notice)](host, notice)

    def _of(self, kernel: KernelId, replica: ReplicaId, launch: int) -> KernelRecord | None:
        record = self._records.get(kernel)
        if record is None or record.closed or record.launches.get(replica) != launch:
            return None
        return record

    def _replica_ready(self, host: HostId, notice: messages.ReplicaReady) -> None:
        record = self._of(notice.kernel, notice.replica, notice.launch)
        spec = self._fleet.spec(host)
        if record is None or spec is None:
            return
        record.answered = True
        record.restoration = None
        record.processes[notice.replica] = ReplicaProcess(host, notice.pid)
        self._router.replica_ready(notice.kernel, notice.replica, notice.endpoints)
        if record.executor is None:
            self._attempts.lead(record, notice.replica)
        self._outlet.post(
            events.ReplicaStarted(
                replica=notice.replica,
                host=host,
                incarnation=spec.incarnation,
                pid=notice.pid,
                at=self._clock.now(),
            )
        )
        self._outlet.changed(notice.kernel, "replica")

    def _replica_exited(self, host: HostId, notice: messages.ReplicaExited) -> None:
        record = self._of(notice.kernel, notice.replica, notice.launch)
        spec = self._fleet.spec(host)
        if record is None or spec is None:
            return
        if notice.requested:
            self._outlet.changed(notice.kernel, "replica")
            return
        log.warning("replica %s is lost: %s", notice.replica, notice.reason)
        self.replica_gone(record, notice.replica, notice.reason)
        self._lives.launch_failed(record.kernel, notice.reason)
        self._outlet.post(
            events.ReplicaLost(
                replica=notice.replica,
                host=host,
                incarnation=spec.incarnation,
                reason=notice.reason,
                at=self._clock.now(),
            )
        )
        self._outlet.changed(notice.kernel, "replica")

    def replica_gone(self, record: KernelRecord, replica: ReplicaId, reason: str) -> None:
        """Its process is gone; requests that are no cells go to the one that lags least."""
        record.processes.pop(replica, None)
        self._router.replica_gone(record.kernel, replica)
        self._attempts.reply_lost(record, replica, reason)
        if record.executor == replica:
            others = sorted(record.processes.items(), key=lambda item: item[1].lag)
            self._attempts.lead(record, others[0][0] if others else None)

    def _ballot(self, _host: HostId, notice: messages.BallotCommitted) -> None:
        # Each host tells it; the scheduler counts the first one.
        self._outlet.post(
            events.BallotCast(
                kernel=notice.kernel,
                cell=notice.cell,
                attempt=notice.attempt,
                replica=notice.replica,
                lead=notice.lead,
                devices=notice.devices,
                reason=notice.reason,
                at=self._clock.now(),
            )
        )

    def _attempt_ended(self, _host: HostId, notice: messages.AttemptEnded) -> None:
        record = self._records.get(notice.kernel)
        if record is None:
            return
        attempt = record.attempts.pop(notice.attempt, None)
        if attempt is not None:
            attempt.outcome = notice.outcome
        cell = record.cell(notice.cell)
        if cell is not None:
            cell.outcome = notice.outcome
        self._outlet.post(
            events.AttemptClosed(
                kernel=notice.kernel,
                cell=notice.cell,
                attempt=notice.attempt,
                outcome=notice.outcome,
                at=self._clock.now(),
            )
        )

    def _namespace(self, _host: HostId, notice: messages.NamespaceReport) -> None:
        record = self._records.get(notice.kernel)
        process = record.processes.get(notice.replica) if record else None
        if record is None or process is None:
            return
        record.gpu_names = frozenset(notice.gpu_names)
        now = self._clock.now()
        if process.held != notice.held:
            process.held = notice.held
            self._outlet.post(
                events.HoldChanged(
                    kernel=notice.kernel, replica=notice.replica, names=notice.held, at=now
                )
            )
            self._outlet.changed(notice.kernel, "namespace")
        if process.pending != notice.pending:
            process.pending = notice.pending
            self._outlet.post(
                events.DurabilityChanged(
                    kernel=notice.kernel, replica=notice.replica, names=notice.pending, at=now
                )
            )
            self._outlet.changed(notice.kernel, "namespace")

    def _progress(self, _host: HostId, notice: messages.ReplicaProgress) -> None:
        record = self._records.get(notice.kernel)
        process = record.processes.get(notice.replica) if record else None
        back = record.restoration if record else None
        if back is not None and notice.fetched_bytes > back.fetched_bytes:
            back.fetched_bytes = notice.fetched_bytes
            self._outlet.changed(notice.kernel, "kernel")
        if process is not None:
            process.applied = notice.applied
            process.committed = notice.committed

    def _agent_warning(self, host: HostId, notice: messages.AgentWarning) -> None:
        self._outlet.warn(f"{host}: {notice.message}", notice.kernel)

    def _store_report(self, host: HostId, notice: messages.StoreReport) -> None:
        self._fleet.note_store(host, notice)
        if not notice.works:
            self._outlet.warn(f"{host}: {notice.error}")
        self._outlet.changed(None, "store")

    # ---- hosts ------------------------------------------------------------------------------

    def host_lost(self, spec: HostSpec, reason: str) -> None:
        """Its replicas are gone with it."""
        for record in self._records.values():
            for replica, process in list(record.processes.items()):
                if process.host == spec.host:
                    self.replica_gone(record, replica, f"{spec.host} is lost: {reason}")
        self._outlet.post(
            events.HostLost(
                host=spec.host,
                incarnation=spec.incarnation,
                reason=reason,
                at=self._clock.now(),
            )
        )
        self._outlet.changed(None, "host")
