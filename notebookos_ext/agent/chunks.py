"""Chunks on their way between replicas and the checkpoint store, off the event loop.

A call that fails is repeated with growing pauses for some seconds, then whoever waits is told. From
then on the store is looked at again and again; when it works, those who had to give up are asked to
send once more what they have. Meanwhile no write is repeated: cells must not wait for a dead store.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from concurrent.futures import Executor
from typing import TypeVar

from notebookos_ext.agent.store_health import Kind, Patience, StoreHealth
from notebookos_ext.clock import Clock
from notebookos_ext.cluster.messages.control import StoreReport
from notebookos_ext.errors import CorruptRecord, NotebookOSError, NotFound, StorageError
from notebookos_ext.storage.base import CheckpointStore, StoreUsage

REMEMBERED_CHUNKS = 16_384
TRUSTED_S = 600.0
"""So long a chunk that was written or found counts as kept; later the store is asked again. Much
less than what a sweep spares: what a commit counts on is never old."""
LOOSE_S = 24 * 3600.0
"""So long a chunk that was put, but that no log names yet, is kept from sweeps: a large variable
may take long on its way."""

Value = TypeVar("Value")


class Chunks:
    """Starts writes when chunks arrive, and tells later which of them are safely kept."""

    def __init__(
        self,
        store: CheckpointStore,
        executor: Executor,
        *,
        clock: Clock,
        rng: random.Random,
        patience: Patience = Patience(),  # noqa: B008 - frozen
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_change: Callable[[StoreReport], None] = lambda _report: None,
        on_back: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_change` is told when the store stops or begins to work.

        `on_back` asks for what could not be written, and says whether anything comes.
        """
        self._store = store
        self._executor = executor
        self._clock = clock
        self._rng = rng
        self._patience = patience
        self._sleep = sleep
        self._on_change = on_change
        self._on_back = on_back
        self._health = StoreHealth(clock, self._health_changed)
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._waiting_bytes = 0
        self._failed: dict[str, NotebookOSError] = {}
        self._kept: OrderedDict[str, float] = OrderedDict()
        """When each was last written or found, by the monotonic clock."""
        self._loose: OrderedDict[str, float] = OrderedDict()
        """When each was put that no commit named yet."""
        self._looking: asyncio.Task[None] | None = None

    # ---- how it is -------------------------------------------------------------------------------

    def report(self) -> StoreReport:
        """How the store is, and what waits for it."""
        return self._health.report(len(self._writing), self._waiting_bytes)

    def check_soon(self) -> None:
        """Look whether the store can be used; what is wrong is told by `on_change`."""
        self._look()

    def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()

    def _health_changed(self) -> None:
        self._on_change(self.report())

    def _note_failure(self, kind: Kind, error: StorageError) -> None:
        self._health.failed(kind, error)
        self._look()

    def _look(self) -> None:
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_until_it_works())
            self._looking.add_done_callback(self._looked)

    async def _look_until_it_works(self) -> None:
        for pause_s in self._patience.pauses(self._rng):
            try:
                await self._run(self._store.check)
            except StorageError as error:
                self._health.failed(Kind.READ, error)
            else:
                self._health.worked(Kind.READ)
                if not self._on_back():
                    self._health.worked(Kind.WRITE)
                    return
                # What comes now shows whether it can be written, too.
            await self._sleep(pause_s)

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._looking = None
        if not task.cancelled():
            task.result()

    # ---- chunks ----------------------------------------------------------------------------------

    def put(self, digest: str, data: bytes, on_done: Callable[[], None]) -> None:
        """Begin to write a chunk; `on_done` is called when it is written or has failed."""
        _remember(self._loose, digest, self._clock.monotonic())
        task = self._writing.get(digest)
        if task is None and self._is_kept(digest):
            on_done()
            return
        if task is None:
            task = asyncio.create_task(self._write(digest, data))
            self._writing[digest] = task
            self._waiting_bytes += len(data)
        task.add_done_callback(lambda _task: on_done())

    async def failures(self, digests: Iterable[str]) -> dict[str, NotebookOSError]:
        """Wait for these chunks; those that are not in the store, with the reason.

        Returns sooner when nothing at all is written for a while: cells must go on.
        """
        failed: dict[str, NotebookOSError] = {}
        unknown: list[str] = []
        for digest in dict.fromkeys(digests):
            error = await self._written(digest)
            if error is not None:
                failed[digest] = error
            elif not self._is_kept(digest):
                unknown.append(digest)
        found = await asyncio.gather(*map(self._find, unknown))
        failed |= {d: error for d, error in zip(unknown, found, strict=True) if error is not None}
        return failed

    async def _written(self, digest: str) -> NotebookOSError | None:
        """Wait for its write, if one is under way; why the last one failed, if it did."""
        task = self._writing.get(digest)
        while task is not None and not task.done():
            # Any of them: while one after the other is written, this one's turn will come.
            done, _ = await asyncio.wait(
                {task, *self._writing.values()},
                timeout=self._patience.stall_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not done:
                return StorageError(
                    f"the checkpoint store {self._store.name} has taken nothing for "
                    f"{self._patience.stall_s:g} s"
                )
        return self._failed.get(digest)

    async def store(self, digest: str, data: bytes) -> None:
        """Write a chunk of the agent's own and wait for it. Raises StorageError."""
        await self._repeated(Kind.WRITE, self._store.put, digest, data)
        self._health.worked(Kind.WRITE, len(data))

    async def fetch(self, digest: str) -> bytes:
        """The chunk, verified. Raises NotFound, CorruptRecord, StorageError, InvalidRequest."""
        try:
            data = await self._repeated(Kind.READ, self._store.get, digest)
        except CorruptRecord as damaged:
            # It may have been damaged on its way. If not, it was set aside, and is not found.
            try:
                data = await self._repeated(Kind.READ, self._store.get, digest)
            except NotFound:
                raise damaged from None
        self._health.worked(Kind.READ, len(data))
        return data

    async def sweep(
        self, named: Collection[str], older_than_s: float, *, dry_run: bool
    ) -> StoreUsage:
        """Delete old chunks that are not `named`; what went. Raises StorageError."""
        sweep = functools.partial(self._store.sweep, dry_run=dry_run)
        return await self._run(sweep, frozenset(named), older_than_s)

    def doubt(self) -> None:
        """Somebody may sweep the store: look there before anything is called kept again."""
        self._kept.clear()

    def committed(self, digests: Iterable[str]) -> None:
        """A log names these now."""
        for digest in digests:
            self._loose.pop(digest, None)

    def loose(self) -> list[str]:
        """Chunks that were put and that no commit of this host named yet."""
        since = self._clock.monotonic() - LOOSE_S
        return [digest for digest, at in self._loose.items() if at >= since]

    def _is_kept(self, digest: str) -> bool:
        at = self._kept.get(digest)
        return at is not None and self._clock.monotonic() - at < TRUSTED_S

    async def _write(self, digest: str, data: bytes) -> None:
        began_at = self._clock.monotonic()
        try:
            await self._repeated(Kind.WRITE, self._store.put, digest, data)
        except NotebookOSError as error:
            self._failed[digest] = error
        else:
            self._health.worked(Kind.WRITE, len(data))
            self._failed.pop(digest, None)
            _remember(self._kept, digest, began_at)
        finally:
            self._waiting_bytes -= len(data)
            del self._writing[digest]

    async def _find(self, digest: str) -> NotebookOSError | None:
        began_at = self._clock.monotonic()
        try:
            if await self._repeated(Kind.READ, self._store.has, digest):
                _remember(self._kept, digest, began_at)
                return None
        except NotebookOSError as error:
            return error
        return NotFound(f"chunk {digest[:12]}… was never put into the store")

    # ---- the store -------------------------------------------------------------------------------

    async def _repeated(self, kind: Kind, call: Callable[..., Value], *arguments: object) -> Value:
        """Call the store; a failure of the store is repeated, unless that is known already."""
        known = self._health.fails_to(kind)
        give_up_at = self._clock.monotonic() + self._patience.repeat_s
        pauses: Iterator[float] = self._patience.pauses(self._rng)
        while True:
            try:
                return await self._run(call, *arguments)
            except CorruptRecord:
                raise
            except StorageError as error:
                if known or self._clock.monotonic() >= give_up_at:
                    self._note_failure(kind, error)
                    raise
            await self._sleep(next(pauses))

    async def _run(self, call: Callable[..., Value], *arguments: object) -> Value:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *arguments)


def _remember(chunks: OrderedDict[str, float], digest: str, at: float) -> None:
    chunks.pop(digest, None)
    chunks[digest] = at
    while len(chunks) > REMEMBERED_CHUNKS:
        chunks.popitem(last=False)
