"""Kernels go into the checkpoint store and come back; meanwhile no host has anything of them.

A kernel is in the store from the moment its record says so, which is written before anything of it
ends; it is out of the store again when its new group's log has all of it, and before a cell runs.
Whatever fails in between leaves it where it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from notebookos_ext.cluster import actions, events
from notebookos_ext.cluster.messages import control as messages
from notebookos_ext.cluster.model import HostId, KernelId
from notebookos_ext.cluster.snapshots import StoredState
from notebookos_ext.errors import NotebookOSError, NotFound, Refused, Unavailable
from notebookos_ext.live.keeping import Keeper
from notebookos_ext.live.kernel_records import KernelRecord, Restoration
from notebookos_ext.live.lifecycle import Lifecycle
from notebookos_ext.live.parts import Part, Shared
from notebookos_ext.live.ports import Lives

QUIET_S = 10.0
"""How long requests of clients may take to end before a kernel is not stored for now."""
LOOK_S = 0.05
PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0

log = logging.getLogger(__name__)


class StoredKernels(Part):
    """Carries out StoreKernel and RestoreKernel; lives on the controller's thread."""

    def __init__(
        self,
        shared: Shared,
        *,
        lifecycle: Lifecycle,
        lives: Lives,
    ) -> None:
        super().__init__(shared)
        self._lifecycle = lifecycle
        self._lives = lives

    # ---- into the store ---------------------------------------------------------------------

    def store_kernel(self, action: actions.StoreKernel) -> None:
        """Keep its namespace in the store, then end it everywhere; requests of clients wait."""
        record = self._records[action.kernel]
        record.storing = True
        self._router.hold_back(action.kernel)
        self._chains.append(
            (action.kernel, ""),
            self._store(record, action),
            after=self._chains.keys(action.kernel),
        )
        self._outlet.changed(action.kernel, "kernel")

    async def _store(self, record: KernelRecord, action: actions.StoreKernel) -> None:
        try:
            # What has not come back wholly is still in the store.
            if record.stored is None:
                await self._keep(record, action)
        except NotebookOSError as error:
            record.storing = False
            if not record.closed:
                self._not_stored(record, error)
            return
        if record.closed:
            return
        record.restoration, record.members = None, ()
        self._keeper.keep(record, self._outlet.warn)
        for replica in list(record.processes):
            self._router.replica_gone(record.kernel, replica)
        record.processes.clear()
        record.executor = None
        await self._lifecycle.close_members(record.kernel, action.members)
        record.storing = False
        self._outlet.post(
            events.KernelStored(kernel=record.kernel, stored=True, reason="", at=self._clock.now())
        )
        self._lives.rests(record.kernel)

    async def _keep(self, record: KernelRecord, action: actions.StoreKernel) -> None:
        """Have the state in the store and the record on disk."""
        await self._quiet(record.kernel)
        request = messages.KeepState(kernel=action.kernel, epoch=action.epoch)
        state = await self._ask(record, action.members, request)
        if record.closed:
            return
        record.stored = state
        members, record.members = record.members, ()
        try:
            self._keeper.write(record)
        except NotebookOSError:
            record.stored, record.members = None, members
            raise

    async def _quiet(self, kernel: KernelId) -> None:
        """Until no replica works for a client. Raises Refused."""
        waited_s = 0.0
        while not await asyncio.wrap_future(self._router.is_quiet(kernel)):
            if waited_s >= QUIET_S:
                raise Refused("requests of its clients are still being answered")
            await asyncio.sleep(LOOK_S)
            waited_s += LOOK_S

    async def capture(self, kernel: KernelId) -> StoredState:
        """Have the store keep the kernel as it is now, without what cannot travel; it goes on.

        Raises NotFound, Refused while a cell runs, Unavailable, StorageError.
        """
        record = self._records.get(kernel)
        if record is None or record.closed:
            raise NotFound(f"there is no NotebookOS kernel {kernel}")
        if record.stored is not None:
            return record.stored
        if not record.members:
            raise Refused("the kernel has not started yet")
        request = messages.KeepState(kernel=kernel, epoch=record.epoch, leave_held_out=True)
        return await self._ask(record, record.members, request)

    async def _ask(
        self, record: KernelRecord, members: tuple[HostId, ...], request: messages.KeepState
    ) -> StoredState:
        """The executor's host knows best; the others know what was committed."""
        process = record.processes.get(record.executor) if record.executor else None
        first = process.host if process is not None else None
        key = record.log_key
        failure: NotebookOSError = Unavailable("no host of the kernel is there")
        for host in sorted(members, key=lambda host: host != first):
            if not self._fleet.has(host):
                continue
            try:
                kept = await self._fleet.agent(host).request(request, messages.StateKept)
            except Refused:
                raise
            except NotebookOSError as error:
                failure = error
            else:
                return StoredState(
                    kernel=record.kernel,
                    key=key,
                    epoch=kept.epoch,
                    at=self._clock.now(),
                    replica_count=len(members),
                    index=kept.index,
                    document=kept.document,
                    chunks=kept.chunks,
                    size_bytes=kept.size_bytes,
                    gpu_names=tuple(sorted(record.gpu_names)),
                )
        raise failure

    def _not_stored(self, record: KernelRecord, error: NotebookOSError) -> None:
        log.info("kernel %s was not stored: %s", record.kernel, error)
        if not isinstance(error, Refused):
            self._outlet.warn(
                f"the idle kernel could not be put into the checkpoint store and goes on as it is: "
                f"{error}",
                record.kernel,
            )
        if record.executor is not None:
            self._router.set_executor(record.kernel, record.executor)
        self._outlet.post(
            events.KernelStored(
                kernel=record.kernel, stored=False, reason=error.message, at=self._clock.now()
            )
        )
        self._outlet.changed(record.kernel, "kernel")

    # ---- and back ---------------------------------------------------------------------------

    def restore_kernel(self, action: actions.RestoreKernel) -> None:
        """Found a group whose log begins with what the store has, before replicas are launched."""
        record = self._records[action.kernel]
        record.begin_group()
        if action.epoch > record.epoch:
            record.epoch = action.epoch
            record.begin_epoch()
        size_bytes = record.stored.size_bytes if record.stored is not None else 0
        record.restoration = Restoration(self._clock.now(), size_bytes)
        self._chains.append(
            (action.kernel, ""),
            self._restore(record, action),
            after=self._chains.keys(action.kernel),
        )
        self._outlet.changed(action.kernel, "kernel")

    async def _restore(self, record: KernelRecord, action: actions.RestoreKernel) -> None:
        pause_s = PAUSE_S
        # Until it has worked, it is restarted or shut down, or nobody waits for it any more.
        while record.lives(action.epoch) and not record.storing and record.stored is not None:
            try:
                await self._lifecycle.open_everywhere(record, action.members)
                await self._begin(record, action, record.stored)
                self._let_go(record)
            except NotebookOSError as error:
                self._outlet.warn(
                    "the kernel could not be restored from the checkpoint store, which is tried "
                    f"again; restart it to go on with an empty namespace: {error}",
                    record.kernel,
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _begin(
        self, record: KernelRecord, action: actions.RestoreKernel, state: StoredState
    ) -> None:
        """Have the log begin with the state, through whichever host can do it."""
        request: messages.NewEpoch | messages.RestoreState
        if state.is_empty or action.epoch > state.epoch:
            if not action.epoch:
                return
            request = messages.NewEpoch(kernel=action.kernel, epoch=action.epoch)
        else:
            request = messages.RestoreState(kernel=action.kernel, state=state)
        problem: NotebookOSError = Unavailable("no host of the kernel is there")
        for host in action.members:
            if not self._fleet.has(host) or record.storing:
                continue
            try:
                await self._fleet.agent(host).request(request, messages.Done)
            except NotebookOSError as error:
                problem = error
            else:
                return
        if not record.storing:
            raise problem

    def _let_go(self, record: KernelRecord) -> None:
        """From now on the log counts, and what the store had does not."""
        if record.storing:
            return
        stored, record.stored = record.stored, None
        try:
            self._keeper.write(record)
        except NotebookOSError:
            record.stored = stored
            raise


def named_chunks(keeper: Keeper, records: Mapping[KernelId, KernelRecord]) -> frozenset[str]:
    """Digests of the chunks that kernels in the store alone need; no sweep may take them."""
    states: Iterable[StoredState | None] = (
        *(kept.stored for kept in keeper.former),
        *(record.stored for record in records.values()),
    )
    return frozenset(digest for state in states if state is not None for digest in state.chunks)
