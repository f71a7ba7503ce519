"""The replica's end of the socket pair: answers, requests, order, and the agent's death."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from notebookos_ext.cluster.frames import FrameDecoder, encode_frame
from notebookos_ext.cluster.messages.replica import (
    AgentFailure,
    AgentMessage,
    Chunk,
    Committed,
    FetchChunk,
    FromReplica,
    Lead,
    ReplicaHello,
    Stop,
    StoreChunk,
    ToReplica,
)
from notebookos_ext.cluster.model import CellId
from notebookos_ext.errors import NotebookOSError, NotFound, ProtocolError
from notebookos_ext.kernel.agent_link import COMING_CHUNKS, AgentLink, failure_to_error

TIMEOUT_S = 60


class Agent:
    """The other end, read and written by the test."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._decoder: FrameDecoder[FromReplica] = FrameDecoder(FromReplica)
        self._read: list[FromReplica] = []

    def read(self) -> FromReplica:
        while not self._read:
            self._read += self._decoder.feed(self.connection.recv(1 << 20))
        return self._read.pop(0)

    def send(self, sequence: int, body: AgentMessage) -> None:
        self.connection.sendall(encode_frame(ToReplica(sequence, body)))


class Pair:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(TIMEOUT_S)
        self.agent = Agent(ours)
        self.gone = threading.Event()
        self.woken = threading.Event()
        self.link = AgentLink(theirs, on_gone=self.gone.set)
        self._connections = (ours, theirs)

    def close(self) -> None:
        self._connections[0].close()
        assert self.gone.wait(TIMEOUT_S)
        self._connections[1].close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    pair.link.start(pair.woken.set)
    yield pair
    pair.close()


def answering(pair: Pair, body: AgentMessage) -> threading.Thread:
    """Answer the next request with `body` from another thread."""

    def answer() -> None:
        pair.agent.send(pair.agent.read().sequence, body)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def test_a_notice_has_no_number(pair: Pair) -> None:
    pair.link.send(ReplicaHello(1, "python", "3"))
    assert pair.agent.read() == FromReplica(0, ReplicaHello(1, "python", "3"))


def test_answers_find_their_requests_in_any_order(pair: Pair) -> None:
    futures = [pair.link.request(FetchChunk(name)) for name in ("a", "b")]
    first, second = pair.agent.read(), pair.agent.read()
    assert first.sequence != second.sequence
    pair.agent.send(second.sequence, Committed(2))
    pair.agent.send(first.sequence, Committed(1))
    assert [f.result(TIMEOUT_S) for f in futures] == [Committed(1), Committed(2)]


def test_requests_of_the_agent_are_taken_in_order(pair: Pair) -> None:
    lead = Lead(CellId("c"), 1)
    pair.agent.send(7, lead)
    pair.agent.send(8, Stop())
    got: list[ToReplica] = []
    while len(got) < 2:
        assert pair.woken.wait(TIMEOUT_S)
        pair.woken.clear()
        while (message := pair.link.take()) is not None:
            got.append(message)
    assert got == [ToReplica(7, lead), ToReplica(8, Stop())]


def test_pump_takes_in_what_has_arrived_without_the_thread() -> None:
    pair = Pair()
    pair.link.pump()
    assert pair.link.take() is None
    pair.agent.send(1, Lead(CellId("c"), 1))
    pair.link.pump()
    assert pair.link.take() == ToReplica(1, Lead(CellId("c"), 1))
    pair.link.start(lambda: None)
    pair.close()


def test_a_chunk_is_fetched_by_a_blocking_call(pair: Pair) -> None:
    thread = answering(pair, Chunk("d", b"bytes"))
    assert list(pair.link.fetch_chunks(["d"])) == [b"bytes"]
    thread.join()


def test_chunks_are_asked_for_ahead_and_come_in_order(pair: Pair) -> None:
    digests = [f"{number}" for number in range(2 * COMING_CHUNKS)]
    chunks = pair.link.fetch_chunks(digests)
    answers: list[bytes] = []
    thread = threading.Thread(target=lambda: answers.extend(chunks))
    thread.start()
    asked = [pair.agent.read() for _ in range(COMING_CHUNKS)]
    assert [message.body for message in asked] == [FetchChunk(d) for d in digests[:COMING_CHUNKS]]
    for message in reversed(asked):
        pair.agent.send(message.sequence, Chunk("", b"%d" % message.sequence))
    for _ in range(COMING_CHUNKS):
        message = pair.agent.read()
        pair.agent.send(message.sequence, Chunk("", b"%d" % message.sequence))
    thread.join()
    assert answers == [b"%d" % sequence for sequence in range(1, 2 * COMING_CHUNKS + 1)]


@pytest.mark.parametrize(
    ("answer", "error"),
    [(AgentFailure("NotFound", "no chunk d"), NotFound), (Committed(1), ProtocolError)],
)
def test_a_chunk_that_is_not_there_raises(
    pair: Pair, answer: AgentMessage, error: type[Exception]
) -> None:
    thread = answering(pair, answer)
    with pytest.raises(error, match="chunk d"):
        list(pair.link.fetch_chunks(["d"]))
    thread.join()


def test_a_chunk_precedes_what_needs_it(pair: Pair) -> None:
    pair.link.put_chunk("d", b"x")
    pair.link.request(FetchChunk("e"))
    assert [pair.agent.read().body, pair.agent.read().body] == [
        StoreChunk("d", b"x"),
        FetchChunk("e"),
    ]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_that_ends_leaves_the_link_alone() -> None:
    pair = Pair()
    pair.link.start(lambda: None)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    pair.link.send(ReplicaHello(1, "python", "3"))
    assert pair.agent.read().body == ReplicaHello(1, "python", "3")
    pair.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_hold_the_connection_open() -> None:
    pair = Pair()
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    pair._connections[1].close()
    assert pair.agent.connection.recv(1) == b""
    os.write(go[1], b"x")
    os.waitpid(child, 0)
    for descriptor in (*ready, *go):
        os.close(descriptor)
    pair.agent.connection.close()


def test_an_agent_that_went_away_is_noticed_by_reading() -> None:
    pair = Pair()
    pair.link.start(lambda: None)
    pair.close()
    assert pair.gone.is_set()


def test_an_agent_that_went_away_is_noticed_by_writing() -> None:
    pair = Pair()
    pair.agent.connection.close()
    pair.link.send(ReplicaHello(1, "python", "3"))
    assert pair.gone.is_set()
    pair._connections[1].close()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("NotFound", NotFound), ("Exception", NotebookOSError), ("annotations", NotebookOSError)],
)
def test_failures_become_errors_of_the_tree(name: str, kind: type[Exception]) -> None:
    error = failure_to_error(AgentFailure(name, "why"))
    assert type(error) is kind
    assert str(error) == "why"
