"""The agent's side of one replica when the store or the log cannot take what it sends."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, cast

import msgspec
from host_agents import until

from notebookos_ext.agent.chunks import Chunks
from notebookos_ext.agent.history import History, Verdict
from notebookos_ext.agent.processes import ReplicaProcess
from notebookos_ext.agent.sessions import UNWRITTEN_BYTES, ReplicaSession
from notebookos_ext.agent.store_health import Patience
from notebookos_ext.clock import SystemClock
from notebookos_ext.cluster.consensus.messages import PAYLOAD_BYTES_MAX, Entry
from notebookos_ext.cluster.digests import chunk_digest
from notebookos_ext.cluster.entries import (
    Block,
    ChunkRef,
    ClosedEntry,
    Component,
    Delta,
    LeadEntry,
    LogEntry,
    encode_entry,
)
from notebookos_ext.cluster.messages.control import (
    AgentNotice,
    AgentWarning,
    AttemptEnded,
    LaunchReplica,
    NamespaceReport,
)
from notebookos_ext.cluster.messages.replica import (
    AgentFailure,
    Chunk,
    CommitAttempt,
    CommitState,
    Committed,
    FetchChunk,
    FromReplica,
    StoreBack,
    StoreChunk,
)
from notebookos_ext.cluster.model import CellId, KernelId, Outcome, ReplicaId
from notebookos_ext.errors import InvalidRequest, NotFound, StorageFull
from notebookos_ext.storage.base import StoreUsage

KERNEL, REPLICA, CELL = KernelId("k"), ReplicaId("k:1"), CellId("c")
LAUNCH = LaunchReplica(KERNEL, REPLICA, 0, 1, "python", {}, "/", b"key", {})
KEY = b"key"


class Store:
    """A store whose disk can be full, and whose writes can be held up."""

    name = "the test's"

    def check(self) -> None:
        pass

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.full = False
        self.open = threading.Event()
        self.open.set()

    def put(self, digest: str, data: bytes) -> None:
        self.open.wait(60)
        if self.full:
            raise StorageFull("no space is left")
        self.kept[digest] = data

    def get(self, digest: str) -> bytes:
        if digest not in self.kept:
            raise NotFound("not there")
        return self.kept[digest]

    def has(self, digest: str) -> bool:
        return digest in self.kept

    def delete(self, digest: str) -> None:
        del self.kept[digest]

    def sweep(
        self, named: Collection[str], older_than_s: float, *, dry_run: bool = False
    ) -> StoreUsage:
        raise AssertionError("no session sweeps the store")

    def usage(self) -> StoreUsage:
        return StoreUsage(len(self.kept), 0)


class Link:
    is_full = False

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.sent: list[Any] = []
        self.reading = True

    def send(self, body: Any) -> None:
        self.sent.append(body)

    def answer(self, sequence: int, body: Any) -> None:
        self.answers.append((sequence, body))

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        pass


class Process:
    def __init__(self) -> None:
        self.link = Link()
        self.pid = 1
        self.is_alive = True

    def kill(self) -> None:
        self.is_alive = False


class World:
    """A session whose kernel's log is a list."""

    def __init__(self) -> None:
        self.store = Store()
        self.threads = ThreadPoolExecutor(2)
        self.history = History(KERNEL, KEY, on_change=lambda: None)
        self.notices: list[AgentNotice] = []
        self.committed: list[LogEntry] = []
        self.commit_error: Exception | None = None
        self.process = Process()
        self.session = ReplicaSession(
            LAUNCH,
            self.history,
            mark="mine.",
            chunks=Chunks(
                self.store,
                self.threads,
                clock=SystemClock(),
                rng=random.Random(1),
                patience=Patience(repeat_s=0.0),
            ),
            commit=self.commit,
            notify=self.notices.append,
            on_progress=lambda: None,
        )
        self.session.begin(cast("ReplicaProcess", self.process))
        self.sequence = 0
        self.append(LeadEntry(0, CELL, 1, REPLICA), "lead")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.store.open.set()
        self.session.close()
        self.threads.shutdown()

    async def commit(
        self, entry: LogEntry, proposal_id: str, _wanted: Callable[[], bool]
    ) -> Verdict:
        if self.commit_error is not None:
            raise self.commit_error
        if len(encode_entry(KERNEL, entry, KEY)) > PAYLOAD_BYTES_MAX:
            raise InvalidRequest("too long for the log")
        self.append(entry, proposal_id)
        verdict = self.history.verdict(proposal_id)
        assert verdict is not None
        return verdict

    def append(self, entry: LogEntry, proposal_id: str) -> None:
        self.committed.append(entry)
        index = len(self.committed)
        self.history.fold([Entry(1, index, proposal_id, encode_entry(KERNEL, entry, KEY))])

    def say(self, body: Any) -> int:
        self.sequence += 1
        self.session.receive(FromReplica(self.sequence, body))
        return self.sequence

    async def answer(self, sequence: int) -> Any:
        await until(lambda: any(s == sequence for s, _ in self.process.link.answers))
        return next(body for s, body in self.process.link.answers if s == sequence)

    def closed(self) -> ClosedEntry:
        entry = self.committed[-1]
        assert isinstance(entry, ClosedEntry)
        return entry

    def warnings(self) -> list[str]:
        return [n.message for n in self.notices if isinstance(n, AgentWarning)]


