"""What a snapshot of a kernel's log holds, and how it is signed.

It is everything that a host agent makes of the entries up to `index`: the ledger, the verdicts and
outcomes of not long ago, and the namespace as folded deltas. Like entries it is signed with the
kernel's log key, since it too reaches replicas' unpicklers and comes from other hosts.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from notebookos_ext.cluster.entries import MAC_BYTES, ChunkRef
from notebookos_ext.cluster.folding import FoldedDelta
from notebookos_ext.cluster.ledger import LedgerState
from notebookos_ext.cluster.model import KernelId, Outcome
from notebookos_ext.errors import UNREADABLE, CorruptRecord

FORMAT_VERSION = 1
_PURPOSE = b"\xff\xffsnapshot"
"""Before the kernel's id, where an entry's MAC has the id's length: never the same bytes."""


class KernelSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A kernel's log up to `index`, folded."""

    index: int
    ledger: LedgerState
    deltas: tuple[FoldedDelta, ...]
    """Those of the present epoch, for a namespace that is empty."""
    verdicts: tuple[tuple[str, int, bool], ...]
    """Proposal id, index, and whether it counts; of not long ago, in log order."""
    outcomes: tuple[tuple[int, Outcome], ...]
    version: int = FORMAT_VERSION


class StoredState(msgspec.Struct, frozen=True):
    """Where the checkpoint store has the namespace of a kernel of which nothing else is left.

    It is a snapshot of the kernel's log, signed with `key`, in the chunks of `document`; without
    any the namespace is empty.
    """

    kernel: KernelId
    """Whose snapshot it is; part of what is signed."""
    key: bytes
    epoch: int
    at: float
    """When it was stored, in seconds since the Unix epoch."""
    replica_count: int
    index: int = 0
    """Up to which entry of the former log."""
    document: tuple[ChunkRef, ...] = ()
    chunks: tuple[str, ...] = ()
    """Digests of all that it needs, the document's own included: no sweep may take them."""
    size_bytes: int = 0
    gpu_names: tuple[str, ...] = ()
    """Globals through which code reaches a GPU framework: cells are judged by them before it is
    back.
    """

    @property
    def is_empty(self) -> bool:
        """Whether the kernel begins with an empty namespace."""
        return not self.document


class _Version(msgspec.Struct, frozen=True, array_like=True):
    """The same, for who must not read more of it."""

    index: int
    ledger: msgspec.Raw
    deltas: msgspec.Raw
    verdicts: msgspec.Raw
    outcomes: msgspec.Raw
    version: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(KernelSnapshot).decode
_decode_version = msgspec.msgpack.Decoder(_Version).decode


def encode_snapshot(kernel: KernelId, snapshot: KernelSnapshot, key: bytes) -> bytes:
    """Encode and sign a snapshot with the kernel's log key."""
    body = pack_snapshot(snapshot)
    return _mac(kernel, body, key) + body


def pack_snapshot(snapshot: KernelSnapshot) -> bytes:
    """Encode a snapshot whose bytes are signed otherwise."""
    return _encode(snapshot)


def unpack_snapshot(kernel: KernelId, body: bytes | memoryview) -> KernelSnapshot:
    """Decode what was checked before. Raises CorruptRecord, also for another format."""
    try:
        version = _decode_version(body).version
        if version != FORMAT_VERSION:
            raise CorruptRecord(
                f"a snapshot of kernel {kernel} has format {version}, but this version reads "
                f"{FORMAT_VERSION}; use the version that wrote it"
            )
        return _decode(body)
    except UNREADABLE as error:
        raise CorruptRecord(f"a snapshot of kernel {kernel} cannot be read: {error}") from error


def snapshot_chunks(snapshot: KernelSnapshot) -> dict[str, int]:
    """The chunks that its namespace needs, each with its length in bytes."""
    return {
        ref.digest: ref.size_bytes
        for folded in snapshot.deltas
        for ref in folded.delta.all_chunk_refs()
    }


def decode_snapshot(kernel: KernelId, payload: bytes, key: bytes) -> KernelSnapshot:
    """Check the signature, then decode. Raises CorruptRecord on any mismatch."""
    view = memoryview(payload)
    if not hmac.compare_digest(view[:MAC_BYTES], _mac(kernel, view[MAC_BYTES:], key)):
        raise CorruptRecord(
            f"a snapshot of kernel {kernel} is not signed with its key; it was not used"
        )
    return unpack_snapshot(kernel, view[MAC_BYTES:])


def _mac(kernel: KernelId, body: bytes | memoryview, key: bytes) -> bytes:
    mac = hmac.new(key, _PURPOSE + kernel.encode() + b"\0", hashlib.sha256)
    mac.update(body)
    return mac.digest()
