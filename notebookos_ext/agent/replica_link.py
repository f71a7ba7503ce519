"""The agent's end of the socket pair that only it and one replica hold.

Requests of the agent (Prepare, Park) are futures; what the replica sends goes to `on_message` in
order. After the replica's death what it had written is still read: a commit that it sent counts.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from notebookos_ext.cluster.frames import FrameDecoder, encode_frame
from notebookos_ext.cluster.messages.replica import (
    AgentMessage,
    FromReplica,
    LeadAnswer,
    Parked,
    ToReplica,
)
from notebookos_ext.errors import ProtocolError, Unavailable

log = logging.getLogger(__name__)

READ_BYTES = 1 << 20
BUFFER_BYTES = 4 << 20
"""Wanted socket buffer; the system may give less."""
FULL_BYTES = 8 << 20
"""With this much waiting to be written, a replay pauses."""


class ReplicaLink:
    """One replica's private connection, on the agent's event loop."""

    def __init__(
        self,
        connection: socket.socket,
        *,
        name: str,
        on_message: Callable[[FromReplica], None],
        on_room: Callable[[], None],
        on_closed: Callable[[], None],
    ) -> None:
        """`on_room` is called when a link that was full can take more, `on_closed` at its end."""
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._socket = connection
        self._name = name
        self._on_message = on_message
        self._on_room = on_room
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._decoder: FrameDecoder[FromReplica] = FrameDecoder(FromReplica)
        self._unsent = bytearray()
        self._was_full = False
        self._sequence = 0
        self._waiting: dict[int, asyncio.Future[LeadAnswer | Parked]] = {}
        self._reading = False
        self._ended = False
        self.resume_reading()

    @property
    def is_open(self) -> bool:
        """Whether the replica can still be spoken to."""
        return not self._ended

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be written that whoever can wait should."""
        full = len(self._unsent) > FULL_BYTES
        self._was_full |= full
        return full

    def send(self, body: AgentMessage) -> None:
        """Send something that is not answered; to an ended replica it goes nowhere."""
        self._sequence += 1
        self._write(ToReplica(self._sequence, body))

    def answer(self, sequence: int, body: AgentMessage) -> None:
        """Answer the replica's request `sequence`."""
        self._write(ToReplica(sequence, body))

    async def request(self, body: AgentMessage) -> LeadAnswer | Parked:
        """Send and wait for the answer. Raises Unavailable when the replica ends before it."""
        if self._ended:
            raise Unavailable(f"{self._name} has ended")
        self._sequence += 1
        sequence = self._sequence
        future: asyncio.Future[LeadAnswer | Parked] = self._loop.create_future()
        self._waiting[sequence] = future
        self._write(ToReplica(sequence, body))
        try:
            return await future
        finally:
            self._waiting.pop(sequence, None)

    def pause_reading(self) -> None:
        """Let the replica's writes wait in the socket."""
        if self._reading:
            self._loop.remove_reader(self._socket)
            self._reading = False

    def resume_reading(self) -> None:
        """Read again."""
        if not self._reading and not self._ended:
            self._loop.add_reader(self._socket, self._read_once)
            self._reading = True

    def drain(self) -> None:
        """Read all that the (dead) replica has written, without waiting for an end of file.

        A process that the user's code started may still hold the other end open.
        """
        while not self._ended and self._read_once():
            pass

    def close(self) -> None:
        """End the connection; the replica, if it lives, ends itself."""
        if self._ended:
            return
        self.pause_reading()
        self._ended = True
        self._loop.remove_writer(self._socket)
        self._socket.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Unavailable(f"{self._name} has ended"))
        self._on_closed()

    def _read_once(self) -> bool:
        """Read a piece; False when there was nothing more."""
        try:
            data = self._socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            log.info("the socket of %s ended: %s", self._name, error)
            data = b""
        if not data:
            self.close()
            return False
        try:
            messages = self._decoder.feed(data)
        except ProtocolError:
            log.exception("%s does not speak our protocol; its connection is closed", self._name)
            self.close()
            return False
        for message in messages:
            self._receive(message)
        return True

    def _receive(self, message: FromReplica) -> None:
        if not isinstance(message.body, LeadAnswer | Parked):
            self._on_message(message)
            return
        future = self._waiting.get(message.sequence)
        if future is not None and not future.done():
            future.set_result(message.body)

    def _write(self, message: ToReplica) -> None:
        if self._ended:
            return
        frame = encode_frame(message)
        if not self._unsent:
            sent = self._try_send(frame)
            if sent == len(frame):
                return
            frame = frame[sent:]
            self._loop.add_writer(self._socket, self._write_more)
        self._unsent += frame

    def _write_more(self) -> None:
        del self._unsent[: self._try_send(self._unsent)]
        if not self._unsent:
            self._loop.remove_writer(self._socket)
        if self._was_full and not self.is_full:
            self._was_full = False
            self._on_room()

    def _try_send(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            # Its end is noticed by the reader and the reaper; nobody will read this any more.
            return len(data)
