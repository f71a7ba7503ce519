"""Tasks in an order: what hangs on one chain runs one after the other, chains run side by side."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from notebookos_ext.cluster.model import KernelId

log = logging.getLogger(__name__)

Key = tuple[KernelId, str]
"""A kernel and one of its replicas; an empty string is the chain of the kernel itself."""
Work = Coroutine[object, object, None]


class Chains:
    """Owns every task that it starts."""

    def __init__(self) -> None:
        self._tails: dict[Key, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Work) -> asyncio.Task[None]:
        """Run `work` at once, apart from all chains."""
        return self._run(work, work)

    def append(self, key: Key, work: Work, *, after: tuple[Key, ...] = ()) -> None:
        """Run `work` when what is now on its chain, and on the chains `after`, has ended."""
        before = [self._tails[k] for k in (key, *after) if k in self._tails]
        task = self._run(_in_order(before, work), work)
        self._tails[key] = task
        task.add_done_callback(lambda done: self._forget(key, done))

    def _run(self, work: Work, innermost: Work) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(_guarded(work))
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            # A task that is cancelled before its first step leaves what it would have run.
            work.close()
            innermost.close()

        task.add_done_callback(ended)
        return task

    def keys(self, kernel: KernelId) -> tuple[Key, ...]:
        """The chains of a kernel on which something is under way."""
        return tuple(key for key in self._tails if key[0] == kernel)

    async def settled(self, kernel: KernelId) -> None:
        """Until nothing is under way on the kernel's chains."""
        while tails := [self._tails[key] for key in self.keys(kernel)]:
            await asyncio.wait(tails)

    async def cancel(self) -> None:
        """End everything that is under way."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            # Again if need be: Python 3.11's wait_for forgets that it was cancelled when what it
            # waits for comes in the same moment.
            await asyncio.wait(self._tasks, timeout=1.0)

    def _forget(self, key: Key, task: asyncio.Task[None]) -> None:
        if self._tails.get(key) is task:
            del self._tails[key]


async def _in_order(before: list[asyncio.Task[None]], work: Work) -> None:
    if before:
        await asyncio.wait(before)
    await work


async def _guarded(work: Work) -> None:
    try:
        await work
    except Exception:
        log.exception("a task of the controller failed")
