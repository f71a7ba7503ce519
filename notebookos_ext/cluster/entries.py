"""What a kernel's replicated log holds, and how entries are signed.

An entry is encoded with msgpack and prefixed with an HMAC-SHA-256 over the kernel id and the
encoded bytes, made with the kernel's log key. Only the controller and the host agents
know that key: nothing reaches a replica's unpickler that an agent of the same kernel did not sign.
Bulk data is not in the log: a block larger than the inline limit is a list of content-addressed
chunks in the checkpoint store, covered by the MAC through their digests.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from notebookos_ext.cluster.model import CellId, DeviceId, HeldName, KernelId, Outcome, ReplicaId
from notebookos_ext.errors import UNREADABLE, CorruptRecord

CHUNK_BYTES = 4 * 1024 * 1024
"""Blocks are cut into chunks of this size, so that a changed part of a large array ships alone."""
MAC_BYTES = 32


class ChunkRef(msgspec.Struct, frozen=True, array_like=True):
    """A content-addressed piece of a block: BLAKE3-256 in hex, and its length in bytes."""

    digest: str
    size_bytes: int


class Block(msgspec.Struct, frozen=True, array_like=True):
    """One out-of-band buffer of a component: either inline bytes or chunks in the store."""

    size_bytes: int
    inline: bytes = b""
    chunks: tuple[ChunkRef, ...] = ()


class Component(msgspec.Struct, frozen=True):
    """Global names whose objects share parts, pickled together so that the sharing survives.

    `skeleton` is a pickle (protocol 5) whose large buffers are `blocks`, in order. A skeleton that
    is itself too large for the log is in `skeleton_chunks` and `skeleton` is empty.
    `definitions` are the ids of the functions and classes that it carries, `references` those that
    it mentions: who folds a log (`cluster/folding.py`) must not unpickle anything. Unknown
    definitions (None) are those of a log written before these fields were.
    """

    names: tuple[str, ...]
    skeleton: bytes
    blocks: tuple[Block, ...] = ()
    skeleton_chunks: tuple[ChunkRef, ...] = ()
    definitions: tuple[str, ...] | None = None
    references: tuple[str, ...] = ()

    def chunk_refs(self) -> tuple[ChunkRef, ...]:
        """Every chunk that is needed to load it."""
        return sum((block.chunks for block in self.blocks), self.skeleton_chunks)


class HistoryRecord(msgspec.Struct, frozen=True):
    """What IPython's history gained since the last record."""

    start: int
    """Number of the first input below."""
    inputs: tuple[str, ...]
    raw: tuple[str, ...]
    count: int
    latest: tuple[int, ...]
    """The `Out` numbers behind `_`, `__` and `___`; -1 for none of them."""


class EnvironmentRecord(msgspec.Struct, frozen=True):
    """What a cell changed around the namespace: sections of the environment, and the history.

    A section (random states, working directory, environment variables, …) travels as a component
    whose name is the section's.
    """

    components: tuple[Component, ...] = ()
    history: HistoryRecord | None = None


EARLY_SECTIONS = frozenset({"env:path", "env:directory", "env:variables", "env:reloads"})
"""Sections that decide what can be imported, so that other components need them first."""


class Delta(msgspec.Struct, frozen=True):
    """What one cell (or message) changed in the namespace and around it.

    `held`: names that cannot travel, complete list as of now. `pending`: names whose newest value
    follows in a StateEntry once its chunks are in the store. `gpu_names`: globals through which
    code reaches a GPU framework, complete list (for the simple rule, `cluster/gpu_rule.py`).
    `environment` is an encoded `EnvironmentRecord`, or empty. `unfinished`: a part of a folded
    history; what follows may refer to definitions to which nothing else refers yet.
    """

    components: tuple[Component, ...] = ()
    deleted: tuple[str, ...] = ()
    environment: bytes = b""
    held: tuple[HeldName, ...] = ()
    pending: tuple[str, ...] = ()
    gpu_names: tuple[str, ...] = ()
    unfinished: bool = False

    def around(self) -> EnvironmentRecord:
        """What it changes around the namespace. Raises msgspec.DecodeError."""
        return _decode_environment(self.environment) if self.environment else EnvironmentRecord()

    def chunk_refs(self) -> tuple[ChunkRef, ...]:
        """Every chunk that must be in the store before an entry with this delta is proposed."""
        return tuple(ref for component in self.components for ref in component.chunk_refs())

    def all_chunk_refs(self) -> tuple[ChunkRef, ...]:
        """Those, and what its environment needs."""
        around = (ref for section in self.around().components for ref in section.chunk_refs())
        return (*self.chunk_refs(), *around)


class EpochEntry(msgspec.Struct, frozen=True, tag="epoch"):
    """A new life of the namespace; everything before it counts for nothing."""

    epoch: int


class LeadEntry(msgspec.Struct, frozen=True, tag="lead"):
    """`replica` runs `cell`; the first one committed for an attempt is the binding one."""

    epoch: int
    cell: CellId
    attempt: int
    replica: ReplicaId


class BallotEntry(msgspec.Struct, frozen=True, tag="ballot"):
    """What `replica` says to an election: LEAD with the `devices` that its host would bind, or
    YIELD for `reason`. Counts only while the attempt is neither led nor given up.
    """

    epoch: int
    cell: CellId
    attempt: int
    replica: ReplicaId
    lead: bool
    devices: tuple[DeviceId, ...] = ()
    reason: str = ""


class ClosedEntry(msgspec.Struct, frozen=True, tag="closed"):
    """The attempt ended: DONE or FAILED with what the cell changed, or LOST with nothing."""

    epoch: int
    cell: CellId
    attempt: int
    replica: ReplicaId
    outcome: Outcome
    delta: Delta | None


class StateEntry(msgspec.Struct, frozen=True, tag="state"):
    """Changes outside a cell (comm messages, callbacks), or late large parts of one.

    Counts only while `after_attempt` is the last attempt that was started and `replica` led it.
    """

    epoch: int
    after_attempt: int
    replica: ReplicaId
    delta: Delta


class RestoredEntry(msgspec.Struct, frozen=True, tag="restored"):
    """One of `parts` pieces of the state with which the log begins: a kernel is brought back.

    `part` counts from 0. Together the pieces are a packed `KernelSnapshot`. They count in their
    order, and only before anything else does.
    """

    part: int
    parts: int
    data: bytes


LogEntry = EpochEntry | LeadEntry | BallotEntry | ClosedEntry | StateEntry | RestoredEntry

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LogEntry)
_decode_environment = msgspec.msgpack.Decoder(EnvironmentRecord).decode


def _mac(kernel: KernelId, body: bytes, key: bytes) -> bytes:
    return hmac.digest(key, len(kernel).to_bytes(2, "big") + kernel.encode() + body, hashlib.sha256)


def encode_entry(kernel: KernelId, entry: LogEntry, key: bytes) -> bytes:
    """Encode and sign an entry with the kernel's log key."""
    body = _encoder.encode(entry)
    return _mac(kernel, body, key) + body


def decode_entry(kernel: KernelId, payload: bytes, key: bytes) -> LogEntry:
    """Check the signature, then decode. Raises CorruptRecord on any mismatch."""
    mac, body = payload[:MAC_BYTES], payload[MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(kernel, body, key)):
        raise CorruptRecord(
            f"a log entry of kernel {kernel} is not signed with its key; it was not used"
        )
    try:
        return _decoder.decode(body)
    except UNREADABLE as error:
        raise CorruptRecord(
            f"a log entry of kernel {kernel} cannot be read by this version: {error}"
        ) from error
