"""Chunks on their way between replicas and the checkpoint store, off the event loop."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Executor
from typing import TypeVar

from notebookos_ext.errors import NotebookOSError, NotFound
from notebookos_ext.storage.base import CheckpointStore, StoreUsage

REMEMBERED_CHUNKS = 16_384

Value = TypeVar("Value")


class Chunks:
    """Starts writes when chunks arrive, and tells later which of them are safely kept."""

    def __init__(self, store: CheckpointStore, executor: Executor) -> None:
        self._store = store
        self._executor = executor
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, NotebookOSError] = {}
        self._kept: OrderedDict[str, None] = OrderedDict()

    def put(self, digest: str, data: bytes, on_done: Callable[[], None]) -> None:
        """Begin to write a chunk; `on_done` is called when it is written or has failed."""
        task = self._writing.get(digest)
        if task is None and digest in self._kept:
            on_done()
            return
        if task is None:
            task = asyncio.create_task(self._write(digest, data))
            self._writing[digest] = task
        task.add_done_callback(lambda _task: on_done())

    async def failures(self, digests: Iterable[str]) -> dict[str, NotebookOSError]:
        """Wait for these chunks; those that are not in the store, with the reason."""
        failed: dict[str, NotebookOSError] = {}
        for digest in dict.fromkeys(digests):
            task = self._writing.get(digest)
            if task is not None:
                await asyncio.wait([task])
            error = self._failed.get(digest)
            if error is None and digest not in self._kept:
                error = await self._find(digest)
            if error is not None:
                failed[digest] = error
        return failed

    async def store(self, digest: str, data: bytes) -> None:
        """Write a chunk of the agent's own and wait for it. Raises StorageError."""
        await self._run(self._store.put, digest, data)

    async def fetch(self, digest: str) -> bytes:
        """The chunk, verified. Raises NotFound, CorruptRecord, StorageError, InvalidRequest."""
        return await self._run(self._store.get, digest)

    async def sweep(self, named: Collection[str], older_than_s: float) -> StoreUsage:
        """Delete old chunks that are not `named`; what went. Raises StorageError."""
        return await self._run(self._store.sweep, frozenset(named), older_than_s)

    def doubt(self) -> None:
        """Somebody may sweep the store: look there before anything is called kept again."""
        self._kept.clear()

    async def _write(self, digest: str, data: bytes) -> None:
        try:
            await self._run(self._store.put, digest, data)
        except NotebookOSError as error:
            self._failed[digest] = error
        else:
            self._failed.pop(digest, None)
            self._kept[digest] = None
            while len(self._kept) > REMEMBERED_CHUNKS:
                self._kept.popitem(last=False)
        finally:
            del self._writing[digest]

    async def _find(self, digest: str) -> NotebookOSError | None:
        try:
            if await self._run(self._store.has, digest):
                return None
        except NotebookOSError as error:
            return error
        return NotFound(f"chunk {digest[:12]}… was never put into the store")

    async def _run(self, call: Callable[..., Value], *arguments: object) -> Value:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *arguments)
