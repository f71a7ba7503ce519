"""Kernels that go on without a majority: the survivor that knows most founds a group of its own.

The scheduler decides that; here the survivors are asked what they know, the best of them puts the
new group's log on disk, its key is written down, and only then does it go on. The user is told from
which cell on something is lost.
"""

from __future__ import annotations

import copy
import logging
import secrets

from notebookos_ext.cluster import actions, events, majority
from notebookos_ext.cluster.messages import control as messages
from notebookos_ext.cluster.model import HostId, KernelId
from notebookos_ext.errors import Infeasible, NotebookOSError, NotFound, StorageError
from notebookos_ext.live.kernel_records import LOG_KEY_BYTES, CellRecord, KernelRecord
from notebookos_ext.live.lifecycle import Lifecycle, opening
from notebookos_ext.live.parts import Part, Shared

ASK_S = 10.0
PREPARE_S = 120.0
"""A large namespace is folded and written, its large parts to the store."""
NAMED_CELLS = 5

log = logging.getLogger(__name__)


class Unprotected(Part):
    """Lives on the controller's thread."""

    def __init__(
        self,
        shared: Shared,
        *,
        lifecycle: Lifecycle,
    ) -> None:
        super().__init__(shared)
        self._lifecycle = lifecycle

    async def request(self, kernel: KernelId) -> None:
        """See `Controller.continue_unprotected`."""
        found = self._view.kernels.get(kernel)
        if found is None:
            raise NotFound(f"there is no NotebookOS kernel {kernel}")
        reason = majority.refusal(self._view, found)
        if reason is not None:
            raise Infeasible(f"the kernel cannot go on unprotected: {reason}")
        self._outlet.post(events.UnprotectedRequested(kernel=kernel, at=self._clock.now()))
        self._outlet.changed(kernel, "kernel")

    def go_on(self, action: actions.GoOnUnprotected) -> None:
        """Found the new group when nothing else is under way in the old one."""
        record = self._records[action.kernel]
        if record.stored is not None:
            self._stay(record, action, "it is still being brought back from the checkpoint store")
            return
        # What waits for a majority there need not any more.
        record.leaving = True
        self._chains.append(
            (action.kernel, ""),
            self._go_on(record, action, record.group),
            after=self._chains.keys(action.kernel),
        )

    async def _go_on(
        self, record: KernelRecord, action: actions.GoOnUnprotected, group: int
    ) -> None:
        if not record.has_group(group):
            return
        key = secrets.token_bytes(LOG_KEY_BYTES)
        host, prepared, reason = None, None, "none of its members answers"
        try:
            host = await self._best(record, action)
            if host is not None:
                request = messages.PrepareGroup(kernel=action.kernel, log_key=key)
                agent = self._fleet.agent(host)
                prepared = await agent.request(request, messages.GroupPrepared, PREPARE_S)
        except NotebookOSError as error:
            reason = error.message
        if not record.has_group(group):
            # Restarted or shut down meanwhile: its members are being closed.
            return
        record.leaving = False
        if host is not None and prepared is not None:
            kernel = self._view.kernels.get(action.kernel)
            record.wanted_replicas = 0 if kernel is None else kernel.next_replica_count
            reason = self._written(record, key, host, action)
        if host is None or prepared is None or reason:
            await self._back(record, action, host)
            if record.has_group(group):
                self._stay(record, action, reason)
            return
        record.go_on(key, host, action.members)
        await self._switch(record, host)
        self._tell(record, host, action, prepared)

    def _written(
        self, record: KernelRecord, key: bytes, host: HostId, action: actions.GoOnUnprotected
    ) -> str:
        """Write the new key down; why that cannot be done, empty when it was.

        Without it a later controller would know the old group alone, and delete the new one's log.
        """
        heir = copy.copy(record)
        heir.go_on(key, host, action.members)
        try:
            self._keeper.write(heir)
        except StorageError as error:
            return error.message
        return ""

    async def _back(
        self, record: KernelRecord, action: actions.GoOnUnprotected, host: HostId | None
    ) -> None:
        """Have the survivor's member take part in the old group again, if it was sealed."""
        if host is None or not self._fleet.has(host):
            return
        try:
            request = opening(record, action.members, host)
            await self._fleet.agent(host).request(request, messages.Done, ASK_S)
        except NotebookOSError as error:
            log.warning("%s has not gone back to %s: %s", host, record.kernel, error)

    async def _best(self, record: KernelRecord, action: actions.GoOnUnprotected) -> HostId | None:
        """Who has everything that any of them has: the one whose log ends last.

        An entry that was committed in some term is in the log of every later leader, and so before
        whatever a survivor has of a later term (the argument of the election rule, thesis 3.6.1).
        """
        known: dict[HostId, tuple[int, int]] = {}
        for host in action.hosts:
            if not self._fleet.has(host) or host in record.relearning:
                continue
            agent = self._fleet.agent(host)
            try:
                await agent.request(opening(record, action.members, host), messages.Done, ASK_S)
                told = await agent.request(messages.ReadMembers(), messages.MemberReports, ASK_S)
            except NotebookOSError as error:
                log.info("%s does not tell what it knows of %s: %s", host, record.kernel, error)
                continue
            for status in told.members:
                if status.kernel == record.kernel and not status.failure:
                    known[host] = (status.last_term, status.last_index)
        # The first of those that know as much, in the scheduler's order.
        return max(known, key=lambda host: known[host], default=None)

    def _stay(self, record: KernelRecord, action: actions.GoOnUnprotected, reason: str) -> None:
        self._outlet.warn(f"the kernel could not go on unprotected: {reason}", record.kernel)
        if record.epoch:
            # That it begins may have been given up for this.
            self._lifecycle.begin_epoch_again(record, action.members)
        self._outlet.post(
            events.WentOnUnprotected(
                kernel=record.kernel, host=None, reason=reason, at=self._clock.now()
            )
        )

    async def _switch(self, record: KernelRecord, host: HostId) -> None:
        """The key is written down: nothing leads back to the old group from here."""
        switch = messages.SwitchGroup(kernel=record.kernel, log_key=record.log_key)
        try:
            agent = self._fleet.agent(host)
            await agent.request(switch, messages.Done, PREPARE_S)
            if record.epoch:
                epoch = messages.NewEpoch(kernel=record.kernel, epoch=record.epoch)
                await agent.request(epoch, messages.Done, ASK_S)
        except NotebookOSError as error:
            log.warning("%s does not go on with %s yet: %s", host, record.kernel, error)
            await self._begin_from_disk(record, host)

    async def _begin_from_disk(self, record: KernelRecord, host: HostId) -> None:
        """End what runs there with the old group; its next launch opens the new one."""
        close = messages.CloseMember(kernel=record.kernel, delete=False)
        spec = self._fleet.spec(host)
        try:
            await self._fleet.agent(host).request(close, messages.Done)
        except NotebookOSError as error:
            # It is lost, or about to be: an agent that comes back opens nothing by itself.
            log.warning("%s has not closed kernel %s: %s", host, record.kernel, error)
        for replica, process in list(record.processes.items()):
            if process.host == host and spec is not None:
                self._outlet.post(
                    events.ReplicaLost(
                        replica=replica,
                        host=host,
                        incarnation=spec.incarnation,
                        reason="its kernel goes on in a new group",
                        at=self._clock.now(),
                    )
                )

    def _tell(
        self,
        record: KernelRecord,
        host: HostId,
        action: actions.GoOnUnprotected,
        prepared: messages.GroupPrepared,
    ) -> None:
        lost = lost_cells(record, host, prepared.last_closed_attempt)
        self._outlet.post(
            events.WentOnUnprotected(
                kernel=record.kernel, host=host, reason="", at=self._clock.now()
            )
        )
        kernel = self._view.kernels.get(record.kernel)
        if kernel is not None:
            record.former = set(kernel.former)
            self._keeper.keep(record, self._outlet.warn)
        others = ", ".join(name for name in action.members if name != host)
        text = (
            f"the kernel goes on unprotected with what {host} knows, without its members on "
            f"{others}; {told_of(lost)}"
        )
        log.warning(
            "kernel %s: %d entries of its new group are uncertain",
            record.kernel,
            prepared.uncertain,
        )
        record.notice = f"NotebookOS: {text}\n"
        self._outlet.warn(text, record.kernel)
        self._outlet.changed(record.kernel, "kernel")


def lost_cells(record: KernelRecord, host: HostId, last_closed_attempt: int) -> list[CellRecord]:
    """Answered cells, oldest first, of which the new group knows nothing.

    What the survivor's own process ran is there, whether or not it was committed yet.
    """
    alive = {replica for replica, process in record.processes.items() if process.host == host}
    return [
        cell
        for cell in reversed(record.cells)
        if cell.attempt > last_closed_attempt
        and cell.state in ("done", "failed")
        and cell.replica not in alive
    ]


def told_of(lost: list[CellRecord]) -> str:
    """What became of the cells that had been answered, in words."""
    if not lost:
        return "everything that answered cells did is there"
    named = ", ".join(f"`{cell.code}`" for cell in lost[:NAMED_CELLS])
    if len(lost) > NAMED_CELLS:
        named += f" and {len(lost) - NAMED_CELLS} more"
    return f"lost is what the last answered cells did ({named}); all before them is there"
