"""What a history forgets and takes over, and what replicas are fed meanwhile."""

from __future__ import annotations

import random
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from notebookos_ext.agent.feeds import Feed
from notebookos_ext.agent.history import History, Verdict
from notebookos_ext.agent.replica_link import ReplicaLink
from notebookos_ext.cluster.consensus.messages import Entry
from notebookos_ext.cluster.entries import (
    ClosedEntry,
    Component,
    Delta,
    EpochEntry,
    LeadEntry,
    LogEntry,
    encode_entry,
)
from notebookos_ext.cluster.messages.replica import Apply
from notebookos_ext.cluster.model import CellId, KernelId, Outcome, ReplicaId

KERNEL = KernelId("k")
KEY = b"key"
R1 = ReplicaId("k:1")


class Link:
    """A replica that takes what it has room for, and applies it."""

    def __init__(self) -> None:
        self.room = 0
        self.names: dict[str, bytes] = {}
        self.last_index = 0
        self.count = 0
        self.feed: Feed | None = None

    @property
    def is_full(self) -> bool:
        return self.room <= 0

    def send(self, apply: Apply) -> None:
        self.room -= 1
        self.count += 1
        assert apply.index == 0 or apply.index > self.last_index, "in log order, nothing twice"
        self.last_index = max(self.last_index, apply.index)
        delta = apply.delta or Delta()
        for name in delta.deleted:
            self.names.pop(name, None)
        self.names |= {name: c.skeleton for c in delta.components for name in c.names}
        assert self.feed is not None
        self.feed.applied(apply.index)


class Log:
    """Makes entries, each changing one of a few names."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.names: dict[str, bytes] = {}
        self.epoch = 0

    def _add(self, entry: LogEntry) -> None:
        index = len(self.entries) + 1
        payload = encode_entry(KERNEL, entry, KEY)
        self.entries.append(Entry(1, index, f"p{index}", payload))

    def cell(self, name: str) -> None:
        attempt = len(self.entries) + 1
        cell = CellId(f"c{attempt}")
        self._add(LeadEntry(self.epoch, cell, attempt, R1))
        value = b"%d" % attempt
        if name in self.names and attempt % 3 == 0:
            delta = Delta(deleted=(name,))
            del self.names[name]
        else:
            delta = Delta((Component((name,), value, definitions=()),))
            self.names[name] = value
        self._add(ClosedEntry(self.epoch, cell, attempt, R1, Outcome.DONE, delta))

    def new_epoch(self) -> None:
        self.epoch += 1
        self._add(EpochEntry(self.epoch))
        self.names = {}


def new_history() -> History:
    return History(KERNEL, KEY, on_change=lambda: None)


def fed_by(history: History, epoch: int = 0) -> Link:
    link = Link()
    link.feed = Feed(history, cast("ReplicaLink", link), epoch=epoch, mark="mine.")
    return link


def pump(link: Link, room: int) -> None:
    assert link.feed is not None
    link.room = room
    link.feed.pump()


def test_a_new_replica_gets_the_folded_deltas_and_those_since() -> None:
    log, history = Log(), new_history()
    for _ in range(20):
        log.cell("a")
    history.fold(log.entries)
    history.forget(history.freeze().fold())
    log.cell("b")
    history.fold(log.entries)
    assert len(history.deltas) == 1
    link = fed_by(history)
    pump(link, 50)
    assert link.names == log.names
    assert link.count == 2
    assert link.feed is not None
    assert link.feed.is_current
    assert link.feed.all_sent
    assert history.last_delta_index == len(log.entries)


def test_what_is_committed_while_a_snapshot_is_made_is_not_in_it() -> None:
    log, history = Log(), new_history()
    log.cell("a")
    history.fold(log.entries)
    frozen = history.freeze()
    log.cell("b")
    history.fold(log.entries)
    snapshot = frozen.fold()
    assert snapshot.index == 2
    history.forget(snapshot)
    link = fed_by(history)
    pump(link, 50)
    assert link.names == log.names


def test_a_snapshot_of_an_epoch_that_has_ended_is_not_gone_back_to() -> None:
    log, history = Log(), new_history()
    log.cell("a")
    history.fold(log.entries)
    snapshot = history.freeze().fold()
    log.new_epoch()
    history.fold(log.entries)
    history.forget(snapshot)
    link = fed_by(history, epoch=1)
    pump(link, 50)
    assert link.names == {}
    assert history.last_delta_index == 0


def test_another_host_goes_on_from_a_snapshot_as_if_it_had_the_log() -> None:
    log, history = Log(), new_history()
    for name in "abab":
        log.cell(name)
    log.new_epoch()
    for name in "abcb":
        log.cell(name)
    history.fold(log.entries)
    snapshot = history.freeze().fold()
    other = new_history()
    assert other.restore(len(log.entries) + 1, snapshot)
    assert not other.restore(len(log.entries), snapshot), "it knows all that already"
    assert other.ledger.state == history.ledger.state
    assert other.verdict("p3") == Verdict(3, counts=True)
    assert other.outcome(8) == history.outcome(8)
    link = fed_by(other, epoch=1)
    pump(link, 50)
    assert link.names == log.names
    # The next entry has the index after the snapshot's, which no proposal had.
    lead = LeadEntry(1, CellId("next"), 99, R1)
    other.fold([Entry(2, len(log.entries) + 2, "next", encode_entry(KERNEL, lead, KEY))])
    assert other.verdict("next") == Verdict(len(log.entries) + 2, counts=True)


def test_a_replica_that_lacks_what_the_log_forgot_is_stranded() -> None:
    log, history = Log(), new_history()
    log.cell("a")
    history.fold(log.entries)
    link = fed_by(history)
    pump(link, 50)
    ahead = new_history()
    for name in "abc":
        log.cell(name)
    ahead.fold(log.entries)
    assert link.feed is not None
    assert not link.feed.is_stranded
    history.restore(len(log.entries), ahead.freeze().fold())
    assert link.feed.is_stranded
    pump(link, 50)
    assert link.count == 1, "half of a namespace is worse than an old one"
    assert not link.feed.all_sent
    assert not link.feed.is_current
    fresh = fed_by(history)
    pump(fresh, 50)
    assert fresh.names == log.names
    assert fresh.feed is not None
    assert not fresh.feed.is_stranded


def test_the_chunks_that_are_named_are_those_that_a_new_replica_needs() -> None:
    history = new_history()
    assert history.freeze().chunk_digests() == set()


@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_whatever_is_forgotten_meanwhile_every_replica_ends_up_with_the_same(
    rng: random.Random, steps: int
) -> None:
    log, history = Log(), new_history()
    links = [fed_by(history)]
    frozen = None
    for _ in range(steps):
        kind = rng.randrange(6)
        if kind < 2:
            log.cell(rng.choice("abcd"))
            history.fold(log.entries)
        elif kind == 2:
            frozen = history.freeze()
        elif kind == 3 and frozen is not None:
            history.forget(frozen.fold())
            frozen = None
        elif kind == 4:
            links.append(fed_by(history))
        else:
            pump(rng.choice(links), rng.randrange(1, 4))
    for link in links:
        pump(link, 60)
        assert link.names == log.names
        assert link.feed is not None
        assert link.feed.is_current
        assert link.feed.all_sent
        assert not link.feed.is_stranded
