"""Messages between the members of different hosts: one connection per pair of host agents.

Of two hosts the one whose name sorts first dials. Everything is encrypted. Delivery is at most
once and, within a group, in order, except that what is urgent overtakes; what cannot be sent now
waits in a bounded outbox that forgets its oldest messages, since a Raft member repeats what
matters. A peer is *up* while an authenticated connection exists and speaks: a killed agent is
noticed at once, a stopped or cut-off one after `ping_s * silent_pings`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import socket
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec

from notebookos_ext.agent.peer_channel import SECRET_BYTES, PeerChannel
from notebookos_ext.agent.peer_outbox import PING, WAITING_BYTES_MAX, Outbox
from notebookos_ext.cluster.consensus.messages import (
    AppendAnswer,
    ChangeRequest,
    ChunkAnswer,
    Envelope,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    ProposeRefused,
    ReadAnswer,
    ReadRequest,
    TimeoutNow,
    TransferRequest,
    VoteAnswer,
    VoteRequest,
)
from notebookos_ext.cluster.model import HostId
from notebookos_ext.errors import LaunchFailed, NotebookOSError

UNIX_PATH_BYTES_MAX = 107
SENT_AHEAD_BYTES = 131_072
"""So much may lie with the socket and the loop; what is urgent can overtake only the rest."""
BACK_OFF_FIRST_S = 0.05
BACK_OFF_MAX_S = 1.0

_HANDSHAKE_S = 5.0
_CONNECT_S = 5.0
_STRANGERS_MAX = 32
_URGENT: tuple[type[Message], ...] = (
    AppendAnswer,
    ChangeRequest,
    ChunkAnswer,
    Heartbeat,
    HeartbeatAnswer,
    ProposeRefused,
    ReadAnswer,
    ReadRequest,
    TimeoutNow,
    TransferRequest,
    VoteAnswer,
    VoteRequest,
)
"""What carries no entries: small, and worth nothing when it comes late."""

_log = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Envelope).decode


def back_off_s(failures: int, rng: random.Random) -> float:
    """How long to wait after so many failures in a row, spread so that peers do not dial in step.

    The second half of a time that doubles from `BACK_OFF_FIRST_S` up to `BACK_OFF_MAX_S`.
    """
    longest = min(BACK_OFF_MAX_S, BACK_OFF_FIRST_S * (1 << min(failures, 16)))
    return longest * rng.uniform(0.5, 1.0)


class PeerTransport:
    """This host's connections. The callbacks run on the loop that called `start`.

    Args:
        host: this host's name.
        address: where to listen: the path of a unix socket, or `name:port`.
        token: the cluster token, known to all agents and sent to none.
        on_messages: takes what arrived together, in order.
        on_peer_change: told True when a peer comes up and False when it is lost; a peer that
            restarted unnoticed is first lost and then up.
        rng: spreads the attempts to connect again.
        ping_s: an idle connection says something this often.
        silent_pings: a connection that said nothing for so many pings is given up.
    """

    def __init__(
        self,
        host: HostId,
        address: str,
        token: bytes,
        on_messages: Callable[[HostId, Sequence[Envelope]], None],
        on_peer_change: Callable[[HostId, bool], None],
        *,
        rng: random.Random,
        ping_s: float = 0.5,
        silent_pings: int = 6,
    ) -> None:
        self.host = host
        self.address = address
        self._token = token
        self._on_messages = on_messages
        self._on_peer_change = on_peer_change
        self._rng = rng
        self._ping_s = ping_s
        self._silent_pings = silent_pings
        self._incarnation = secrets.token_hex(8)
        self._server: asyncio.Server | None = None
        self._peers: dict[HostId, str] = {}
        self._diallers: dict[HostId, asyncio.Task[None]] = {}
        self._pinger: asyncio.Task[None] | None = None
        self._connections: dict[HostId, _Connection] = {}
        self._strangers: set[_Connection] = set()
        self._to_flush: set[HostId] = set()
        self._flush_due = False
        self._dropped: dict[HostId, int] = {}
        self._closing = False

    @property
    def up(self) -> frozenset[HostId]:
        """The peers that can be reached now."""
        return frozenset(self._connections)

    @property
    def dropped(self) -> Mapping[HostId, int]:
        """How many messages to each peer were given up because too much was waiting for it."""
        counts = dict(self._dropped)
        for host, connection in self._connections.items():
            counts[host] = counts.get(host, 0) + connection.outbox.dropped
        return counts

    async def start(self) -> None:
        """Listen.

        Raises:
            LaunchFailed: the address cannot be used.
        """
        loop = asyncio.get_running_loop()
        try:
            if is_unix(self.address):
                _free_path(self.address)
                self._server = await loop.create_unix_server(self._accept, self.address)
                _make_private(self.address)
            else:
                name, _, port = self.address.rpartition(":")
                self._server = await loop.create_server(self._accept, name, int(port))
                bound = self._server.sockets[0].getsockname()[1]
                self.address = f"{name}:{bound}"
        except (OSError, ValueError) as error:
            raise LaunchFailed(
                f"host {self.host} cannot listen for its peers at {self.address}: {error}"
            ) from error
        self._pinger = asyncio.create_task(self._ping())

    def set_peers(self, peers: Mapping[HostId, str]) -> None:
        """From now on these hosts, at these addresses; this host itself is ignored."""
        wanted = {host: address for host, address in peers.items() if host != self.host}
        for host in set(self._peers) | set(wanted):
            if self._peers.get(host) == wanted.get(host):
                continue
            if dialler := self._diallers.pop(host, None):
                dialler.cancel()
            if host not in wanted and host in self._connections:
                self._connections[host].close()
            if host in wanted and self.host < host:
                self._diallers[host] = asyncio.create_task(self._dial(host, wanted[host]))
        self._peers = wanted

    def send(self, host: HostId, messages: Iterable[Envelope]) -> None:
        """Send soon, together with what else is sent now; dropped if the peer is not up."""
        connection = self._connections.get(host)
        if connection is None:
            return
        for envelope in messages:
            is_urgent = isinstance(envelope.message, _URGENT)
            connection.outbox.put(_encode(envelope), None if is_urgent else envelope.group)
        self._to_flush.add(host)
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self.flush)

    async def close(self) -> None:
        """End all connections and report nothing more; the peers notice at once."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        tasks = list(self._diallers.values())
        self._diallers.clear()
        if self._pinger is not None:
            tasks.append(self._pinger)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections = [*self._connections.values(), *self._strangers]
        for connection in connections:
            connection.close()
        await asyncio.gather(*(connection.ended for connection in connections))
        if self._server is not None:
            await self._server.wait_closed()
            if is_unix(self.address):
                _remove(self.address)

    # -- connections -------------------------------------------------------------------------

    def _channel(self, expected: HostId | None) -> PeerChannel:
        return PeerChannel(
            host=self.host,
            incarnation=self._incarnation,
            token=self._token,
            secret=secrets.token_bytes(SECRET_BYTES),
            expected=expected,
        )

    def _accept(self) -> _Connection:
        return _Connection(self, self._channel(None))

    async def _dial(self, host: HostId, address: str) -> None:
        failures = 0
        while True:
            connection = _Connection(self, self._channel(host))
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await _connect(connection, address)
                await asyncio.shield(connection.ended)
            except (OSError, TimeoutError, ValueError) as error:
                _log.debug("host %s cannot reach %s: %s", self.host, host, error)
            finally:
                connection.close()
            failures = 0 if connection.was_up else failures + 1
            await asyncio.sleep(back_off_s(failures, self._rng))

    def stranger_came(self, connection: _Connection) -> bool:
        """A connection that has proved nothing yet; False if there are too many of them."""
        if len(self._strangers) >= _STRANGERS_MAX:
            return False
        self._strangers.add(connection)
        return True

    def connection_opened(self, connection: _Connection, host: HostId) -> None:
        """Both ends have proved the token."""
        self._strangers.discard(connection)
        if former := self._connections.get(host):
            former.close()
            self.connection_ended(former)
        self._connections[host] = connection
        _log.info("host %s is connected to %s", self.host, host)
        self._on_peer_change(host, True)

    def connection_ended(self, connection: _Connection) -> None:
        """It is of no use any more."""
        self._strangers.discard(connection)
        host = HostId(connection.channel.peer)
        if self._connections.get(host) is connection:
            del self._connections[host]
            if connection.outbox.dropped:
                self._dropped[host] = self._dropped.get(host, 0) + connection.outbox.dropped
            if self._closing:
                return
            _log.info("host %s lost its connection to %s", self.host, host)
            self._on_peer_change(host, False)

    def received(self, host: HostId, messages: Sequence[bytes]) -> None:
        """What arrived together."""
        self._on_messages(host, [_decode(message) for message in messages])

    # -- sending -----------------------------------------------------------------------------

    def flush(self) -> None:
        """Give to the sockets now what `send` has collected; for who is about to block the loop."""
        self._flush_due = False
        hosts, self._to_flush = self._to_flush, set()
        for host in hosts:
            if connection := self._connections.get(host):
                connection.pump()

    async def _ping(self) -> None:
        # Counted in turns of this loop: an agent that was itself stopped for a while does not
        # take its peers for lost before it has read what they sent meanwhile.
        while True:
            await asyncio.sleep(self._ping_s)
            for connection in list(self._connections.values()):
                connection.silent_pings += 1
                if connection.silent_pings > self._silent_pings:
                    _log.warning(
                        "host %s has not heard %s for %.1f s; it counts as lost",
                        self.host,
                        connection.channel.peer,
                        self._ping_s * self._silent_pings,
                    )
                    connection.close()
                    self.connection_ended(connection)
                else:
                    connection.ping()


