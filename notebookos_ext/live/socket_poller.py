"""Waits on many ZMQ sockets at a cost that depends on the busy ones only.

`zmq.Poller` asks each of its sockets at each turn: a millisecond with the sockets of fifty kernels.
Here epoll watches the descriptors that libzmq offers for this. They are edge-triggered and may be
consumed by a send as well, hence the rule: whoever sends on a socket tells `touch`, and touched
sockets are read again before the next wait.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

log = logging.getLogger(__name__)

Handler = Callable[[list[bytes]], None]

BATCH = 256
"""Messages read from one socket before the others have a turn."""


@dataclass(frozen=True, order=True)
class _Watched:
    number: int
    socket: zmq.Socket[bytes] = field(compare=False)
    handler: Handler = field(compare=False)
    on_turn: Callable[[], None] | None = field(compare=False)


class SocketPoller:
    """Owned by one thread. Handlers get whole multipart messages, and may register and close."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._by_descriptor: dict[int, _Watched] = {}
        self._registered = 0
        self._descriptors: dict[zmq.Socket[bytes], int] = {}
        self._wakers: dict[int, Callable[[], None]] = {}
        self._touched: set[int] = set()

    def __len__(self) -> int:
        """How many ZMQ sockets are watched."""
        return len(self._descriptors)

    def register(
        self,
        socket: zmq.Socket[bytes],
        handler: Handler,
        on_turn: Callable[[], None] | None = None,
    ) -> None:
        """Watch a socket; each message goes to `handler`.

        `on_turn` is called whenever the socket was looked at, also when only a connection was made.
        """
        descriptor = int(socket.getsockopt(zmq.FD))
        self._registered += 1
        self._by_descriptor[descriptor] = _Watched(self._registered, socket, handler, on_turn)
        self._descriptors[socket] = descriptor
        self._epoll.register(descriptor, select.EPOLLIN)
        self._touched.add(descriptor)

    def register_waker(self, descriptor: int, handler: Callable[[], None]) -> None:
        """Watch a plain descriptor; `handler` reads it."""
        self._wakers[descriptor] = handler
        self._epoll.register(descriptor, select.EPOLLIN)

    def touch(self, socket: zmq.Socket[bytes]) -> None:
        """Something was sent on this socket: read it once more before waiting."""
        descriptor = self._descriptors.get(socket)
        if descriptor is not None:
            self._touched.add(descriptor)

    def read_now(self, socket: zmq.Socket[bytes]) -> None:
        """Handle everything that has come on this socket, before the caller closes it."""
        descriptor = self._descriptors.get(socket)
        if descriptor is None:
            return
        watched = self._by_descriptor[descriptor]
        self._touched.add(descriptor)
        while descriptor in self._touched and not socket.closed:
            self._touched.discard(descriptor)
            self._read(watched)

    def close_socket(self, socket: zmq.Socket[bytes], *, linger_ms: int = 0) -> None:
        """Stop watching a socket and close it."""
        descriptor = self._descriptors.pop(socket)
        del self._by_descriptor[descriptor]
        self._touched.discard(descriptor)
        self._epoll.unregister(descriptor)
        socket.close(linger=linger_ms)

    def poll(self, timeout_s: float | None) -> None:
        """Wait for something, at most `timeout_s` seconds (None: for ever), and handle it."""
        waiting = 0.0 if self._touched else (-1 if timeout_s is None else timeout_s)
        ready = {descriptor for descriptor, _ in self._epoll.poll(waiting)}
        for descriptor in sorted(ready & self._wakers.keys()):
            self._wakers[descriptor]()
        # Oldest sockets first: a kernel's front sockets come before those of its replicas, so that
        # the requests that came before a failing cell's reply are in the queue when it aborts.
        due, self._touched = ready | self._touched, set()
        for watched in sorted(self._by_descriptor[d] for d in due if d in self._by_descriptor):
            self._read(watched)

    def close(self) -> None:
        """Close every socket that is left, and the poller."""
        for socket in list(self._descriptors):
            self.close_socket(socket)
        self._epoll.close()

    def _read(self, watched: _Watched) -> None:
        socket = watched.socket
        for _ in range(BATCH):
            if socket.closed:  # by a handler
                return
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                self._turn(watched)
                return
            try:
                watched.handler(frames)
            except Exception:  # (one bad message must not end the loop for all kernels)
                log.exception("a message could not be handled")
        self.touch(socket)

    @staticmethod
    def _turn(watched: _Watched) -> None:
        try:
            if watched.on_turn is not None:
                watched.on_turn()
        except Exception:  # (as above)
            log.exception("a connection could not be looked at")
