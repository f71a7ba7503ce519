"""Snapshots of kernels: made from what their logs amount to here, and taken over from others.

No replica is asked and nothing is unpickled. What would make a snapshot long goes to the checkpoint
store as chunks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from notebookos_ext.agent.chunks import Chunks
from notebookos_ext.agent.deltas import fit, log_bytes
from notebookos_ext.agent.history import Frozen
from notebookos_ext.agent.kernels import HostedKernel
from notebookos_ext.cluster.model import KernelId
from notebookos_ext.cluster.snapshots import KernelSnapshot, decode_snapshot, encode_snapshot
from notebookos_ext.errors import StorageError

INLINE_BYTES_MAX = 4_000_000
"""How much of a namespace a snapshot holds itself; a host that was away gets it in small pieces."""

log = logging.getLogger(__name__)


class KernelStates:
    """`SnapshotHooks` of a host's kernels; `kernels` are those that are open."""

    def __init__(self, kernels: Mapping[KernelId, HostedKernel], chunks: Chunks) -> None:
        self._kernels = kernels
        self._chunks = chunks
        self._made: dict[KernelId, KernelSnapshot] = {}

    def capture(self, kernel: KernelId) -> Callable[[], Awaitable[bytes]] | None:
        """See `SnapshotHooks.capture`."""
        hosted = self._kernels.get(kernel)
        if hosted is None or hosted.history.is_restoring:
            return None
        frozen = hosted.history.freeze()

        async def make() -> bytes:
            snapshot = await self.folded(frozen)
            self._made[kernel] = snapshot
            return await asyncio.to_thread(encode_snapshot, kernel, snapshot, hosted.log_key)

        return make

    def compacted(self, kernel: KernelId, index: int) -> None:
        """See `SnapshotHooks.compacted`."""
        snapshot = self._made.pop(kernel, None)
        hosted = self._kernels.get(kernel)
        if hosted is not None and snapshot is not None and snapshot.index <= index:
            hosted.history.forget(snapshot)

    def restore(self, kernel: KernelId, index: int, state: bytes) -> None:
        """See `SnapshotHooks.restore`."""
        hosted = self._kernels.get(kernel)
        if hosted is None:
            raise StorageError(f"kernel {kernel} is not open here, so its snapshot has no reader")
        snapshot = decode_snapshot(kernel, state, hosted.log_key)
        self._made.pop(kernel, None)
        hosted.restore(index, snapshot)

    async def folded(self, frozen: Frozen) -> KernelSnapshot:
        """The snapshot of a moment, with large parts in the store. Raises StorageError."""
        return await self._fitted(await asyncio.to_thread(folded_snapshot, frozen))

    async def _fitted(self, snapshot: KernelSnapshot) -> KernelSnapshot:
        """With large parts in the store; as it is while the store is away."""
        try:
            return await fitted(snapshot, self._chunks)
        except StorageError as error:
            log.warning("a snapshot keeps its large parts itself: %s", error)
            return snapshot


async def fitted(snapshot: KernelSnapshot, chunks: Chunks) -> KernelSnapshot:
    """The same with large parts in the store, if it is long. Raises StorageError."""
    size_bytes = sum(log_bytes(folded.delta) for folded in snapshot.deltas)
    if size_bytes <= INLINE_BYTES_MAX:
        return snapshot
    deltas = []
    for folded in snapshot.deltas:
        share = INLINE_BYTES_MAX * log_bytes(folded.delta) // size_bytes
        delta = await fit(folded.delta, chunks.store, share)
        deltas.append(msgspec.structs.replace(folded, delta=delta))
    return msgspec.structs.replace(snapshot, deltas=tuple(deltas))


def folded_snapshot(frozen: Frozen) -> KernelSnapshot:
    """What `frozen` amounts to. Raises StorageError instead of what only a defect can lead to."""
    try:
        return frozen.fold()
    except msgspec.MsgspecError as error:
        raise StorageError(
            f"the log of kernel {frozen.kernel} cannot be folded: {error}"
        ) from error
