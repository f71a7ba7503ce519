"""When and how the log of one member forgets: a snapshot first, then what it stands for.

The state is captured in one go with the log index that it belongs to, and made, written and flushed
while the member goes on. Only the log's own replacement holds up its saves, for as long as it takes
to write what came since. Followers that lag a little still get entries: the member goes on keeping
in memory for a while what its disk has forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

import msgspec

from notebookos_ext.cluster.consensus.node import Node
from notebookos_ext.cluster.consensus.replicated_log import SnapshotHooks
from notebookos_ext.cluster.consensus.snapshot import Snapshot, SnapshotMeta
from notebookos_ext.cluster.model import KernelId
from notebookos_ext.errors import NotebookOSError
from notebookos_ext.storage.snapshots import SnapshotRef
from notebookos_ext.storage.wal import WriteAheadLog

RETAINED_ENTRIES = 128
"""How many entries must follow a snapshot before memory forgets what the disk has forgotten."""

_log = logging.getLogger(__name__)


class CompactionLimits(msgspec.Struct, frozen=True):
    """How much a log holds before it is compacted, beyond what it held after the last time."""

    entries: int = 4_000
    size_bytes: int = 32 * 1024 * 1024


class Compaction:
    """Decides and prepares; `ready_ref` is a snapshot on disk for which the log can be replaced.

    `on_ready` is called when there is one; the member then calls `replace` when nothing else is
    being saved, and `replaced` when that is done.
    """

    def __init__(
        self,
        *,
        kernel: KernelId,
        node: Node,
        wal: WriteAheadLog,
        executor: Executor,
        limits: CompactionLimits,
        hooks: SnapshotHooks,
        on_ready: Callable[[], None],
    ) -> None:
        self.ready_ref: SnapshotRef | None = None
        self._kernel = kernel
        self._node = node
        self._wal = wal
        self._executor = executor
        self._limits = limits
        self._hooks = hooks
        self._on_ready = on_ready
        self._task: asyncio.Task[None] | None = None
        self._keeping: asyncio.Future[SnapshotRef] | None = None
        self._meta: SnapshotMeta | None = None
        self._forgettable: deque[SnapshotMeta] = deque()
        self._floor_bytes = wal.size_bytes if wal.snapshot is not None else 0
        self._floor_index = node.log.base_index

    def look(self) -> None:
        """Entries were delivered: forget what may be, and begin a snapshot if one is due."""
        log = self._node.log
        while self._forgettable and (
            log.delivered_index >= self._forgettable[0].index + RETAINED_ENTRIES
        ):
            self._node.compact(self._forgettable.popleft())
        if self._task is not None or self.ready_ref is not None:
            return
        grown = self._wal.size_bytes - self._floor_bytes
        if (
            log.delivered_index - self._floor_index >= self._limits.entries
            or grown >= self._limits.size_bytes
        ):
            self._begin()

    def forget_now(self) -> None:
        """Let memory forget what the disk has forgotten."""
        if self._forgettable:
            self._node.compact(self._forgettable[-1])
            self._forgettable.clear()

    def replace(self) -> asyncio.Future[None]:
        """Replace the log, in a thread. Nothing may be saved until it is done."""
        assert self.ready_ref is not None  # noqa: S101 - a mistake of ours
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._executor, self._wal.compact, self.ready_ref)

    def replaced(self, error: BaseException | None) -> None:
        """The log was replaced, or is as it was because of `error`."""
        ref, meta = self.ready_ref, self._meta
        self.ready_ref = self._meta = None
        if error is not None or ref is None or meta is None:
            self._gave_up(error)
            return
        self._floor_bytes = self._wal.size_bytes
        # A large state is not written anew for every small piece of log.
        self._floor_bytes += max(0, ref.size_bytes - self._limits.size_bytes)
        self._forgettable.append(meta)
        if len(self._node.members) == 1:
            self.forget_now()
        self._hooks.compacted(self._kernel, meta.index)
        _log.info("kernel %s: the log begins after entry %d now", self._kernel, meta.index)

    def installed(self) -> None:
        """A leader's snapshot took the place of the log: whatever was prepared is stale."""
        self._cancel()
        self.ready_ref = self._meta = None
        self._forgettable.clear()
        self._floor_bytes, self._floor_index = self._wal.size_bytes, self._node.log.base_index

    async def close(self) -> None:
        """Begin nothing more; return when nothing is being written."""
        self._cancel()
        self.ready_ref = None
        if self._keeping is not None:
            await asyncio.wait([self._keeping])

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _begin(self) -> None:
        index = self._node.log.delivered_index
        self._floor_index, self._floor_bytes = index, self._wal.size_bytes
        make = self._hooks.capture(self._kernel)
        if make is not None:
            self._task = asyncio.create_task(self._prepare(self._node.snapshot_at(index), make))

    async def _prepare(self, meta: SnapshotMeta, make: Callable[[], Awaitable[bytes]]) -> None:
        try:
            snapshot = Snapshot(meta, await make())
            loop = asyncio.get_running_loop()
            self._keeping = loop.run_in_executor(self._executor, self._wal.keep, snapshot)
            ref = await self._keeping
        except NotebookOSError as error:
            self._task = None
            self._gave_up(error)
            return
        self._task = None
        self._meta, self.ready_ref = meta, ref
        self._on_ready()

    def _gave_up(self, error: BaseException | None) -> None:
        """The log goes on as it is, and grows once more by as much before the next try."""
        _log.warning("kernel %s: its log could not be compacted: %s", self._kernel, error)
