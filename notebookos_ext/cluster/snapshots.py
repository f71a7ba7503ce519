"""What a snapshot of a kernel's log holds, and how it is signed.

It is everything that a host agent makes of the entries up to `index`: the ledger, the verdicts and
outcomes of not long ago, and the namespace as folded deltas. Like entries it is signed with the
kernel's log key, since it too reaches replicas' unpicklers and comes from other hosts.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from notebookos_ext.cluster.entries import MAC_BYTES
from notebookos_ext.cluster.folding import FoldedDelta
from notebookos_ext.cluster.ledger import LedgerState
from notebookos_ext.cluster.model import KernelId, Outcome
from notebookos_ext.errors import CorruptRecord

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
    body = _encode(snapshot)
    return _mac(kernel, body, key) + body


def decode_snapshot(kernel: KernelId, payload: bytes, key: bytes) -> KernelSnapshot:
    """Check the signature, then decode. Raises CorruptRecord on any mismatch."""
    view = memoryview(payload)
    if not hmac.compare_digest(view[:MAC_BYTES], _mac(kernel, view[MAC_BYTES:], key)):
        raise CorruptRecord(
            f"a snapshot of kernel {kernel} is not signed with its key; it was not used"
        )
    try:
        version = _decode_version(view[MAC_BYTES:]).version
        if version != FORMAT_VERSION:
            raise CorruptRecord(
                f"a snapshot of kernel {kernel} has format {version}, but this version reads "
                f"{FORMAT_VERSION}; use the version that wrote it"
            )
        return _decode(view[MAC_BYTES:])
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"a snapshot of kernel {kernel} cannot be read: {error}") from error


def _mac(kernel: KernelId, body: bytes | memoryview, key: bytes) -> bytes:
    mac = hmac.new(key, _PURPOSE + kernel.encode() + b"\0", hashlib.sha256)
    mac.update(body)
    return mac.digest()