def run(story: Callable[[World], Coroutine[object, object, None]]) -> None:
    async def told() -> None:
        async with World() as world:
            await story(world)

    asyncio.run(told())


def stored(name: str, data: bytes) -> tuple[StoreChunk, Component]:
    digest = chunk_digest(data)
    block = Block(len(data), chunks=(ChunkRef(digest, len(data)),))
    return StoreChunk(digest, data), Component((name,), b"skeleton", (block,))


def commit(*components: Component, **fields: Any) -> CommitAttempt:
    return CommitAttempt(CELL, 1, Outcome.DONE, Delta(components=components, **fields))


def test_a_full_store_costs_only_what_needs_it() -> None:
    async def story(world: World) -> None:
        world.store.full = True
        chunk, large = stored("large", b"x" * 1000)
        small = Component(("small",), b"s")
        world.say(chunk)
        answer = await world.answer(world.say(commit(large, small)))
        assert answer == AgentFailure("StorageFull", "no space is left", names=("large",))
        delta = world.closed().delta
        assert delta is not None
        assert (delta.components, delta.pending) == ((small,), ("large",))
        assert world.warnings() == ["large: no space is left"]
        assert isinstance(world.notices[-1], AttemptEnded)

    run(story)


def test_when_the_store_is_back_the_replica_is_asked_for_what_it_still_has() -> None:
    async def story(world: World) -> None:
        assert not world.session.store_back()
        world.store.full = True
        chunk, large = stored("large", b"x" * 1000)
        world.say(chunk)
        await world.answer(world.say(commit(large)))
        world.store.full = False
        assert world.session.store_back()
        assert world.process.link.sent[-1] == StoreBack()
        world.say(chunk)
        answer = await world.answer(world.say(CommitState(1, Delta(components=(large,)))))
        assert isinstance(answer, Committed)
        assert not world.session.store_back()
        world.process.is_alive = False
        assert not world.session.store_back()

    run(story)


def test_a_definition_that_the_store_did_not_take_is_no_success() -> None:
    async def story(world: World) -> None:
        world.store.full = True
        chunk, large = stored("large", b"x" * 1000)
        world.say(chunk)
        nameless = msgspec.structs.replace(large, names=(), definitions=("f",))
        answer = await world.answer(world.say(commit(nameless, Component(("y",), b"s"))))
        assert (answer.error, answer.names) == ("StorageFull", ())

    run(story)


def test_a_chunk_that_is_lost_is_reported_with_the_variables_that_need_it() -> None:
    async def story(world: World) -> None:
        chunk, large = stored("large", b"x" * 1000)
        world.say(chunk)
        await world.answer(world.say(commit(large)))
        del world.store.kept[chunk.digest]
        answer = await world.answer(world.say(FetchChunk(chunk.digest)))
        assert answer.error == "NotFound"
        assert world.warnings() == ["large: not there"]

    run(story)


