"""Folding committed entries, and feeding them to a replica's link."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine

from notebookos_ext.agent.feeds import AT_ONCE, Feed
from notebookos_ext.agent.history import REMEMBERED_VERDICTS, History, Verdict
from notebookos_ext.agent.replica_link import ReplicaLink
from notebookos_ext.cluster.consensus.messages import Entry
from notebookos_ext.cluster.entries import (
    ClosedEntry,
    Component,
    Delta,
    EpochEntry,
    LeadEntry,
    LogEntry,
    StateEntry,
    encode_entry,
)
from notebookos_ext.cluster.frames import FrameDecoder
from notebookos_ext.cluster.messages.replica import Apply, ToReplica
from notebookos_ext.cluster.model import CellId, KernelId, Outcome, ReplicaId

KERNEL = KernelId("k")
KEY = b"key"
R1, R2 = ReplicaId("k:1"), ReplicaId("k:2")


def run(coroutine: Coroutine[object, object, None]) -> None:
    asyncio.run(coroutine)


def raw(index: int, entry: LogEntry, *, key: bytes = KEY, mark: str = "p") -> Entry:
    return Entry(1, index, f"{mark}{index}", encode_entry(KERNEL, entry, key))


def delta(name: str) -> Delta:
    return Delta(components=(Component((name,), b"s"),))


def lead(attempt: int, replica: ReplicaId = R1, epoch: int = 0) -> LeadEntry:
    return LeadEntry(epoch, CellId(f"c{attempt}"), attempt, replica)


def done(attempt: int, name: str, replica: ReplicaId = R1, epoch: int = 0) -> ClosedEntry:
    return ClosedEntry(epoch, CellId(f"c{attempt}"), attempt, replica, Outcome.DONE, delta(name))


def new_history() -> History:
    return History(KERNEL, KEY, on_change=lambda: None)


def names(history: History) -> list[str]:
    found = []
    for committed in history.deltas:
        change = history.delta(committed)
        assert change is not None
        found += [name for component in change.components for name in component.names]
    return found


def test_only_what_counts_is_kept() -> None:
    async def story() -> None:
        history = new_history()
        history.fold(
            [
                raw(1, lead(1)),
                raw(3, lead(2, R2)),
                raw(4, done(1, "x")),
                raw(5, done(1, "again")),
                raw(6, StateEntry(0, 1, R1, delta("late"))),
                raw(7, StateEntry(0, 1, R2, delta("not the executor"))),
            ]
        )
        assert names(history) == ["x", "late"]
        assert history.last_delta_index == 6
        assert history.outcome(1) is Outcome.DONE
        assert history.verdict("p3") == Verdict(3, counts=False)
        assert history.verdict("p4") == Verdict(4, counts=True)
        assert history.verdict("p9") is None

    run(story())


def test_entries_are_folded_once() -> None:
    async def story() -> None:
        changes: list[int] = []
        history = History(KERNEL, KEY, on_change=lambda: changes.append(history.folded_index))
        entries = [raw(1, lead(1)), raw(2, done(1, "x"))]
        history.fold(entries)
        history.fold(entries)
        history.fold(entries[1:])
        assert names(history) == ["x"]
        assert changes == [2]

    run(story())


def test_what_nobody_signed_is_ignored() -> None:
    async def story() -> None:
        history = new_history()
        forged = raw(2, done(1, "forged"), key=b"other key")
        torn = Entry(1, 3, "p3", b"torn")
        history.fold([raw(1, lead(1)), forged, torn, Entry(1, 4, "", b""), raw(5, done(1, "x"))])
        assert names(history) == ["x"]
        assert history.verdict("p2") == Verdict(2, counts=False)
        assert history.folded_index == 5

    run(story())


def test_a_new_epoch_begins_empty_and_wakes_who_waits_for_it() -> None:
    async def story() -> None:
        history = new_history()
        waiting = asyncio.create_task(history.epoch_reached(2))
        history.fold([raw(1, lead(1)), raw(2, done(1, "x")), raw(3, EpochEntry(1))])
        assert names(history) == []
        assert history.last_delta_index == 0
        await asyncio.sleep(0)
        assert not waiting.done()
        history.fold([raw(4, EpochEntry(2)), raw(5, lead(2, epoch=2))])
        await asyncio.wait_for(waiting, 30.0)
        history.fold([raw(6, done(2, "old epoch")), raw(7, done(2, "y", epoch=2))])
        assert names(history) == ["y"]

    run(story())


def test_verdicts_do_not_pile_up() -> None:
    async def story() -> None:
        history = new_history()
        history.fold([raw(i, EpochEntry(i)) for i in range(1, REMEMBERED_VERDICTS + 3)])
        assert history.verdict("p2") is None
        assert history.verdict("p3") is not None

    run(story())


class Replica:
    """The far end of a link."""

    def __init__(self) -> None:
        near, self.far = socket.socketpair()
        self.link = ReplicaLink(
            near,
            name="replica k:2",
            on_message=lambda _message: None,
            on_room=lambda: None,
            on_closed=lambda: None,
        )
        self.far.setblocking(False)
        self.decoder = FrameDecoder(ToReplica)
        self.got: list[Apply] = []

    def close(self) -> None:
        self.link.close()
        self.far.close()

    async def until(self, count: int) -> list[Apply]:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(30.0):
            while len(self.got) < count:
                for message in self.decoder.feed(await loop.sock_recv(self.far, 1 << 20)):
                    assert isinstance(message.body, Apply)
                    self.got.append(message.body)
        return self.got


def cells(count: int, *, mark: str = "p", first: int = 1) -> list[Entry]:
    found = []
    for number in range(count):
        index = first + 2 * number
        attempt = index
        found += [raw(index, lead(attempt)), raw(index + 1, done(attempt, f"n{index}"), mark=mark)]
    return found


def test_a_long_replay_comes_in_order_and_whole() -> None:
    async def story() -> None:
        history, replica = new_history(), Replica()
        history.fold(cells(5 * AT_ONCE))
        feed = Feed(history, replica.link, epoch=0, mark="mine.")
        feed.pump()
        got = await replica.until(5 * AT_ONCE)
        assert [apply.index for apply in got] == [2 * i for i in range(1, 5 * AT_ONCE + 1)]
        assert not any(apply.own for apply in got)
        assert feed.all_sent
        assert not feed.is_current
        feed.applied(got[-1].index)
        assert feed.is_current
        replica.close()

    run(story())


def test_a_process_gets_its_own_deltas_without_their_bytes() -> None:
    async def story() -> None:
        history, replica = new_history(), Replica()
        history.fold(cells(1) + cells(1, mark="mine.", first=3))
        feed = Feed(history, replica.link, epoch=0, mark="mine.")
        feed.pump()
        other, own = await replica.until(2)
        assert (other.own, other.delta) == (False, delta("n1"))
        assert (own.own, own.delta) == (True, None)
        replica.close()

    run(story())


def test_a_feed_waits_for_its_epoch_and_ends_with_it() -> None:
    async def story() -> None:
        history, replica = new_history(), Replica()
        feed = Feed(history, replica.link, epoch=1, mark="mine.")
        history.fold(cells(1))
        feed.pump()
        assert not feed.is_current
        history.fold([raw(3, EpochEntry(1))])
        assert feed.is_current
        history.fold([raw(4, lead(4, epoch=1)), raw(5, done(4, "x", epoch=1))])
        feed.pump()
        assert [apply.index for apply in await replica.until(1)] == [5]
        feed.stand_down(lead(6, epoch=1), 6)
        assert (await replica.until(2))[1].executor == R1
        history.fold([raw(7, EpochEntry(2))])
        feed.pump()
        assert not feed.is_current
        replica.close()

    run(story())


def test_patience_ends_without_progress_only() -> None:
    async def story() -> None:
        history, replica = new_history(), Replica()
        history.fold(cells(2))
        feed = Feed(history, replica.link, epoch=0, mark="mine.")
        feed.pump()
        assert not await feed.caught_up(0.01)
        waiting = asyncio.create_task(feed.caught_up(30.0))
        await asyncio.sleep(0)
        feed.applied(2)
        await asyncio.sleep(0)
        assert not waiting.done()
        feed.applied(4)
        assert await waiting
        replica.close()

    run(story())
