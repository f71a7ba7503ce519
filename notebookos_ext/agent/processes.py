"""One replica's process: forked by a template, spoken to over its link, stopped, and mourned."""

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

from notebookos_ext.agent.procfs import kill_group, kill_session
from notebookos_ext.agent.reaper import Reaper, exit_words
from notebookos_ext.agent.replica_link import ReplicaLink
from notebookos_ext.agent.templates import Templates, explain_failure, tail
from notebookos_ext.cluster.messages.control import LaunchReplica
from notebookos_ext.cluster.messages.replica import FromReplica, Interrupt, ReplicaHello, Stop
from notebookos_ext.cluster.messages.startup import ForkReplica
from notebookos_ext.cluster.model import CellId
from notebookos_ext.errors import LaunchFailed

log = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 60.0
"""A template that still imports torch on a busy machine may take this long."""
MUTE_GRACE_S = 5.0
"""A replica that closed its link but lives on is of no use."""
LAST_WORDS_S = 1.0
LOG_BYTES = 1 << 20


class ReplicaProcess:
    """A replica process. `ended` becomes the words for how, after its last bytes were read."""

    def __init__(
        self,
        launch: LaunchReplica,
        connection: socket.socket,
        *,
        reaper: Reaper,
        on_message: Callable[[FromReplica], None],
        on_room: Callable[[], None],
    ) -> None:
        self.launch = launch
        self.pid = 0
        self.stop_requested = False
        self.log_start = 0
        """Where in its log file this process began to write."""
        loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[ReplicaHello] = loop.create_future()
        self.ended: asyncio.Future[str] = loop.create_future()
        self._reaper = reaper
        self._on_message = on_message
        self.link = ReplicaLink(
            connection,
            name=f"replica {launch.replica}",
            on_message=self._receive,
            on_room=on_room,
            on_closed=self._link_closed,
        )

    @property
    def is_alive(self) -> bool:
        """Whether the process is known and has not ended."""
        return self.pid != 0 and not self.ended.done()

    def interrupt(self, cell: CellId | None) -> None:
        """SIGINT for the replica and for what its user code started, as Jupyter does it."""
        if cell is not None:
            self.link.send(Interrupt(cell))
        if self.is_alive:
            kill_group(self.pid, signal.SIGINT)

    async def stop(self, grace_s: float) -> None:
        """End it: a message, SIGTERM halfway through the grace, then SIGKILL for its group."""
        self.stop_requested = True
        if not self.is_alive:
            return
        self.link.send(Stop())
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.ended), grace_s / 2)
            if self.ended.done():
                return
            kill_group(self.pid, number)
        await asyncio.shield(self.ended)

    def kill(self) -> None:
        """SIGKILL for it and its group, at once."""
        if self.is_alive:
            kill_group(self.pid, signal.SIGKILL)

    def _receive(self, message: FromReplica) -> None:
        hello = message.body
        if not isinstance(hello, ReplicaHello):
            self._on_message(message)
        elif not self.greeted.done():
            self.pid = hello.pid
            self.greeted.set_result(hello)
            self._reaper.watch(hello.pid, self._exited)

    def _exited(self, status: int) -> None:
        # What it wrote before it died counts.
        self.link.drain()
        self.link.close()
        kill_group(self.pid, signal.SIGKILL)
        self.ended.set_result(exit_words(status))
        # Children that chose a group of their own are still in its session.
        asyncio.get_running_loop().run_in_executor(None, kill_session, self.pid)

    def _link_closed(self) -> None:
        if not self.greeted.done():
            self.greeted.set_exception(LaunchFailed("the replica ended before it was there"))
            self.greeted.exception()
        elif not self.ended.done():
            asyncio.get_running_loop().call_later(MUTE_GRACE_S, self.kill)


async def start_replica(
    launch: LaunchReplica,
    *,
    templates: Templates,
    reaper: Reaper,
    socket_folder: Path,
    log_path: Path,
    on_message: Callable[[FromReplica], None],
    on_room: Callable[[], None],
) -> ReplicaProcess:
    """Fork a replica and wait for its first message. Raises LaunchFailed with a sentence."""
    template = templates.get(launch.python)
    ours, theirs = socket.socketpair()
    process = ReplicaProcess(launch, ours, reaper=reaper, on_message=on_message, on_room=on_room)
    try:
        with theirs:
            log_file = open_log(log_path)
            process.log_start = os.fstat(log_file).st_size
            try:
                request = ForkReplica(
                    launch=launch, socket_folder=str(socket_folder), agent_pid=os.getpid()
                )
                await template.fork(request, theirs.fileno(), log_file)
            finally:
                os.close(log_file)
        signs: list[asyncio.Future[Any]] = [process.greeted, template.ended]
        await asyncio.wait(
            signs,
            timeout=HELLO_TIMEOUT_S,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if process.greeted.done() and process.greeted.exception() is None:
            return process
        # The link of a template that died ends first, its exit status comes a moment later.
        await asyncio.wait([template.ended], timeout=LAST_WORDS_S)
        if template.ended.done():
            raise LaunchFailed(template.ended.result())
        if process.greeted.done():
            words = "ended before its first message"
            said = tail(log_path, process.log_start)
            raise LaunchFailed(explain_failure(launch.python, said, words))
        raise LaunchFailed(
            f"{launch.python} did not start a replica within {HELLO_TIMEOUT_S:g} s",
            hint=f"Its output is in {template.log_path}.",
        )
    except BaseException:
        process.link.close()
        raise


def open_log(path: Path) -> int:
    """Open a replica's log for appending; a long one starts anew. Raises LaunchFailed."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        if path.exists() and path.stat().st_size > LOG_BYTES:
            flags |= os.O_TRUNC
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise LaunchFailed(
            f"the replica's log {path} cannot be written: {error.strerror}"
        ) from error
