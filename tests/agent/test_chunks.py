"""Chunks on their way to a store that fails: repeated for a while, told, and recovered from."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from faulty_store import AWAY, FaultyStore
from host_agents import until

from notebookos_ext.agent.chunks import LOOSE_S, TRUSTED_S, Chunks
from notebookos_ext.agent.store_health import Patience
from notebookos_ext.clock import VirtualClock
from notebookos_ext.cluster.digests import chunk_digest
from notebookos_ext.cluster.messages.control import StoreReport
from notebookos_ext.errors import CorruptRecord, NotFound, StorageError, StorageFull

DATA = b"a chunk"
DIGEST = chunk_digest(DATA)
OTHER = b"another chunk"


class World:
    """Chunks whose pauses take virtual time, and none that is real."""

    def __init__(self, capacity_bytes: int | None = None, stall_s: float = 60.0) -> None:
        self.clock = VirtualClock(1000.0)
        self.store = FaultyStore(capacity_bytes=capacity_bytes)
        self.threads = ThreadPoolExecutor(2)
        self.told: list[StoreReport] = []
        self.backs = 0
        self.sends_again: Callable[[], bool] = lambda: False
        self.may_look = asyncio.Event()
        self.may_look.set()
        self.pauses: list[float] = []
        self.chunks = Chunks(
            self.store,
            self.threads,
            clock=self.clock,
            rng=random.Random(1),
            patience=Patience(stall_s=stall_s),
            sleep=self._sleep,
            on_change=self.told.append,
            on_back=self._back,
        )

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.advance(seconds)
        await asyncio.sleep(0)
        await self.may_look.wait()

    def _back(self) -> bool:
        self.backs += 1
        return self.sends_again()

    def put(self, data: bytes = DATA) -> str:
        digest = chunk_digest(data)
        self.chunks.put(digest, data, lambda: None)
        return digest

    async def works_again(self) -> None:
        await until(lambda: self.chunks.report().works)


def run(story: Callable[[World], Coroutine[Any, Any, None]], **more: Any) -> None:
    async def whole() -> None:
        world = World(**more)
        try:
            await story(world)
        finally:
            world.store.open.set()
            world.chunks.close()
            world.threads.shutdown()

    asyncio.run(whole())


def test_what_fails_for_a_moment_is_repeated_and_nobody_is_told() -> None:
    async def story(world: World) -> None:
        world.store.failures = 3
        assert await world.chunks.failures([world.put()]) == {}
        assert await world.chunks.fetch(DIGEST) == DATA
        assert world.told == []
        report = world.chunks.report()
        assert (report.put_chunks, report.put_bytes, report.fetched_bytes) == (1, 7, 7)

    run(story)


def test_pauses_grow_up_to_the_longest_and_differ_between_hosts() -> None:
    patience = Patience(first_pause_s=1.0, longest_pause_s=6.0)
    hosts = [patience.pauses(random.Random(seed)) for seed in (1, 2)]
    one, other = ([next(pauses) for _ in range(6)] for pauses in hosts)
    for pause_s, full_s in zip(one, (1.0, 2.0, 4.0, 6.0, 6.0, 6.0), strict=True):
        assert full_s / 2 <= pause_s <= full_s
    assert one != other


def test_what_goes_on_failing_is_told_after_a_while_and_then_at_once() -> None:
    async def story(world: World) -> None:
        world.store.away = True
        world.may_look.set()
        failed = await world.chunks.failures([world.put()])
        assert failed[DIGEST].message == AWAY
        assert world.clock.now() >= 1003.0
        world.may_look.clear()
        before = world.store.calls.count("put")
        await world.chunks.failures([world.put(OTHER)])
        assert world.store.calls.count("put") == before + 1
        (told,) = world.told
        assert (told.works, told.error) == (False, AWAY)
        assert told.since > 1000.0

    run(story)


def test_when_the_store_is_back_those_who_gave_up_are_asked_again() -> None:
    async def story(world: World) -> None:
        def send() -> bool:
            if world.backs > 1:
                return False
            world.put()
            return True

        world.sends_again = send
        world.store.away = True
        await world.chunks.failures([world.put()])
        world.store.away = False
        await world.works_again()
        assert await world.chunks.failures([DIGEST]) == {}
        assert world.store.inner.get(DIGEST) == DATA
        assert [report.works for report in world.told] == [False, True]
        assert world.told[-1].error == ""

    run(story)


def test_a_full_store_can_be_read_and_is_tried_again() -> None:
    async def story(world: World) -> None:
        assert await world.chunks.failures([world.put()]) == {}

        def send() -> bool:
            if DIGEST in world.store.inner._chunks and world.backs == 4:
                world.store.inner.delete(DIGEST)
            if world.store.inner.has(chunk_digest(OTHER)):
                return False
            world.put(OTHER)
            return True

        world.sends_again = send
        failed = await world.chunks.failures([world.put(OTHER)])
        assert isinstance(failed[chunk_digest(OTHER)], StorageFull)
        assert await world.chunks.fetch(DIGEST) == DATA
        assert not world.chunks.report().works
        await world.works_again()
        assert world.backs >= 4
        assert await world.chunks.fetch(chunk_digest(OTHER)) == OTHER

    run(story, capacity_bytes=15)


def test_nobody_waits_for_a_store_that_takes_nothing() -> None:
    async def story(world: World) -> None:
        world.store.open.clear()
        failed = await world.chunks.failures([world.put(), world.put(OTHER)])
        assert "has taken nothing for 0.05 s" in failed[DIGEST].message
        report = world.chunks.report()
        assert (report.waiting_chunks, report.waiting_bytes) == (2, len(DATA) + len(OTHER))
        world.store.open.set()
        await until(lambda: world.chunks.report().waiting_chunks == 0)
        assert await world.chunks.failures([DIGEST]) == {}

    run(story, stall_s=0.05)


def test_a_slow_store_is_waited_for_as_long_as_it_takes_something() -> None:
    async def story(world: World) -> None:
        world.store.open.clear()
        digests = [world.put(bytes([n])) for n in range(20)]
        waiting = asyncio.create_task(world.chunks.failures(digests))
        await asyncio.sleep(0)
        world.store.open.set()
        assert await waiting == {}

    run(story)


def test_garbage_is_refused_and_fetched_again() -> None:
    async def story(world: World) -> None:
        await world.chunks.failures([world.put()])
        world.store.garbage[DIGEST] = [b"garbage"]
        assert await world.chunks.fetch(DIGEST) == DATA
        world.store.garbage[DIGEST] = [b"garbage", DATA[:3]]
        with pytest.raises(CorruptRecord, match=DIGEST[:12]):
            await world.chunks.fetch(DIGEST)
        assert world.told == [], "of the store itself this says nothing"

    run(story)


def test_garbage_that_was_set_aside_is_not_called_missing() -> None:
    async def story(world: World) -> None:
        world.store.garbage[DIGEST] = [b"garbage"]
        with pytest.raises(CorruptRecord, match="does not match its digest"):
            await world.chunks.fetch(DIGEST)

    run(story)


def test_a_lost_write_is_noticed_when_it_is_read_or_asked_for_again() -> None:
    async def story(world: World) -> None:
        world.store.loses.add(DIGEST)
        assert await world.chunks.failures([world.put()]) == {}
        with pytest.raises(NotFound, match=DIGEST[:12]):
            await world.chunks.fetch(DIGEST)
        world.chunks.doubt()
        failed = await world.chunks.failures([DIGEST])
        assert "was never put" in failed[DIGEST].message

    run(story)


def test_what_was_found_once_is_not_looked_for_again_for_a_while() -> None:
    async def story(world: World) -> None:
        digests = [chunk_digest(bytes([n])) for n in range(5)]
        for number, digest in enumerate(digests):
            world.store.inner.put(digest, bytes([number]))
        for _ in range(2):
            assert await world.chunks.failures(digests) == {}
        assert world.store.calls == ["has"] * 5
        world.clock.advance(TRUSTED_S)
        assert await world.chunks.failures(digests) == {}
        world.chunks.doubt()
        assert await world.chunks.failures(digests) == {}
        assert world.store.calls == ["has"] * 15

    run(story)


def test_what_no_commit_named_yet_is_loose_for_a_day() -> None:
    async def story(world: World) -> None:
        assert await world.chunks.failures([world.put(), world.put(OTHER)]) == {}
        world.chunks.committed([DIGEST])
        assert world.chunks.loose() == [chunk_digest(OTHER)]
        world.clock.advance(LOOSE_S + 1.0)
        assert world.chunks.loose() == []

    run(story)


def test_an_agents_own_chunks_are_repeated_too() -> None:
    async def story(world: World) -> None:
        world.store.failures = 2
        await world.chunks.store(DIGEST, DATA)
        world.store.away = True
        with pytest.raises(StorageError, match=AWAY):
            await world.chunks.store(chunk_digest(OTHER), OTHER)

    run(story)


def test_a_store_that_does_not_work_at_the_start_is_told_before_anybody_needs_it() -> None:
    async def story(world: World) -> None:
        world.store.away = True
        world.chunks.check_soon()
        await until(lambda: world.told)
        assert not world.told[0].works
        world.store.away = False
        await world.works_again()

    run(story)
