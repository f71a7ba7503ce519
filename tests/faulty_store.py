"""A checkpoint store that fails as real ones do: away, slow, full, forgetful, full of garbage."""

from __future__ import annotations

import threading
from collections.abc import Collection

from notebookos_ext.clock import Clock, VirtualClock
from notebookos_ext.cluster.digests import chunk_digest
from notebookos_ext.errors import CorruptRecord, StorageError
from notebookos_ext.storage.base import StoreUsage, check_chunk
from notebookos_ext.storage.memory import MemoryStore

AWAY = "the store cannot be reached"


class FaultyStore:
    """A store in memory, with switches. Every call is noted, in order."""

    name = "faulty"

    def __init__(self, clock: Clock | None = None, capacity_bytes: int | None = None) -> None:
        self.inner = MemoryStore(clock=clock or VirtualClock(), capacity_bytes=capacity_bytes)
        self.calls: list[str] = []
        self.away = False
        self.failures = 0
        """So many calls fail first."""
        self.open = threading.Event()
        """Cleared: calls hang."""
        self.open.set()
        self.loses: set[str] = set()
        """Digests whose writes are acknowledged and lost."""
        self.garbage: dict[str, list[bytes]] = {}
        """What the next reads give instead."""

    def _call(self, what: str) -> None:
        self.calls.append(what)
        self.open.wait(60)
        if self.failures:
            self.failures -= 1
            raise StorageError(AWAY)
        if self.away:
            raise StorageError(AWAY)

    def check(self) -> None:
        self._call("check")

    def put(self, digest: str, data: bytes) -> None:
        self._call("put")
        if digest in self.loses:
            check_chunk(digest, data)
            return
        self.inner.put(digest, data)

    def get(self, digest: str) -> bytes:
        self._call("get")
        if self.garbage.get(digest):
            data = self.garbage[digest].pop(0)
            if chunk_digest(data) != digest:
                raise CorruptRecord(f"chunk {digest[:12]}… does not match its digest")
        return self.inner.get(digest)

    def has(self, digest: str) -> bool:
        self._call("has")
        return self.inner.has(digest)

    def delete(self, digest: str) -> None:
        self._call("delete")
        self.inner.delete(digest)

    def sweep(
        self, named: Collection[str], older_than_s: float, *, dry_run: bool = False
    ) -> StoreUsage:
        self._call("sweep")
        return self.inner.sweep(named, older_than_s, dry_run=dry_run)

    def usage(self) -> StoreUsage:
        return self.inner.usage()
