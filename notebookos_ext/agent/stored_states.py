"""Kernels in the checkpoint store alone: what is put there, and how a new group begins with it.

What is stored is a snapshot of the kernel's log, as when a log is compacted, in chunks of
its own. It goes into the new group's log piece by piece, so that its members, present and future,
learn it as they learn everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from notebookos_ext.agent.chunks import Chunks
from notebookos_ext.agent.history import Frozen
from notebookos_ext.agent.kernel_states import fitted, folded_snapshot
from notebookos_ext.agent.kernels import HostedKernel
from notebookos_ext.cluster.digests import chunk_digest
from notebookos_ext.cluster.entries import CHUNK_BYTES, ChunkRef, RestoredEntry
from notebookos_ext.cluster.messages.control import Done, KeepState, RestoreState, StateKept
from notebookos_ext.cluster.model import KernelId
from notebookos_ext.cluster.snapshots import (
    KernelSnapshot,
    StoredState,
    decode_snapshot,
    encode_snapshot,
    pack_snapshot,
    snapshot_chunks,
)
from notebookos_ext.errors import NotFound, OutcomeUnknown, Refused, StorageError

PIECE_BYTES = 800_000
"""Of a state in one log entry, which takes 1 MB at most."""
ROUNDS = 5
"""How often a state that changed while it was stored is stored again."""
SETTLE_S = 30.0
PROPOSE_S = 10.0


class StoredStates:
    """Answers the controller; `kernels` are those that are open."""

    def __init__(self, kernels: Mapping[KernelId, HostedKernel], chunks: Chunks) -> None:
        self._kernels = kernels
        self._chunks = chunks

    async def keep(self, request: KeepState) -> StateKept:
        """See `KeepState`. Raises NotFound, Refused, NoMajority, StorageError."""
        kernel = self._kernel(request.kernel)
        # Somebody may sweep the store: look there instead of remembering.
        self._chunks.doubt()
        for _ in range(ROUNDS):
            await self._settle(kernel)
            frozen = kernel.history.freeze()
            _require_rest(kernel, frozen, request)
            kept = await self._put(kernel, await asyncio.to_thread(folded_snapshot, frozen))
            await self._settle(kernel)
            if kernel.history.folded_index == frozen.index:
                return kept
        raise Refused(f"the variables of kernel {request.kernel} keep changing")

    async def _settle(self, kernel: HostedKernel) -> None:
        """Know all that was committed, and have committed what the replica here has sent."""
        if kernel.session is not None:
            try:
                await asyncio.wait_for(kernel.session.settled(), SETTLE_S)
            except TimeoutError:
                raise Refused("changes of its variables are still being committed") from None
        await kernel.barrier()

    async def _put(self, kernel: HostedKernel, whole: KernelSnapshot) -> StateKept:
        lean = msgspec.structs.replace(whole, verdicts=(), outcomes=())
        snapshot = await fitted(lean, self._chunks)
        named = snapshot_chunks(snapshot)
        await self._require(named)
        content = await asyncio.to_thread(encode_snapshot, kernel.kernel, snapshot, kernel.log_key)
        document = []
        for start in range(0, len(content), CHUNK_BYTES):
            piece = content[start : start + CHUNK_BYTES]
            ref = ChunkRef(chunk_digest(piece), len(piece))
            await self._chunks.store(ref.digest, piece)
            document.append(ref)
        return StateKept(
            epoch=snapshot.ledger.epoch,
            index=snapshot.index,
            document=tuple(document),
            chunks=(*named, *(ref.digest for ref in document)),
            size_bytes=len(content) + sum(named.values()),
        )

    async def restore(self, request: RestoreState) -> Done:
        """See `RestoreState`.

        Raises NotFound, NoMajority, OutcomeUnknown, StorageError, and CorruptRecord for a state
        that was not signed with its key.
        """
        kernel = self._kernel(request.kernel)
        pieces = await self._pieces(request.state)
        await kernel.barrier()
        ledger = kernel.history.ledger
        while (part := ledger.restored) < len(pieces):
            entry = RestoredEntry(part=part, parts=len(pieces), data=pieces[part])
            await kernel.propose(entry, kernel.proposal_id(), PROPOSE_S)
            if ledger.restored == part:
                # Somebody was faster, or the log has begun otherwise.
                await kernel.barrier()
                if ledger.restored == part:
                    raise Refused(f"the log of kernel {request.kernel} has begun without its state")
        if kernel.history.is_restoring or ledger.epoch != request.state.epoch:
            raise OutcomeUnknown(f"the state of kernel {request.kernel} is not yet here")
        return Done()

    async def _pieces(self, state: StoredState) -> list[bytes]:
        content = b"".join([await self._chunks.fetch(ref.digest) for ref in state.document])
        snapshot = await asyncio.to_thread(decode_snapshot, state.kernel, content, state.key)
        self._chunks.doubt()
        await self._require(snapshot_chunks(snapshot))
        body = await asyncio.to_thread(pack_snapshot, snapshot)
        return [body[start : start + PIECE_BYTES] for start in range(0, len(body), PIECE_BYTES)]

    async def _require(self, named: Mapping[str, int]) -> None:
        """That the store has all of these, which then are spared by a sweep for a while."""
        missing = await self._chunks.failures(named)
        if missing:
            digest, error = next(iter(missing.items()))
            raise StorageError(
                f"{len(missing)} of {len(named)} parts of the variables are not in the checkpoint "
                f"store, {digest[:12]}… for one: {error.message}"
            )

    def _kernel(self, name: KernelId) -> HostedKernel:
        kernel = self._kernels.get(name)
        if kernel is None:
            raise NotFound(f"kernel {name} is not open here")
        return kernel


def _require_rest(kernel: HostedKernel, frozen: Frozen, request: KeepState) -> None:
    """Raises Refused when something would be lost with the kernel's replicas."""
    if frozen.ledger.epoch != request.epoch:
        raise Refused(
            f"kernel {kernel.kernel} is in epoch {frozen.ledger.epoch}, not in {request.epoch}"
        )
    if frozen.ledger.lead is not None:
        raise Refused(f"a cell of kernel {kernel.kernel} has not ended")
    if kernel.history.is_restoring:
        raise Refused(f"kernel {kernel.kernel} is just being restored")
    session = kernel.session
    if session is None or not session.is_alive or session.launch.replica != frozen.ledger.executor:
        # What only the executor had is gone, and the next cell says so.
        return
    last = kernel.history.last_delta()
    if last is not None and last.held and not request.leave_held_out:
        names = ", ".join(f"{held.name} ({held.reason})" for held in last.held)
        raise Refused(f"what cannot travel would be lost: {names}")
    if last is not None and last.pending:
        raise Refused(f"{', '.join(last.pending)} is not yet in the checkpoint store")
