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
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from notebookos_ext.agent.peer_addresses import connect, listen, vacate
from notebookos_ext.agent.peer_channel import SECRET_BYTES, PeerChannel
from notebookos_ext.agent.peer_connection import PeerConnection
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
from notebookos_ext.errors import LaunchFailed

BACK_OFF_FIRST_S = 0.05
BACK_OFF_MAX_S = 1.0

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
        self._connections: dict[HostId, PeerConnection] = {}
        self._strangers: dict[PeerConnection, None] = {}
        """Who has proved nothing yet, oldest first."""
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
        try:
            self._server, self.address = await listen(self.address, self._accept)
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
        connection.tell_if_full()
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
            vacate(self.address)

    # -- connections -------------------------------------------------------------------------

    def _channel(self, expected: HostId | None) -> PeerChannel:
        return PeerChannel(
            host=self.host,
            incarnation=self._incarnation,
            token=self._token,
            secret=secrets.token_bytes(SECRET_BYTES),
            expected=expected,
        )

    def _accept(self) -> PeerConnection:
        return PeerConnection(self, self._channel(None))

    async def _dial(self, host: HostId, address: str) -> None:
        failures = 0
        while True:
            connection = PeerConnection(self, self._channel(host))
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await connect(address, connection)
                await asyncio.shield(connection.ended)
            except (OSError, TimeoutError, ValueError) as error:
                _log.debug("host %s cannot reach %s: %s", self.host, host, error)
            finally:
                connection.close()
            failures = 0 if connection.was_up else failures + 1
            await asyncio.sleep(back_off_s(failures, self._rng))

    def stranger_came(self, connection: PeerConnection) -> None:
        """A connection that has proved nothing yet; where there are too many, the oldest goes.

        A peer proves itself in milliseconds: whoever only holds connections open keeps none out.
        """
        if len(self._strangers) >= _STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.close()
        self._strangers[connection] = None

    def connection_opened(self, connection: PeerConnection, host: HostId) -> None:
        """Both ends have proved the token."""
        self._strangers.pop(connection, None)
        if former := self._connections.get(host):
            former.close()
            self.connection_ended(former)
        self._connections[host] = connection
        _log.info("host %s is connected to %s", self.host, host)
        self._on_peer_change(host, True)

    def connection_ended(self, connection: PeerConnection) -> None:
        """It is of no use any more."""
        self._strangers.pop(connection, None)
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
