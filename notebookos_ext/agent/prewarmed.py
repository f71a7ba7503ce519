"""Pre-warmed replicas of a host: forked before anybody needs them, they wait to be told who to be.

The scheduler counts them and says how many to start and to end; which interpreter they are of
follows what was launched last. Whoever takes one gets the process with its link; one that dies
meanwhile is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from notebookos_ext.agent.procfs import kill
from notebookos_ext.agent.reaper import Reaper, exit_words
from notebookos_ext.agent.templates import Template, Templates, open_log
from notebookos_ext.cluster.frames import FrameDecoder
from notebookos_ext.cluster.messages.control import AgentNotice, PrewarmedExited, PrewarmedReady
from notebookos_ext.cluster.messages.replica import FromReplica
from notebookos_ext.cluster.messages.startup import ForkReplica
from notebookos_ext.errors import LaunchFailed, ProtocolError

log = logging.getLogger(__name__)

READ_BYTES = 1 << 16
HELLO_TIMEOUT_S = 60.0
"""A template that still imports torch on a busy machine may take this long."""
LAST_WORDS_S = 1.0


class Prewarmed:
    """One process that waits. `connection` is the agent's end of its link."""

    def __init__(self, python: str, pid: int, connection: socket.socket) -> None:
        self.python = python
        self.pid = pid
        self.connection = connection

    def end(self) -> None:
        """End it: it exits when its link closes, and for certain by a signal."""
        self.connection.close()
        kill(self.pid, signal.SIGKILL)


class PrewarmedPool:
    """The pre-warmed replicas of one host, on the agent's event loop."""

    def __init__(
        self,
        *,
        templates: Templates,
        reaper: Reaper,
        socket_folder: Path,
        log_path: Path,
        python: str,
        notify: Callable[[AgentNotice], None],
    ) -> None:
        """`python` is the interpreter of those that are started before anything is launched."""
        self._templates = templates
        self._reaper = reaper
        self._socket_folder = socket_folder
        self._log_path = log_path
        self._python = python
        self._notify = notify
        self._ready: list[Prewarmed] = []
        self._starting: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """How many are ready."""
        return len(self._ready)

    def start(self, count: int) -> None:
        """Start more of them; what comes of each is told."""
        for _ in range(count):
            task = asyncio.create_task(self._start())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    def stop(self, count: int) -> None:
        """End some, those first that are of no use to what is launched lately."""
        for _ in range(min(count, len(self._ready))):
            self._pull(lambda python: python != self._python).end()

    def take(self, python: str) -> Prewarmed | None:
        """One of this interpreter, which is the caller's from now on.

        Where there is none another one ends: one less is what the scheduler counts on. What is
        started from now on is of this interpreter.
        """
        self._python = python
        if not self._ready:
            return None
        found = self._pull(lambda candidate: candidate == python)
        if found.python == python:
            return found
        found.end()
        return None

    def clear(self) -> None:
        """End them all, without a word: whoever counted them is gone."""
        for task in self._starting:
            task.cancel()
        self.stop(len(self._ready))

    def _pull(self, preferred: Callable[[str], bool]) -> Prewarmed:
        found = next((p for p in self._ready if preferred(p.python)), self._ready[0])
        self._ready.remove(found)
        self._reaper.unwatch(found.pid)
        return found

    async def _start(self) -> None:
        try:
            found = await self._fork()
        except LaunchFailed as error:
            log.warning("no pre-warmed replica: %s", error)
            self._notify(PrewarmedExited(ready=False, reason=error.message))
            return
        self._ready.append(found)
        self._notify(PrewarmedReady(pid=found.pid))
        self._reaper.watch(found.pid, lambda status: self._exited(found, status))

    def _exited(self, found: Prewarmed, status: int) -> None:
        if found not in self._ready:
            return
        self._ready.remove(found)
        found.connection.close()
        words = exit_words(status)
        log.warning("pre-warmed replica %d %s", found.pid, words)
        self._notify(PrewarmedExited(ready=True, reason=words))

    async def _fork(self) -> Prewarmed:
        python = self._python
        template = self._templates.get(python)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                log_file = open_log(self._log_path)
                try:
                    request = ForkReplica(
                        launch=None, socket_folder=str(self._socket_folder), agent_pid=os.getpid()
                    )
                    await template.fork(request, theirs.fileno(), log_file)
                finally:
                    os.close(log_file)
            return Prewarmed(python, await _greeting(ours, template), ours)
        except BaseException:
            ours.close()
            raise


async def _greeting(connection: socket.socket, template: Template) -> int:
    """The process id that a pre-warmed replica says. Raises LaunchFailed when it says none."""
    hearing = asyncio.create_task(_hear(connection))
    try:
        signs: list[asyncio.Future[Any]] = [hearing, template.ended]
        await asyncio.wait(signs, timeout=HELLO_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if hearing.done() and hearing.exception() is None:
            return hearing.result()
        # The link of a template that died ends first, its exit status comes a moment later.
        await asyncio.wait([template.ended], timeout=LAST_WORDS_S)
        if template.ended.done():
            raise LaunchFailed(template.ended.result())
        if hearing.done():
            return hearing.result()
        raise LaunchFailed(
            f"{template.python} did not start a pre-warmed replica within {HELLO_TIMEOUT_S:g} s"
        )
    finally:
        hearing.cancel()
        with contextlib.suppress(asyncio.CancelledError, LaunchFailed):
            await hearing


async def _hear(connection: socket.socket) -> int:
    decoder: FrameDecoder[FromReplica] = FrameDecoder(FromReplica)
    loop = asyncio.get_running_loop()
    try:
        while data := await loop.sock_recv(connection, READ_BYTES):
            for message in decoder.feed(data):
                return int(getattr(message.body, "pid", 0))
    except (OSError, ProtocolError) as error:
        raise LaunchFailed(f"a pre-warmed replica said nothing: {error}") from error
    raise LaunchFailed("a pre-warmed replica ended before it was there")
