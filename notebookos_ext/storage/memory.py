"""A checkpoint store in this process's memory: for tests, and whatever lives no longer than it."""

from __future__ import annotations

import threading
from collections.abc import Collection

from notebookos_ext.clock import Clock
from notebookos_ext.errors import NotFound, StorageFull
from notebookos_ext.storage.base import StoreUsage, check_chunk, check_digest


class MemoryStore:
    """Chunks in a dictionary. Safe for several threads at once; `capacity_bytes` None: no limit."""

    name = "memory"

    def __init__(self, *, clock: Clock, capacity_bytes: int | None = None) -> None:
        self._clock = clock
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._chunks: dict[str, bytes] = {}
        self._fresh_at: dict[str, float] = {}
        """When each chunk was last put or looked for."""

    def check(self) -> None:
        """See `CheckpointStore.check`."""

    def put(self, digest: str, data: bytes) -> None:
        """See `CheckpointStore.put`; nothing survives this process."""
        check_chunk(digest, data)
        with self._lock:
            if digest not in self._chunks:
                self._require_room(len(data))
                self._chunks[digest] = bytes(data)
            self._fresh_at[digest] = self._clock.now()

    def get(self, digest: str) -> bytes:
        """See `CheckpointStore.get`."""
        check_digest(digest)
        data = self._chunks.get(digest)
        if data is None:
            raise NotFound(f"chunk {digest[:12]}… is not in the store in memory")
        return data

    def has(self, digest: str) -> bool:
        """See `CheckpointStore.has`."""
        check_digest(digest)
        with self._lock:
            if digest not in self._chunks:
                return False
            self._fresh_at[digest] = self._clock.now()
            return True

    def delete(self, digest: str) -> None:
        """See `CheckpointStore.delete`."""
        check_digest(digest)
        with self._lock:
            self._forget(digest)

    def sweep(
        self, named: Collection[str], older_than_s: float, *, dry_run: bool = False
    ) -> StoreUsage:
        """See `CheckpointStore.sweep`."""
        with self._lock:
            before = self._clock.now() - older_than_s
            old = [d for d, at in self._fresh_at.items() if at < before and d not in named]
            size = sum(len(self._chunks[digest]) for digest in old)
            for digest in () if dry_run else old:
                self._forget(digest)
            return StoreUsage(chunks=len(old), size_bytes=size)

    def usage(self) -> StoreUsage:
        """See `CheckpointStore.usage`."""
        with self._lock:
            return StoreUsage(chunks=len(self._chunks), size_bytes=self._size_bytes())

    def _size_bytes(self) -> int:
        return sum(map(len, self._chunks.values()))

    def _require_room(self, size_bytes: int) -> None:
        capacity = self._capacity_bytes
        if capacity is not None and self._size_bytes() + size_bytes > capacity:
            raise StorageFull(f"no space is left in the store in memory ({capacity} bytes)")

    def _forget(self, digest: str) -> None:
        self._fresh_at.pop(digest, None)
        self._chunks.pop(digest, None)
