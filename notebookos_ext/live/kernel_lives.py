"""A kernel as its owner and its clients see it: start, restart, interrupt, shut down, change.

Lives on the controller's thread. `exit_codes` alone is read from others: what Jupyter's restarter
takes for the exit status of the kernel's process.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec

from notebookos_ext.cluster import events
from notebookos_ext.cluster.messages import control as messages
from notebookos_ext.cluster.model import REPLICA_COUNTS, KernelId, KernelSpec
from notebookos_ext.cluster.placement import ask_for, misfit
from notebookos_ext.cluster.snapshots import StoredState
from notebookos_ext.errors import Infeasible, NotFound, Unavailable
from notebookos_ext.live.kernel_records import KernelRecord, LaunchPlan
from notebookos_ext.live.parts import Part, Shared
from notebookos_ext.notebook_settings import NotebookSettings
from notebookos_ext.storage.kept_kernels import KeptKernel, KeptSession

SHUTDOWN_MESSAGE_S = 2.0
LAUNCHES_TRIED = 2
"""Of each replica, before a kernel that never answered is given up."""
USED_S = 10.0
"""The scheduler is told this often at most that a client uses a kernel."""
STOP_S = 20.0
"""An agent that is stuck must not hold its server back for longer."""

log = logging.getLogger(__name__)


class KernelLives(Part):
    """Implements `Lives`; the coroutines are what other threads ask through the controller."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._descriptions: dict[str, dict[str, Any]] = {}
        """By interpreter: what replicas say of themselves."""
        self._shutdown_messages: dict[KernelId, asyncio.Event] = {}
        self.exit_codes: dict[KernelId, int] = {}
        self._ending = False

    def interrupt(self, kernel: KernelId) -> None:
        """Take back the cell that waits, or interrupt the executor."""
        record = self._records.get(kernel)
        if record is None or record.closed:
            return
        cell = record.open_cell
        if cell is not None and self._view.is_waiting(kernel, cell.cell):
            self._outlet.post(
                events.CellCancelled(kernel=kernel, cell=cell.cell, at=self._clock.now())
            )
            return
        process = record.processes.get(record.executor) if record.executor else None
        if process is not None and self._fleet.has(process.host) and record.executor:
            self._fleet.agent(process.host).send(
                messages.InterruptReplica(
                    replica=record.executor, cell=None if cell is None else cell.cell
                )
            )

    def shutdown_asked(self, kernel: KernelId, restart: bool) -> None:
        """Whoever sent shutdown_request wants it gone; its owner may start it again."""
        if kernel not in self._records:
            return
        self._shutdown_messages.setdefault(kernel, asyncio.Event()).set()
        self.exit_codes.setdefault(kernel, 0)
        if not restart:
            self._close(kernel)

    def launch_failed(self, kernel: KernelId, reason: str) -> None:
        """Give up a kernel whose replicas end again and again before one has ever answered."""
        record = self._records.get(kernel)
        if record is None or record.closed or record.answered:
            return
        record.failed_launches += 1
        if record.failed_launches > LAUNCHES_TRIED * record.spec.replica_count:
            self._outlet.warn(f"the kernel was given up, for it cannot start: {reason}", kernel)
            self.exit_codes.setdefault(kernel, 1)
            self._close(kernel)

    def described(self, kernel: KernelId, content: dict[str, Any]) -> None:
        """What a replica says of itself is told by the router while none runs."""
        record = self._records.get(kernel)
        if record is not None and record.description != content:
            record.description = self._descriptions[record.plan.python] = content
            self._keeper.keep(record, self._outlet.warn)

    def used(self, kernel: KernelId) -> None:
        """It is not idle. A cell that comes decides by itself where a stored kernel wakes."""
        record, entry = self._records.get(kernel), self._view.kernels.get(kernel)
        now = self._clock.now()
        if not self._view.options.idle_s or record is None or entry is None or entry.stored:
            return
        if now - record.used_at >= USED_S:
            record.used_at = now
            self._outlet.post(events.KernelNeeded(kernel=kernel, at=now))

    def needed(self, kernel: KernelId) -> None:
        """Bring it back for something that is no cell."""
        self._outlet.post(events.KernelNeeded(kernel=kernel, at=self._clock.now()))

    def rests(self, kernel: KernelId) -> None:
        """If the scheduler has it in the store now, so have its record and the router.

        One that was restarted meanwhile, or has never run, is there with an empty namespace.
        """
        record, entry = self._records.get(kernel), self._view.kernels.get(kernel)
        if record is None or entry is None or not entry.stored:
            return
        if record.former != entry.former:
            record.former = set(entry.former)
            self._keeper.keep(record, self._outlet.warn)
        if record.stored is None or record.stored.epoch < entry.epoch:
            record.epoch = entry.epoch
            record.stored = StoredState(
                kernel=kernel,
                key=b"",
                epoch=entry.epoch,
                at=self._clock.now(),
                replica_count=entry.next_replica_count,
            )
            self._keeper.keep(record, self._outlet.warn)
        known = record.description or self._descriptions.get(record.plan.python)
        self._router.rest(kernel, known)
        self._outlet.changed(kernel, "kernel")

    async def shutdown(self, kernel: KernelId, *, restart: bool) -> None:
        """See `Controller.shutdown`."""
        # The message travels by another way. It must not arrive after the kernel was started again.
        arrived = self._shutdown_messages.setdefault(kernel, asyncio.Event())
        try:
            await asyncio.wait_for(arrived.wait(), SHUTDOWN_MESSAGE_S)
        except TimeoutError:
            log.debug("no shutdown_request of %s came", kernel)
        self.exit_codes.setdefault(kernel, 0)
        if not restart:
            self._close(kernel)

    async def start(self, spec: KernelSpec, plan: LaunchPlan, changes: NotebookSettings) -> None:
        """See `Controller.start_kernel`."""
        kernel = spec.kernel
        self._refuse_when_ending()
        self._keeper.require_space()
        await self._fleet.wait_for_a_host()
        self._refuse_when_ending()
        record = self._records.get(kernel)
        if record is not None and not record.closed:
            self._restart(record, plan, changes)
            return
        await self._chains.settled(kernel)
        if record is not None:
            # It was shut down by a client, but its owner has kept its ports.
            self._router.restart_kernel(kernel)
        record = self._records[kernel] = KernelRecord(spec, plan)
        self._shutdown_messages.pop(kernel, None)
        self.exit_codes.pop(kernel, None)
        kept = self._keeper.find(kernel)
        if kept is None:
            self._outlet.post(events.KernelRequested(spec=spec, at=self._clock.now()))
            self.rests(kernel)
        else:
            self._revive(record, kept)
        if record.rejected:
            del self._records[kernel]
            raise Infeasible(record.rejected)
        self._outlet.changed(kernel, "kernel")

    def _revive(self, record: KernelRecord, kept: KeptKernel) -> None:
        """The namespace comes from the log; how the kernel is launched, from today's server."""
        record.revive(kept)
        record.spec = msgspec.structs.replace(
            record.spec,
            replica_count=(
                self._replicas_of(kept) if record.stored is None else record.stored.replica_count
            ),
            notebook_path=record.spec.notebook_path or kept.spec.notebook_path,
            user=kept.spec.user or record.spec.user,
        )
        self._keeper.keep(record, self._outlet.warn)
        self._outlet.post(
            events.KernelRevived(
                spec=record.spec,
                members=record.members,
                epoch=record.epoch if record.stored is None else record.stored.epoch,
                last_attempt=kept.last_attempt,
                at=self._clock.now(),
                former=kept.former,
                stored=record.stored is not None,
                unprotected=kept.unprotected,
            )
        )
        if record.stored is not None:
            self.rests(record.kernel)
            return
        for host in kept.relearning:
            self._outlet.post(
                events.MemberLost(
                    kernel=kept.spec.kernel,
                    host=host,
                    reason="it had lost its log before the server ended",
                    at=self._clock.now(),
                )
            )
        self._outlet.warn(
            "the kernel was restored from its log; of a cell that ran when the server ended, "
            "nothing is kept",
            record.kernel,
        )

    def _replicas_of(self, kept: KeptKernel) -> int:
        """As many as it was to have: it may have been on its way to them when the server ended."""
        enough = [n for n in REPLICA_COUNTS if n >= len(kept.members)]
        wanted = kept.wanted_replicas
        return wanted if wanted in enough and wanted <= self._view.max_hosts else enough[0]

    def _restart(self, record: KernelRecord, plan: LaunchPlan, changes: NotebookSettings) -> None:
        kernel, now = record.kernel, self._clock.now()
        self._shutdown_messages.pop(kernel, None)
        self.exit_codes.pop(kernel, None)
        self._router.restart_kernel(kernel)
        cell = record.open_cell
        if cell is not None:
            cell.end("aborted", now)
        if changes.sync is not None:
            record.next_sync = changes.sync
        record.plan = msgspec.structs.replace(plan, sync=record.next_sync)
        record.processes.clear()
        record.begin_epoch()
        if changes.gpus_per_cell is not None:
            record.gpus_per_cell = changes.gpus_per_cell
        self._outlet.post(_settings_changed(kernel, changes, now))
        self._outlet.post(events.KernelRestarted(kernel=kernel, at=now))
        self.rests(kernel)
        self._outlet.changed(kernel, "kernel")

    async def stop(self, kernel: KernelId) -> None:
        """See `Controller.stop_kernel`."""
        self._close(kernel)
        try:
            await asyncio.wait_for(self._chains.settled(kernel), STOP_S)
        except TimeoutError:
            log.warning("kernel %s was not ended within %g s", kernel, STOP_S)
        record = self._records.get(kernel)
        if record is not None and record.closed:
            del self._records[kernel]
            self._shutdown_messages.pop(kernel, None)
            self.exit_codes.pop(kernel, None)

    async def stop_all(self) -> None:
        """End every kernel, side by side; no kernel can be started any more.

        Their owners are not told of it: a restarter would start them again.
        """
        self._ending = True
        await asyncio.gather(*(self.stop(kernel) for kernel in list(self._records)))

    def note_session(self, kernel: KernelId, session: KeptSession) -> None:
        """Jupyter's session of a kernel, which has its notebook's present path."""
        record = self._records.get(kernel)
        if record is None or record.session == session:
            return
        if record.session is not None and (record.session.type, session.type) == (
            "notebook",
            "console",
        ):
            # A console for a notebook has a session of its own; the notebook must find its kernel.
            return
        record.session = session
        self._keeper.keep(record, self._outlet.warn)
        self._outlet.changed(kernel, "kernel")

    def leave_all(self) -> None:
        """The server ends and keeps its kernels: no kernel can be started any more."""
        self._ending = True

    def _refuse_when_ending(self) -> None:
        if self._ending:
            raise Unavailable("the cluster is being stopped; start the server again")

    def _close(self, kernel: KernelId) -> None:
        record = self._records.get(kernel)
        if record is None or record.closed:
            return
        record.closed = True
        if not self._ending:
            self.exit_codes.setdefault(kernel, 0)
            if record.stored is not None:
                # Of one in the store no host has anything that would have to be closed.
                self._keeper.forget(kernel)
        self._outlet.post(events.KernelStopped(kernel=kernel, at=self._clock.now()))
        self._outlet.changed(kernel, "kernel")

    async def change_settings(self, kernel: KernelId, changes: NotebookSettings) -> None:
        """See `Controller.change_settings`."""
        replica_count, gpus_per_cell = changes.replica_count, changes.gpus_per_cell
        record = self._records.get(kernel)
        if record is None or record.closed:
            raise NotFound(f"there is no NotebookOS kernel {kernel}")
        if replica_count is not None and replica_count > self._view.max_hosts:
            raise Infeasible(
                f"{replica_count} replicas need {replica_count} hosts, "
                f"but the cluster may have {self._view.max_hosts} at most"
            )
        most = max((host.gpu_count for host in self._view.hosts.values()), default=0)
        if gpus_per_cell is not None and gpus_per_cell > most:
            raise Infeasible(
                f"{gpus_per_cell} GPUs per cell cannot be had: no host has more than {most}"
            )
        self._refuse_misfit(record, changes)
        if gpus_per_cell is not None:
            record.gpus_per_cell = gpus_per_cell
        if changes.sync is not None:
            record.next_sync = changes.sync
        if replica_count is not None and record.stored is not None:
            record.stored = msgspec.structs.replace(record.stored, replica_count=replica_count)
        record.spec = msgspec.structs.replace(record.spec, **_needs(changes))
        self._keeper.keep(record, self._outlet.warn)
        if replica_count is not None:
            # They take their time to come; the next kernel start should find them there.
            self._chains.spawn(self._fleet.request_hosts(replica_count))
            record.wanted_replicas = replica_count
            self._keeper.keep(record, self._outlet.warn)
        self._outlet.post(_settings_changed(kernel, changes, self._clock.now()))
        self._outlet.changed(kernel, "settings")

    def _refuse_misfit(self, record: KernelRecord, changes: NotebookSettings) -> None:
        """Type and memory that no host has. Raises Infeasible."""
        needs = _needs(changes)
        if not needs:
            return
        asked = ask_for(msgspec.structs.replace(record.spec, **needs), 1)
        hosts = [host for host in self._view.hosts.values() if host.ready]
        reasons = [misfit(host, asked) for host in hosts]
        if hosts and None not in reasons:
            raise Infeasible(f"no host of this cluster fits: {reasons[0]}")


def _needs(changes: NotebookSettings) -> dict[str, str | int | float]:
    """The settings that are fields of the kernel's spec, by their names there."""
    needs = {
        "gpu_type": changes.gpu_type,
        "gpu_memory_bytes": changes.gpu_memory_bytes,
        "memory_bytes": changes.memory_bytes,
        "gpu_wait_s": changes.gpu_wait_s,
    }
    return {name: value for name, value in needs.items() if value is not None}


def _settings_changed(
    kernel: KernelId, changes: NotebookSettings, at: float
) -> events.KernelSettingsChanged:
    return events.KernelSettingsChanged(
        kernel=kernel,
        gpus_per_cell=changes.gpus_per_cell,
        replica_count=changes.replica_count,
        at=at,
        gpu_type=changes.gpu_type,
        gpu_memory_bytes=changes.gpu_memory_bytes,
        memory_bytes=changes.memory_bytes,
        gpu_wait_s=changes.gpu_wait_s,
    )
