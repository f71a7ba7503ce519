"""One kernel's ZMQ sockets: five bound for clients, and what is connected to its replicas.

Counted (`tests/live/test_router_budget.py`): a kernel's front is 5 sockets and 10 descriptors, each
replica's iopub 1 and 2, a client's shell, stdin and control at the replica that serves it 3 and 6,
and the client's own connections 7 descriptors. So a kernel with three replicas and one browser tab
has 11 sockets and about 30 descriptors here, 50 of them 550 and 1,500, and half as much again for a
minute after the executor has moved. libzmq stops at 1,023 sockets unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import zmq

from notebookos_ext.cluster.channels import CHANNELS, CONTROL, HEARTBEAT, IOPUB, SHELL, STDIN
from notebookos_ext.cluster.model import KernelId, ReplicaId
from notebookos_ext.errors import InvalidRequest, ProtocolError, Unavailable
from notebookos_ext.live.socket_poller import SocketPoller

MAX_SOCKETS = 16_384
"""Sockets of one router: 50 kernels with one tab each need 550 to 850."""
IDLE_S = 60.0
"""A client's connections to a replica are closed after this long without traffic."""
TRANSIENT_IDLE_S = 2.0
"""The same for clients without an identity: the probes of jupyter_server, some for each new tab."""
FRONT_LINGER_MS = 1000
"""How long a last word (shutdown_reply) may take to leave."""

Context = zmq.Context[zmq.Socket[bytes]]


class Receiver(Protocol):
    """Who gets what the sockets receive."""

    def client_said(self, channel: str, frames: list[bytes]) -> None:
        """A client's message; the first frame is its identity."""

    def replica_said(
        self, replica: ReplicaId, channel: str, identity: bytes, frames: list[bytes]
    ) -> None:
        """A replica's message to the client with this identity."""

    def replica_published(self, replica: ReplicaId, frames: list[bytes]) -> None:
        """A replica's iopub message."""

    def client_subscribed(self, topic: bytes) -> None:
        """A client subscribed to iopub."""


class _Connection(msgspec.Struct):
    """One client's DEALERs to one replica, by channel."""

    sockets: dict[str, zmq.Socket[bytes]]
    used_at: float
    transient: bool
    held: list[Sequence[bytes]] | None = None
    """Frames for shell that wait until stdin is connected; None when it is."""