class _Connection(asyncio.Protocol):
    """One socket and its channel."""

    def __init__(self, owner: PeerTransport, channel: PeerChannel) -> None:
        self.channel = channel
        self.outbox = Outbox(WAITING_BYTES_MAX)
        self.silent_pings = 0
        self.was_up = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=SENT_AHEAD_BYTES)
        _send_no_further_ahead(self._transport)
        if not self._owner.stranger_came(self):
            self.close()
            return
        self._deadline = asyncio.get_running_loop().call_later(_HANDSHAKE_S, self.close)
        if opening := self.channel.opening():
            self._transport.write(opening)

    def data_received(self, data: bytes) -> None:
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
        except (NotebookOSError, msgspec.DecodeError) as error:
            _log.warning("host %s ends a connection: %s", self._owner.host, error)
            self.close()
            self._owner.connection_ended(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._owner.connection_ended(self)
        if not self.ended.done():
            self.ended.set_result(None)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
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


async def _connect(connection: _Connection, address: str) -> None:
    loop = asyncio.get_running_loop()
    if is_unix(address):
        await loop.create_unix_connection(lambda: connection, address)
    else:
        name, _, port = address.rpartition(":")
        await loop.create_connection(lambda: connection, name, int(port))


def is_unix(address: str) -> bool:
    """Whether `address` is the path of a unix socket rather than `name:port`."""
    return address.startswith("/")


def _make_private(address: str) -> None:
    Path(address).chmod(0o600)


def _remove(address: str) -> None:
    Path(address).unlink(missing_ok=True)


def _send_no_further_ahead(transport: asyncio.Transport) -> None:
    """Keep the kernel from taking megabytes, behind which a heartbeat would wait."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family != socket.AF_UNIX and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, SENT_AHEAD_BYTES)


def _free_path(address: str) -> None:
    """Remove the socket file of an agent that is gone; one that answers is left alone."""
    if len(address.encode()) > UNIX_PATH_BYTES_MAX:
        raise OSError(f"the path has more than {UNIX_PATH_BYTES_MAX} bytes")
    path = Path(address)
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise OSError("a file that is no socket is in the way")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(address)
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise OSError("another process listens there")
