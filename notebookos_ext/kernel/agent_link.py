"""The replica's end of the private socket pair that only it and its host agent hold.

Two directions share one stream. What the replica asks is answered with the same sequence number
and comes back as a future; what the agent asks is queued for the kernel's main loop, in order. A
message counts as sent when the operating system has it: a replica killed right after that loses
nothing, because the agent reads the socket to its end.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice

from notebookos_ext import errors
from notebookos_ext.cluster.frames import FrameDecoder, encode_frame
from notebookos_ext.cluster.messages.replica import (
    AgentFailure,
    AgentMessage,
    Chunk,
    Committed,
    FetchChunk,
    FromReplica,
    ReplicaMessage,
    StoreChunk,
    ToReplica,
)

READ_BYTES = 1 << 20
COMING_CHUNKS = 4
"""How many chunks are asked for ahead: the agent reads and checks some while others travel."""
_ANSWERS = (Committed, Chunk, AgentFailure)


def end_process() -> None:
    """The agent is gone: nothing that this process computes can count any more."""
    os._exit(1)


def failure_to_error(failure: AgentFailure) -> errors.NotebookOSError:
    """The exception that the agent named, or the root of the tree when its name is unknown."""
    kind = getattr(errors, failure.error, errors.NotebookOSError)
    if not (isinstance(kind, type) and issubclass(kind, errors.NotebookOSError)):
        kind = errors.NotebookOSError
    return kind(failure.message)


class AgentLink:
    """Sends from any thread; reads on a thread of its own.

    `on_gone` is called (once, from whichever thread notices) when the agent closed its end.
    """

    def __init__(
        self, connection: socket.socket, *, on_gone: Callable[[], None] = end_process
    ) -> None:
        self._socket = connection
        # A blocking send is what "written" means here; reads never wait in recv, see `pump`.
        self._socket.setblocking(True)
        os.set_inheritable(connection.fileno(), False)
        self._on_gone = on_gone
        self._gone = False
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._decoder: FrameDecoder[ToReplica] = FrameDecoder(ToReplica)
        self._sequence = 0
        self._waiting: dict[int, Future[AgentMessage]] = {}
        self._requests: deque[ToReplica] = deque()
        self._wake: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._read_forever, name="Agent link", daemon=True)
        # debugpy suspends every thread at a breakpoint except those marked like ipykernel's own.
        self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
        self._thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
        os.register_at_fork(after_in_child=self._drop_in_child)

    # ---- sending --------------------------------------------------------------------------------

    def send(self, body: ReplicaMessage) -> None:
        """Send a notice; returns when it is written."""
        self._write(FromReplica(0, body))

    def answer(self, sequence: int, body: ReplicaMessage) -> None:
        """Answer the agent's request `sequence`; returns when the answer is written."""
        self._write(FromReplica(sequence, body))

    def request(self, body: ReplicaMessage) -> Future[AgentMessage]:
        """Send a request; returns when it is written, with the future of its answer.

        Raises ProtocolError, and sends nothing, when the message is too long for a frame.
        """
        future: Future[AgentMessage] = Future()
        with self._write_lock:
            frame = encode_frame(FromReplica(self._sequence + 1, body))
            self._sequence += 1
            self._waiting[self._sequence] = future
            self._write_locked(frame)
        return future

    def put_chunk(self, digest: str, data: bytes) -> None:
        """Hand a chunk to the agent; it is stored before any later message of ours is acted on."""
        self.send(StoreChunk(digest, data))

    def fetch_chunks(self, digests: Iterable[str]) -> Iterator[bytes]:
        """Get chunks from the store, in order, a few on their way at any time.

        Raises the agent's error: StorageError, NotFound, …
        """
        left = iter(digests)
        coming = deque(
            (digest, self.request(FetchChunk(digest))) for digest in islice(left, COMING_CHUNKS)
        )
        while coming:
            digest, future = coming.popleft()
            answer = future.result()
            if (following := next(left, None)) is not None:
                coming.append((following, self.request(FetchChunk(following))))
            if isinstance(answer, AgentFailure):
                raise failure_to_error(answer)
            if not isinstance(answer, Chunk):
                raise errors.ProtocolError(
                    f"the host agent answered a request for chunk {digest} "
                    f"with {type(answer).__name__}"
                )
            yield answer.data

    def _write(self, message: FromReplica) -> None:
        frame = encode_frame(message)
        with self._write_lock:
            self._write_locked(frame)

    def _write_locked(self, frame: bytes) -> None:
        try:
            self._socket.sendall(frame)
        except OSError:
            self._lost()

    # ---- receiving ------------------------------------------------------------------------------

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to read. `wake` is called from other threads when `take` has something."""
        self._wake = wake
        self._thread.start()

    def take(self) -> ToReplica | None:
        """The agent's next request, or None."""
        try:
            return self._requests.popleft()
        except IndexError:
            return None

    def pump(self) -> None:
        """Take in what has already arrived, without waiting; from any thread.

        The main thread uses this when an execute_request overtakes the Lead written before it.
        """
        with self._read_lock:
            try:
                data = self._socket.recv(READ_BYTES, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self._lost()
                return
            for message in self._decoder.feed(data):
                self._receive(message)

    def _receive(self, message: ToReplica) -> None:
        if not isinstance(message.body, _ANSWERS):
            self._requests.append(message)
            if self._wake is not None:
                self._wake()
            return
        with self._write_lock:
            future = self._waiting.pop(message.sequence, None)
        if future is not None:
            future.set_result(message.body)

    def _read_forever(self) -> None:
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        while not self._gone:
            poller.poll()
            self.pump()

    def _lost(self) -> None:
        if self._gone:
            return
        self._gone = True
        self._on_gone()

    def _drop_in_child(self) -> None:
        # A process that the user's code forks must neither speak for the replica nor keep the
        # agent from seeing its end.
        self._gone = True
        self._socket.close()
