"""The controller's end of one control connection to a host agent.

Lives on the controller's event loop. It proves to know the cluster token, pairs answers with
requests by their sequence number, and hands notices on in the order in which they came. What a
lost connection means is for the controller to decide.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from typing import Any, TypeVar

from notebookos_ext import errors
from notebookos_ext.cluster.frames import FrameDecoder, encode_frame
from notebookos_ext.cluster.messages.control import (
    AgentAnswer,
    AgentNotice,
    AgentRequest,
    AgentWarning,
    Attach,
    Attached,
    AttemptEnded,
    BallotCommitted,
    Challenge,
    Failure,
    FromAgent,
    NamespaceReport,
    PrewarmedExited,
    PrewarmedReady,
    ReplicaExited,
    ReplicaProgress,
    ReplicaReady,
    ToAgent,
)
from notebookos_ext.errors import AgentUnreachable, NotebookOSError, ProtocolError

_NOTICES = (
    ReplicaReady,
    ReplicaExited,
    PrewarmedReady,
    PrewarmedExited,
    BallotCommitted,
    AttemptEnded,
    NamespaceReport,
    ReplicaProgress,
    AgentWarning,
)

Answer = TypeVar("Answer")


class AgentClient(asyncio.Protocol):
    """One connection; not reusable once lost."""

    def __init__(
        self,
        *,
        on_notice: Callable[[AgentNotice], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._on_notice = on_notice
        self._on_lost = on_lost
        self._decoder: FrameDecoder[FromAgent] = FrameDecoder(FromAgent)
        self._transport: asyncio.Transport | None = None
        self._challenge: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting: dict[int, asyncio.Future[AgentAnswer]] = {}
        self._sequence = 0
        self.lost = False
        """Nothing can be asked over it any more."""

    async def attach(self, *, token: bytes, controller: str, lease_s: float) -> Attached:
        """Answer the agent's challenge and take it over."""
        try:
            nonce = await asyncio.wait_for(self._challenge, lease_s)
        except TimeoutError as error:
            raise AgentUnreachable(f"the host agent did not greet within {lease_s:g} s") from error
        proof = hmac.digest(token, nonce, hashlib.sha256)
        return await self.request(
            Attach(proof=proof, controller=controller, lease_s=lease_s), Attached, lease_s
        )

    def send(self, body: AgentRequest) -> asyncio.Future[AgentAnswer]:
        """Write a request now; the future has its answer. Failures are answers here, not errors."""
        answer: asyncio.Future[AgentAnswer] = asyncio.get_running_loop().create_future()
        if self._transport is None or self.lost:
            _refuse(answer, "the connection to the host agent is gone")
            return answer
        self._sequence += 1
        self._waiting[self._sequence] = answer
        self._transport.write(encode_frame(ToAgent(sequence=self._sequence, body=body)))
        return answer

    async def request(
        self, body: AgentRequest, expected: type[Answer], timeout_s: float | None = None
    ) -> Answer:
        """Send and wait. Raises the error that the agent names, ProtocolError, AgentUnreachable."""
        try:
            answer = await asyncio.wait_for(self.send(body), timeout_s)
        except TimeoutError as error:
            raise AgentUnreachable(
                f"the host agent did not answer {type(body).__name__} within {timeout_s} s"
            ) from error
        return check(answer, expected)

    def close(self) -> None:
        """Close without telling anybody; requests that wait fail with AgentUnreachable."""
        self._on_lost = _ignore
        if self._transport is not None:
            self._transport.abort()
        self._fail("the connection to the host agent was closed")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what create_unix_connection makes
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        try:
            for message in self._decoder.feed(data):
                self._take(message)
        except ProtocolError as error:
            self._give_up(error.message)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._give_up(f"its connection ended ({exc})" if exc else "its connection ended")

    def _give_up(self, reason: str) -> None:
        if self.lost:
            return
        self._fail(reason)
        if self._transport is not None:
            self._transport.abort()
        self._on_lost(reason)

    def _fail(self, reason: str) -> None:
        self.lost = True
        waiting, self._waiting = self._waiting, {}
        futures: list[asyncio.Future[Any]] = [*waiting.values(), self._challenge]
        for future in futures:
            if not future.done():
                _refuse(future, f"the host agent is gone: {reason}")

    def _take(self, message: FromAgent) -> None:
        body = message.body
        if isinstance(body, _NOTICES):
            self._on_notice(body)
        elif isinstance(body, Challenge):
            if not self._challenge.done():
                self._challenge.set_result(body.nonce)
        else:
            answer = self._waiting.pop(message.sequence, None)
            if answer is not None and not answer.done():
                answer.set_result(body)


async def connect(
    path: str,
    *,
    token: bytes,
    controller: str,
    lease_s: float,
    on_notice: Callable[[AgentNotice], None],
    on_lost: Callable[[str], None],
) -> tuple[AgentClient, Attached]:
    """Connect and attach. Raises AgentUnreachable, or what the agent says."""
    loop = asyncio.get_running_loop()
    try:
        _, client = await loop.create_unix_connection(
            lambda: AgentClient(on_notice=on_notice, on_lost=on_lost), path
        )
    except OSError as error:
        raise AgentUnreachable(f"no host agent answers at {path}: {error}") from error
    try:
        attached = await client.attach(token=token, controller=controller, lease_s=lease_s)
    except BaseException:
        # Cancelled, too: a connection that nobody knows must not stay open.
        client.close()
        raise
    return client, attached


def check(answer: AgentAnswer, expected: type[Answer]) -> Answer:
    """The answer as what it must be. Raises the error that a Failure names, ProtocolError."""
    if isinstance(answer, Failure):
        raise error_of(answer)
    if not isinstance(answer, expected):
        raise ProtocolError(
            f"the host agent answered with {type(answer).__name__} instead of {expected.__name__}"
        )
    return answer


def error_of(failure: Failure) -> NotebookOSError:
    """The error that an agent's Failure names."""
    kind = getattr(errors, failure.error, NotebookOSError)
    if not (isinstance(kind, type) and issubclass(kind, NotebookOSError)):
        kind = NotebookOSError
    return kind(failure.message, hint=failure.hint)


def _refuse(future: asyncio.Future[Any], sentence: str) -> None:
    future.set_exception(AgentUnreachable(sentence))
    # Nobody may be waiting for it any more; that is no news.
    future.exception()


def _ignore(_reason: str) -> None:
    return None