class KernelSockets:
    """Binds at once. Owned by the router thread."""

    def __init__(
        self,
        kernel: KernelId,
        *,
        context: Context,
        poller: SocketPoller,
        receiver: Receiver,
        ip: str,
        transport: str,
        ipc_folder: str | None,
    ) -> None:
        """Raises Unavailable when no port can be bound, InvalidRequest for an unknown transport."""
        self._context = context
        self._poller = poller
        self._receiver = receiver
        self._front: dict[str, zmq.Socket[bytes]] = {}
        self._endpoints: dict[ReplicaId, dict[str, str]] = {}
        self._iopub: dict[ReplicaId, zmq.Socket[bytes]] = {}
        self._connections: dict[tuple[ReplicaId, bytes], _Connection] = {}
        self._ipc_files: list[Path] = []
        self.info: dict[str, int | str] = {"ip": ip, "transport": transport}
        if transport == "ipc":
            if ipc_folder is None:
                raise InvalidRequest("transport ipc needs a folder for its sockets; name one")
            self.info["ip"] = f"{ipc_folder}/{kernel[:8]}"
        elif transport != "tcp":
            raise InvalidRequest(f"the transport {transport!r} is unknown; use tcp or ipc")
        try:
            for number, channel in enumerate(CHANNELS, start=1):
                self._bind(channel, number)
        except zmq.ZMQError as error:
            self.close()
            raise Unavailable(
                f"no port can be bound on {self.info['ip']} for kernel {kernel} "
                f"({error.strerror}); free some, or check the address in the settings"
            ) from error

    # ---- clients ---------------------------------------------------------------------------------

    def to_client(self, channel: str, frames: Sequence[bytes], now: float) -> None:
        """Send to one client; one that is gone is forgotten."""
        socket = self._front[channel]
        try:
            socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            for (_, identity), connection in self._connections.items():
                if identity == frames[0]:
                    connection.used_at = min(connection.used_at, now - IDLE_S)
        self._poller.touch(socket)

    def publish(self, frames: Sequence[bytes]) -> None:
        """Send to every subscriber."""
        socket = self._front[IOPUB]
        socket.send_multipart(frames, zmq.NOBLOCK)
        self._poller.touch(socket)

    # ---- replicas --------------------------------------------------------------------------------

    def connect_replica(self, replica: ReplicaId, endpoints: dict[str, str]) -> None:
        """Listen to what a replica publishes; a known one was relaunched elsewhere.

        Raises ProtocolError when a channel has no address.
        """
        missing = {SHELL, CONTROL, STDIN, IOPUB} - endpoints.keys()
        if missing:
            raise ProtocolError(f"replica {replica} came without {', '.join(sorted(missing))}")
        self.disconnect_replica(replica)
        self._endpoints[replica] = dict(endpoints)
        socket = self._socket(zmq.SUB)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(endpoints[IOPUB])
        self._iopub[replica] = socket
        self._poller.register(
            socket, lambda frames: self._receiver.replica_published(replica, frames)
        )

    def hear_out(self, replica: ReplicaId) -> None:
        """Handle what a replica said before it went: a reply may be among its last words."""
        sockets = [self._iopub[replica]] if replica in self._iopub else []
        for (whose, _), connection in self._connections.items():
            if whose == replica:
                sockets += connection.sockets.values()
        for socket in sockets:
            self._poller.read_now(socket)

    def disconnect_replica(self, replica: ReplicaId) -> None:
        """Forget a replica and every connection to it."""
        self._endpoints.pop(replica, None)
        socket = self._iopub.pop(replica, None)
        if socket is not None:
            self._poller.close_socket(socket)
        for key in [key for key in self._connections if key[0] == replica]:
            self._close_connection(key)

    def replicas(self) -> list[ReplicaId]:
        """The replicas that are connected."""
        return list(self._iopub)

    def prepare(self, replica: ReplicaId, identity: bytes, now: float) -> None:
        """Connect a client's shell and stdin; what goes to shell from now on waits for stdin.

        A kernel drops an input_request for a client whose stdin it does not know, and the cell
        would wait for ever: where shell is connected already, input() may overtake stdin.
        """
        for channel in (STDIN, SHELL):
            self._dealer(replica, channel, identity, now)

    def to_replica(
        self,
        replica: ReplicaId,
        channel: str,
        identity: bytes,
        frames: Sequence[bytes],
        now: float,
    ) -> None:
        """Send to a replica under the client's own identity; nothing where the replica is gone."""
        socket = self._dealer(replica, channel, identity, now)
        if socket is None:
            return
        held = self._connections[replica, identity].held
        if held is not None and channel == SHELL:
            held.append(frames)
        else:
            socket.send_multipart(frames, zmq.NOBLOCK)
            self._poller.touch(socket)

    def close_idle(self, now: float, busy: set[tuple[ReplicaId, bytes]]) -> None:
        """Close connections without recent traffic, except those in `busy`."""
        for key, connection in list(self._connections.items()):
            limit_s = TRANSIENT_IDLE_S if connection.transient else IDLE_S
            if now - connection.used_at >= limit_s and key not in busy:
                self._close_connection(key)

    @property
    def connections(self) -> int:
        """How many (replica, client) pairs are connected."""
        return len(self._connections)

    def close(self) -> None:
        """Close everything and give the ports back."""
        for replica in list(self._endpoints):
            self.disconnect_replica(replica)
        for socket in self._front.values():
            self._poller.close_socket(socket, linger_ms=FRONT_LINGER_MS)
        self._front.clear()
        for path in self._ipc_files:
            path.unlink(missing_ok=True)

    # ---- making sockets --------------------------------------------------------------------------

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        # No high-water mark: a burst of output must not be dropped (findings: it was).
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        return socket

    def _bind(self, channel: str, number: int) -> None:
        socket = self._socket(zmq.XPUB if channel == IOPUB else zmq.ROUTER)
        handler: Callable[[list[bytes]], None]
        if channel == IOPUB:
            # Each new subscriber is welcomed, not only the first one of a topic.
            socket.setsockopt(zmq.XPUB_VERBOSE, 1)
            handler = self._subscription
        elif channel == HEARTBEAT:
            handler = self._echo
        else:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            handler = self._from_client(channel)
        if channel != IOPUB:
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._front[channel] = socket
        self._poller.register(socket, handler)
        if self.info["transport"] == "ipc":
            path = f"{self.info['ip']}-{number}"
            socket.bind(f"ipc://{path}")
            self._ipc_files.append(Path(path))
            self.info[f"{channel}_port"] = number
        else:
            socket.bind(f"tcp://{self.info['ip']}:*")
            endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
            self.info[f"{channel}_port"] = int(bytes(endpoint).rstrip(b"\0").rsplit(b":", 1)[1])

    def _dealer(
        self, replica: ReplicaId, channel: str, identity: bytes, now: float
    ) -> zmq.Socket[bytes] | None:
        endpoints = self._endpoints.get(replica)
        if endpoints is None:
            return None
        key = (replica, identity)
        # libzmq gives clients without a name one that starts with zero, which it then reserves.
        transient = identity.startswith(b"\0")
        connection = self._connections.get(key)
        if connection is None:
            connection = self._connections[key] = _Connection({}, now, transient)
        connection.used_at = now
        socket = connection.sockets.get(channel)
        if socket is None:
            socket = self._socket(zmq.DEALER)
            name = b"unnamed-" + identity.hex().encode() if transient else identity
            socket.setsockopt(zmq.ROUTING_ID, name)
            if channel == STDIN:
                # Writable only when the other side has answered, which `_release` waits for.
                socket.setsockopt(zmq.IMMEDIATE, 1)
                connection.held = []
            socket.connect(endpoints[channel])
            connection.sockets[channel] = socket
            self._poller.register(
                socket,
                lambda frames: self._receiver.replica_said(replica, channel, identity, frames),
                (lambda: self._release(connection)) if channel == STDIN else None,
            )
        return socket

    def _release(self, connection: _Connection) -> None:
        """Stdin was looked at: once it is connected, send what waited for it."""
        held = connection.held
        if held is None or not int(connection.sockets[STDIN].getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
            return
        connection.held = None
        for frames in held:
            connection.sockets[SHELL].send_multipart(frames, zmq.NOBLOCK)
            self._poller.touch(connection.sockets[SHELL])

    def _close_connection(self, key: tuple[ReplicaId, bytes]) -> None:
        for socket in self._connections.pop(key).sockets.values():
            self._poller.close_socket(socket)

    # ---- front handlers --------------------------------------------------------------------------

    def _from_client(self, channel: str) -> Callable[[list[bytes]], None]:
        return lambda frames: self._receiver.client_said(channel, frames)

    def _echo(self, frames: list[bytes]) -> None:
        socket = self._front[HEARTBEAT]
        socket.send_multipart(frames, zmq.NOBLOCK)
        self._poller.touch(socket)

    def _subscription(self, frames: list[bytes]) -> None:
        if frames[0][:1] == b"\x01":
            self._receiver.client_subscribed(frames[0][1:])
