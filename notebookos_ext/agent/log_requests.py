"""What a controller asks about the logs of a host: how members are, and which chunks are in use."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from notebookos_ext.agent.chunks import Chunks
from notebookos_ext.agent.history import Frozen
from notebookos_ext.agent.kernels import HostedKernel
from notebookos_ext.cluster.consensus.replicated_log import MemberStatus
from notebookos_ext.cluster.messages.control import (
    MemberReports,
    NamedChunks,
    ReadChunks,
    ReadMembers,
    StoreSwept,
    SweepStore,
)
from notebookos_ext.cluster.model import KernelId


class Statuses(Protocol):
    """The part of `members.Members` that is used here."""

    @property
    def kernels(self) -> tuple[KernelId, ...]: ...  # noqa: D102
    def status(self, kernel: KernelId) -> MemberStatus: ...  # noqa: D102


class LogRequests:
    """Answers the controller; `kernels` are those that are open."""

    def __init__(
        self, members: Statuses, kernels: Mapping[KernelId, HostedKernel], chunks: Chunks
    ) -> None:
        self._members = members
        self._kernels = kernels
        self._chunks = chunks
        self._sizes: dict[KernelId, tuple[tuple[int, int], int]] = {}
        """What each kernel had in the store, and at which place of its log."""

    async def read_members(self, request: ReadMembers) -> MemberReports:
        """How the members are."""
        sizes = await self._store_bytes() if request.with_store else {}
        return MemberReports(tuple(map(self._members.status, self._members.kernels)), sizes)

    async def _store_bytes(self) -> dict[KernelId, int]:
        known, self._sizes = self._sizes, {}
        changed: dict[KernelId, tuple[tuple[int, int], Frozen]] = {}
        for kernel, hosted in self._kernels.items():
            generation = hosted.history.generation
            place = (generation.folded_index, generation.last_delta_index)
            if kernel in known and known[kernel][0] == place:
                self._sizes[kernel] = known[kernel]
            else:
                changed[kernel] = (place, hosted.history.freeze())
        # Deltas are decoded for it, which may take a while.
        read = await asyncio.to_thread(
            lambda: {k: (place, frozen.store_bytes()) for k, (place, frozen) in changed.items()}
        )
        self._sizes.update(read)
        return {kernel: size for kernel, (_, size) in self._sizes.items()}

    async def read_chunks(self, _request: ReadChunks) -> NamedChunks:
        """Which chunks the logs here name; from now on the store is asked what it still has.

        Raises NoMajority.
        """
        self._chunks.doubt()
        kernels = dict(self._kernels)
        # A host that lags behind may yet name what the others have superseded.
        await asyncio.gather(*(kernel.barrier() for kernel in kernels.values()))
        frozen = [each for kernel in kernels.values() for each in kernel.needed()]
        digests = await asyncio.to_thread(_digests, frozen)
        digests |= {d for kernel in kernels.values() for d in kernel.uncommitted_chunks()}
        return NamedChunks(tuple(sorted(digests.union(self._chunks.loose()))), tuple(kernels))

    async def sweep_store(self, request: SweepStore) -> StoreSwept:
        """Delete chunks that nothing names. Raises StorageError."""
        self._chunks.doubt()
        swept = await self._chunks.sweep(
            request.named, request.older_than_s, dry_run=request.dry_run
        )
        return StoreSwept(chunks=swept.chunks, size_bytes=swept.size_bytes)


def _digests(histories: list[Frozen]) -> set[str]:
    return set().union(*(frozen.chunk_digests() for frozen in histories))
