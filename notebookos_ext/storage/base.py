"""The checkpoint store's contract: immutable chunks, named by their digest.

Every backend passes the same tests (`tests/storage/contract.py`). The calls block; an event loop
runs them in a thread.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Protocol

import msgspec

from notebookos_ext.cluster.digests import chunk_digest
from notebookos_ext.errors import CorruptRecord, InvalidRequest

_DIGEST = re.compile(r"[0-9a-f]{64}")


class StoreUsage(msgspec.Struct, frozen=True):
    """How much a store holds."""

    chunks: int
    size_bytes: int


class CheckpointStore(Protocol):
    """Where large parts of a namespace are kept. A chunk never changes."""

    @property
    def name(self) -> str:
        """What people call it: a folder's path or an address, with no secrets in it."""
        ...

    def check(self) -> None:
        """Whether it can be used now. Raises StorageError with why it cannot."""
        ...

    def put(self, digest: str, data: bytes) -> None:
        """Keep `data`; when it returns the chunk survives a crash. Putting it again does nothing.

        Raises CorruptRecord when `data` does not have this digest, StorageFull, StorageError.
        """
        ...

    def get(self, digest: str) -> bytes:
        """The chunk's bytes, verified. Raises NotFound, CorruptRecord, StorageError."""
        ...

    def has(self, digest: str) -> bool:
        """Whether `get` would find the chunk; a sweep then spares it for a while.

        Raises StorageError.
        """
        ...

    def delete(self, digest: str) -> None:
        """Forget the chunk; one that is not there is no error. Raises StorageError."""
        ...

    def sweep(
        self, named: Collection[str], older_than_s: float, *, dry_run: bool = False
    ) -> StoreUsage:
        """Delete chunks not `named` that were not put or looked for so long; what was deleted.

        Ages are those at the beginning of the sweep. With `dry_run` nothing is deleted; the answer
        says what would be.

        Raises StorageError.
        """
        ...

    def usage(self) -> StoreUsage:
        """Count what is kept; reads the whole listing, so not for hot paths."""
        ...


def check_digest(digest: str) -> None:
    """Refuse anything that is not a digest: it becomes part of a path. Raises InvalidRequest."""
    if not _DIGEST.fullmatch(digest):
        raise InvalidRequest(f"{digest[:80]!r} is not a chunk digest (64 lower-case hex digits)")


def check_chunk(digest: str, data: bytes) -> None:
    """Hold `data` against the digest that names it. Raises InvalidRequest, CorruptRecord."""
    check_digest(digest)
    if chunk_digest(data) != digest:
        raise CorruptRecord(
            f"chunk {digest[:12]}… does not match its digest; its {len(data)} bytes were not used"
        )