def test_a_delta_that_neither_log_nor_store_takes_closes_the_attempt_all_the_same() -> None:
    async def story(world: World) -> None:
        world.store.full = True
        answer = await world.answer(world.say(commit(Component(("x",), b"s" * 2_000_000))))
        assert answer.error == "StorageFull"
        delta = world.closed().delta
        assert delta is not None
        assert (delta.components, delta.pending) == ((), ("x",))

    run(story)


def test_an_environment_that_is_too_long_is_left_out_and_said() -> None:
    async def story(world: World) -> None:
        answer = await world.answer(world.say(commit(environment=b"e" * 2_000_000)))
        assert answer.error == "StorageError"
        assert "environment record has 2000000 bytes" in world.warnings()[0]
        delta = world.closed().delta
        assert delta is not None
        assert delta.environment == b""

    run(story)


def test_more_names_than_the_log_takes_close_the_attempt_and_stay_here() -> None:
    async def story(world: World) -> None:
        names = tuple(f"a_rather_long_name_{number}" for number in range(50_000))
        answer = await world.answer(world.say(commit(Component(names, b"s"))))
        assert answer.error == "InvalidRequest"
        assert world.closed().delta == Delta()
        report = next(n for n in world.notices if isinstance(n, NamespaceReport))
        assert report.pending == names
        assert isinstance(world.notices[-1], AttemptEnded)

    run(story)


def test_a_commit_that_fails_in_an_unknown_way_ends_the_replica() -> None:
    async def story(world: World) -> None:
        world.commit_error = ZeroDivisionError("a defect")
        world.say(commit())
        await world.session.settled()
        assert not world.process.is_alive
        assert world.warnings() == [
            "the host agent failed at a commit: ZeroDivisionError('a defect')"
        ]

    run(story)


def test_a_commit_waits_for_its_chunks() -> None:
    async def story(world: World) -> None:
        world.store.open.clear()
        chunk, large = stored("large", b"x" * 1000)
        world.say(chunk)
        sequence = world.say(commit(large))
        await asyncio.sleep(0)
        assert len(world.committed) == 1
        world.store.open.set()
        assert isinstance(await world.answer(sequence), Committed)
        assert world.store.kept == {chunk.digest: chunk.data}

    run(story)


def test_a_replica_that_sends_faster_than_the_disk_writes_is_held_up() -> None:
    async def story(world: World) -> None:
        world.store.open.clear()
        piece = UNWRITTEN_BYTES // 4
        for number in range(5):
            assert world.process.link.reading
            data = bytes([number]) * piece
            world.say(StoreChunk(chunk_digest(data), data))
        assert not world.process.link.reading
        world.store.open.set()
        await until(lambda: world.process.link.reading)

    run(story)


def test_a_chunk_is_fetched_or_its_absence_told() -> None:
    async def story(world: World) -> None:
        world.store.kept["d"] = b"data"
        assert await world.answer(world.say(FetchChunk("d"))) == Chunk("d", b"data")
        missing = await world.answer(world.say(FetchChunk("e")))
        assert missing == AgentFailure("NotFound", "not there")

    run(story)


def test_a_host_whose_own_disk_is_full_gives_its_replica_up() -> None:
    async def story(world: World) -> None:
        world.commit_error = StorageFull("no space is left for the log of kernel k on host-1")
        world.say(commit(Component(("x",), b"s")))
        await world.session.settled()
        assert not world.process.is_alive
        assert world.session.end_reason == world.commit_error.message
        assert world.warnings() == [world.commit_error.message]
        assert not any(isinstance(n, AttemptEnded) for n in world.notices)

    run(story)


def test_a_commit_of_an_attempt_that_was_closed_is_refused_without_a_proposal() -> None:
    async def story(world: World) -> None:
        world.append(ClosedEntry(0, CELL, 1, REPLICA, Outcome.LOST, None), "lost")
        answer = await world.answer(world.say(commit(Component(("x",), b"s"))))
        assert answer.error == "Refused"
        assert "another replica took over" in answer.message
        assert len(world.committed) == 2

    run(story)
