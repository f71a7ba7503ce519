"""One socket to another host agent, with its channel and what waits to be sent over it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import Protocol, cast

from notebookos_ext.agent.peer_channel import PeerChannel
from notebookos_ext.agent.peer_outbox import PING, WAITING_BYTES_MAX, Outbox
from notebookos_ext.cluster.model import HostId
from notebookos_ext.errors import UNREADABLE, NotebookOSError

SENT_AHEAD_BYTES = 131_072
"""So much may lie with the socket and the loop; what is urgent can overtake only the rest."""
HANDSHAKE_S = 5.0

_log = logging.getLogger(__name__)


class ConnectionOwner(Protocol):
    """Whom a connection tells what happens."""

    @property
    def host(self) -> HostId:
        """This host."""
        ...

    def stranger_came(self, connection: PeerConnection) -> None:
        """A connection that has proved nothing yet; the owner may close it at any time."""
        ...

    def connection_opened(self, connection: PeerConnection, host: HostId) -> None:
        """Both ends have proved the token."""
        ...

    def connection_ended(self, connection: PeerConnection) -> None:
        """It is of no use any more."""
        ...

    def received(self, host: HostId, messages: Sequence[bytes]) -> None:
        """What arrived together."""
        ...


class PeerConnection(asyncio.Protocol):
    """One socket and its channel."""

    def __init__(self, owner: ConnectionOwner, channel: PeerChannel) -> None:
        self.channel = channel
        self.outbox = Outbox(WAITING_BYTES_MAX)
        self.silent_pings = 0
        self.was_up = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._told_full = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there: shake hands."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=SENT_AHEAD_BYTES)
        _send_no_further_ahead(self._transport)
        self._owner.stranger_came(self)
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.close)
        if opening := self.channel.opening():
            self._transport.write(opening)

    def data_received(self, data: bytes) -> None:
        """Whatever arrived; what the protocol does not allow ends the connection."""
        self.silent_pings = 0
        was_open = self.channel.is_open
        try:
            answer, messages = self.channel.receive(data)
            if answer and self._transport is not None:
                self._transport.write(answer)
            if self.channel.is_open and not was_open:
                self._opened()
            if messages:
                self._owner.received(HostId(self.channel.peer), messages)
        except (NotebookOSError, *UNREADABLE) as error:
            _log.warning("host %s ends a connection: %s", self._owner.host, error)
            self.close()
            self._owner.connection_ended(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        """The socket is gone."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._owner.connection_ended(self)
        if not self.ended.done():
            self.ended.set_result(None)

    def pause_writing(self) -> None:
        """The peer reads more slowly than we write."""
        self._paused = True

    def resume_writing(self) -> None:
        """The peer has read most of it."""
        self._paused = False
        self.pump()

    def pump(self) -> None:
        """Send from the outbox, as far as the peer reads."""
        transport = self._transport
        if transport is None:
            return
        while not self._paused and not transport.is_closing():
            record = self.outbox.next_record()
            if record is None:
                return
            transport.write(self.channel.seal(record))

    def tell_if_full(self) -> None:
        """Say once that messages had to be forgotten."""
        if self.outbox.dropped and not self._told_full:
            self._told_full = True
            _log.warning(
                "host %s forgets the oldest messages to %s, which reads too slowly",
                self._owner.host,
                self.channel.peer,
            )

    def ping(self) -> None:
        """Say something, if nothing else is on its way."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._paused:
            return
        transport.write(self.channel.seal(PING))

    def close(self) -> None:
        """Drop the connection without waiting for what is unsent."""
        if self._transport is None:
            if not self.ended.done():
                self.ended.set_result(None)
        elif not self._transport.is_closing():
            self._transport.abort()

    def _opened(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self.was_up = True
        self._owner.connection_opened(self, HostId(self.channel.peer))


def _send_no_further_ahead(transport: asyncio.Transport) -> None:
    """Keep the kernel from taking megabytes, behind which a heartbeat would wait."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family != socket.AF_UNIX and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, SENT_AHEAD_BYTES)
