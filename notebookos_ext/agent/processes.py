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

from notebookos_ext.agent.prewarmed import HELLO_TIMEOUT_S, LAST_WORDS_S, Prewarmed
from notebookos_ext.agent.procfs import kill_group, kill_session
from notebookos_ext.agent.reaper import Reaper, exit_words
from notebookos_ext.agent.replica_link import ReplicaLink
from notebookos_ext.agent.templates import Templates, explain_failure, open_log, send_first, tail
from notebookos_ext.cluster.frames import encode_frame
from notebookos_ext.cluster.messages.control import LaunchReplica
from notebookos_ext.cluster.messages.replica import FromReplica, Interrupt, ReplicaHello, Stop
from notebookos_ext.cluster.messages.startup import BecomeReplica, ForkReplica
from notebookos_ext.cluster.model import CellId
from notebookos_ext.errors import LaunchFailed

log = logging.getLogger(__name__)

MUTE_GRACE_S = 5.0
"""A replica that closed its link but lives on is of no use."""


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
    prewarmed: Prewarmed | None = None,
) -> ReplicaProcess:
    """Fork a replica and wait for its first message. Raises LaunchFailed with a sentence.

    `prewarmed`, which this takes over, becomes the replica if it still can.
    """
    if prewarmed is not None:
        found = ReplicaProcess(
            launch, prewarmed.connection, reaper=reaper, on_message=on_message, on_room=on_room
        )
        if await _become(found, prewarmed, log_path):
            return found
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


async def _become(process: ReplicaProcess, prewarmed: Prewarmed, log_path: Path) -> bool:
    """Make a pre-warmed replica this one; False when it is gone or does not answer."""
    log_file = open_log(log_path)
    done = False
    try:
        process.log_start = os.fstat(log_file).st_size
        frame = encode_frame(BecomeReplica(launch=process.launch))
        # Not through the link, which passes no descriptors; it has nothing to send before.
        sent = await send_first(prewarmed.connection, frame, [log_file])
        await asyncio.get_running_loop().sock_sendall(prewarmed.connection, frame[sent:])
        await asyncio.wait([process.greeted], timeout=HELLO_TIMEOUT_S)
        done = process.greeted.done() and process.greeted.exception() is None
    except OSError as error:
        log.info("pre-warmed replica %d is gone: %s", prewarmed.pid, error)
    finally:
        os.close(log_file)
        if not done:
            log.warning("pre-warmed replica %d did not become one", prewarmed.pid)
            process.link.close()
            prewarmed.end()
    return done
