"""The control socket: one controller at a time commands this agent, once it proved the token.

A connection is greeted with a nonce and must answer with the right proof; then its requests run
side by side and are answered by number. A second controller takes over from the first. Notices
wait, up to a bound, while nobody is attached.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import secrets
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

from notebookos_ext.cluster.frames import FrameDecoder, encode_frame
from notebookos_ext.cluster.messages.control import (
    PROTOCOL_VERSION,
    AgentAnswer,
    AgentNotice,
    AgentRequest,
    Attach,
    Attached,
    Challenge,
    Failure,
    FromAgent,
    ToAgent,
)
from notebookos_ext.errors import InvalidSettings, NotebookOSError, ProtocolError, Refused

log = logging.getLogger(__name__)

NONCE_BYTES = 32
HANDSHAKE_S = 10.0
STRANGER_BYTES = 16 * 1024
"""An Attach is far shorter; who has not proved anything may not fill our memory."""
STRANGERS_MAX = 32
NOTICES_KEPT = 1000
UNREAD_BYTES = 64 << 20
"""A controller that leaves so much unread is given up."""


class ControlServer:
    """Listens at `path`. `attach` adopts a controller, `handle` carries out everything else."""

    def __init__(
        self,
        path: Path,
        token: bytes,
        *,
        attach: Callable[[Attach], Attached],
        handle: Callable[[AgentRequest], Awaitable[AgentAnswer]],
    ) -> None:
        self._path = path
        self._token = token
        self._attach = attach
        self._handle = handle
        self._server: asyncio.Server | None = None
        self._controller: _Connection | None = None
        self._strangers: set[_Connection] = set()
        self._kept: deque[AgentNotice] = deque(maxlen=NOTICES_KEPT)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. Raises InvalidSettings when a living agent serves the path already."""
        listener = _bind(self._path)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Connection(self), sock=listener)

    def notify(self, notice: AgentNotice) -> None:
        """Tell the controller, now or as soon as one attaches."""
        if self._controller is None or not self._controller.is_open:
            self._kept.append(notice)
        else:
            self._controller.send(0, notice)

    async def close(self) -> None:
        """Let running requests end and their answers go out, then close everything."""
        if self._server is not None:
            self._server.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=HANDSHAKE_S)
        for connection in (self._controller, *self._strangers):
            if connection is not None:
                connection.close()
        self._path.unlink(missing_ok=True)

    # ---- what connections report --------------------------------------------------------------

    def admit(self, connection: _Connection) -> bool:
        """A stranger connected; False when there are too many of them."""
        if len(self._strangers) >= STRANGERS_MAX:
            return False
        self._strangers.add(connection)
        return True

    def prove(self, connection: _Connection, request: ToAgent) -> None:
        """The first request of a stranger. Raises Refused, ProtocolError, InvalidRequest."""
        attach = request.body
        if not isinstance(attach, Attach):
            raise ProtocolError("the first request on a control connection must be Attach")
        expected = hmac.digest(self._token, connection.nonce, hashlib.sha256)
        if not hmac.compare_digest(expected, attach.proof):
            raise Refused("the controller does not know this cluster's token")
        if attach.version != PROTOCOL_VERSION:
            raise Refused(
                f"this host agent speaks version {PROTOCOL_VERSION} of the control protocol, "
                f"the controller version {attach.version}; end the agent and start it anew"
            )
        answer = self._attach(attach)
        self._strangers.discard(connection)
        if self._controller is not None:
            log.info("controller %s takes over", attach.controller)
            self._controller.close()
        self._controller = connection
        connection.send(request.sequence, answer)
        while self._kept:
            connection.send(0, self._kept.popleft())

    def run(self, connection: _Connection, request: ToAgent) -> None:
        """A request of the controller: carried out beside the others."""
        task = asyncio.create_task(self._run(connection, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def gone(self, connection: _Connection) -> None:
        """A connection ended."""
        self._strangers.discard(connection)
        if self._controller is connection:
            log.info("the controller's connection ended")
            self._controller = None

    async def _run(self, connection: _Connection, request: ToAgent) -> None:
        body = request.body
        answer: AgentAnswer
        try:
            # Attach on a connection that is attached starts the lease anew, like RenewLease.
            answer = self._attach(body) if isinstance(body, Attach) else await self._handle(body)
        except NotebookOSError as error:
            log.info("%s failed: %s", type(body).__name__, error)
            answer = failure(error)
        except Exception as error:
            # The agent must outlive a mistake in one request.
            log.exception("%s failed", type(body).__name__)
            answer = Failure(
                error="NotebookOSError",
                message=f"the host agent failed at {type(body).__name__}: {error!r}",
                hint="Its log says more.",
            )
        connection.send(request.sequence, answer)


def failure(error: NotebookOSError) -> Failure:
    """An error as an answer."""
    return Failure(error=type(error).__name__, message=error.message, hint=error.hint)


class _Connection(asyncio.Protocol):
    """One control connection, first a stranger's, then the controller's."""

    def __init__(self, server: ControlServer) -> None:
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self._server = server
        self._decoder: FrameDecoder[ToAgent] = FrameDecoder(ToAgent)
        self._transport: asyncio.Transport | None = None
        self._proven = False
        self._stranger_bytes = 0
        self._patience: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether what is sent can still arrive."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, sequence: int, body: AgentAnswer | AgentNotice) -> None:
        """Write an answer or (0) a notice; to a closed connection it goes nowhere."""
        transport = self._transport
        if transport is None or not self.is_open:
            return
        transport.write(encode_frame(FromAgent(sequence=sequence, body=body)))
        if transport.get_write_buffer_size() > UNREAD_BYTES:
            log.warning("the controller does not read; its connection is closed")
            transport.abort()

    def close(self) -> None:
        """End it when all that was sent is written."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what the unix server makes
        self._transport = transport
        if not self._server.admit(self):
            transport.abort()
            return
        self._patience = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.close)
        self.send(0, Challenge(nonce=self.nonce))

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        if not self._proven:
            self._stranger_bytes += len(data)
            if self._stranger_bytes > STRANGER_BYTES:
                self.close()
                return
        try:
            for request in self._decoder.feed(data):
                if not self.is_open:
                    return
                self._take(request)
        except ProtocolError as error:
            log.warning("a control connection is closed: %s", error)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Called by asyncio."""
        if self._patience is not None:
            self._patience.cancel()
        self._server.gone(self)

    def _take(self, request: ToAgent) -> None:
        if self._proven:
            self._server.run(self, request)
            return
        try:
            self._server.prove(self, request)
        except NotebookOSError as error:
            log.warning("a controller was refused: %s", error)
            self.send(request.sequence, failure(error))
            self.close()
            return
        self._proven = True
        if self._patience is not None:
            self._patience.cancel()


def _bind(path: Path) -> socket.socket:
    """A listener only the user can reach, replacing the socket file of an agent that died."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
        else:
            raise InvalidSettings(
                f"a living host agent already serves {path}; end it or use another socket folder"
            )
    listener = socket.socket(socket.AF_UNIX)
    # It listens before it has its name: whoever sees the name can connect.
    unnamed = path.with_suffix(".new")
    before = os.umask(0o177)
    try:
        unnamed.unlink(missing_ok=True)
        listener.bind(str(unnamed))
        listener.listen()
        unnamed.rename(path)
    except OSError as error:
        listener.close()
        raise InvalidSettings(
            f"the control socket {path} cannot be made: {error.strerror}"
        ) from error
    finally:
        os.umask(before)
    return listener
