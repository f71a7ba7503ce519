"""Snapshots: what a log forgets, what it must not forget, and how a follower is brought up."""

from __future__ import annotations

import pytest
from raft_group import Group

from notebookos_ext.cluster.consensus import snapshot as snapshots
from notebookos_ext.cluster.consensus.membership import Membership
from notebookos_ext.cluster.consensus.messages import (
    Append,
    AppendAnswer,
    Propose,
    ProposeRefused,
    SnapshotChunk,
)
from notebookos_ext.cluster.consensus.ready import Proposed
from notebookos_ext.errors import InvalidRequest


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "CHUNK_BYTES_MAX", 100)


def texts(count: int, first: int = 0) -> list[str]:
    return [f"proposal-{n}" for n in range(first, first + count)]


def behind(group: Group | None = None) -> Group:
    """Twenty entries have passed by c, and a has forgotten them."""
    group = group or Group()
    group.elect("a")
    group.propose("a", "first")
    group.settle()
    group.isolate("c")
    for text in texts(20):
        group.propose("a", text)
    group.settle()
    group.compact("a")
    group.lose("c", seen_by="ab")
    group.settle()
    return group


def heal(group: Group) -> None:
    group.heal()
    group.find("c")
    group.tick_all(4)


def test_a_follower_that_lacks_forgotten_entries_gets_a_snapshot_and_then_entries() -> None:
    group = behind()
    group.propose("a", "later")
    assert group.node("a").log.first_index == 23
    heal(group)
    assert group.payloads("c") == ["first", *texts(20), "later"]
    assert [entry.proposal_id for entry in group.members["c"].delivered] == ["", "first", "later"]
    assert group.members["c"].disk.base_index == 22


def test_snapshots_travel_in_pieces_one_at_a_time() -> None:
    group = behind()
    group.heal()
    group.find("c")
    pieces = []
    for _ in range(1_000):
        on_their_way = [m for m in group.network if isinstance(m, SnapshotChunk)]
        assert len(on_their_way) <= 1
        pieces += [m for m in on_their_way if m not in pieces]
        if not group.network:
            break
        group.deliver(group.network.pop(0))
    assert len(pieces) > 3
    assert all(len(piece.data) <= 100 for piece in pieces)
    assert group.payloads("c") == ["first", *texts(20)]


def test_p6_a_snapshot_of_any_length_around_that_of_pieces_arrives_whole() -> None:
    meta = snapshots.SnapshotMeta(7, 1, Membership(("a",)))
    lengths = set()
    for size in range(350):
        sent = snapshots.Snapshot(meta, bytes(size))
        outgoing, incoming = snapshots.OutgoingSnapshot(sent), snapshots.IncomingSnapshot()
        received = None
        while received is None:
            held = incoming.held_bytes(outgoing.snapshot_id)
            piece = outgoing.chunk(sender="a", to="b", term=1, offset=held)
            received = incoming.take(piece)
        lengths.add(piece.total_bytes)
        assert received == sent
    assert {99, 100, 101, 199, 200, 201, 300} <= lengths


def test_a_lost_piece_is_sent_again_and_the_rest_is_not() -> None:
    group = behind()
    group.heal()
    group.find("c")
    for _ in range(4):
        group.settle_until(SnapshotChunk)
        group.deliver_next(kind=SnapshotChunk)
    group.settle_until(SnapshotChunk)
    (lost,) = group.take(SnapshotChunk)
    assert lost.offset == 400
    for _ in range(2):
        group.settle()
        group.tick("a", group.timing.heartbeat_ticks)
    group.settle_until(SnapshotChunk)
    (again,) = group.take(SnapshotChunk)
    assert again == lost
    group.deliver(again)
    group.settle()
    assert group.payloads("c") == ["first", *texts(20)]


def test_a_follower_that_restarts_meanwhile_asks_for_the_beginning() -> None:
    group = behind()
    group.heal()
    group.find("c")
    for _ in range(3):
        group.settle_until(SnapshotChunk)
        group.deliver_next(kind=SnapshotChunk)
    group.restart("c")
    group.settle()
    group.tick_all(4)
    assert group.payloads("c") == ["first", *texts(20)]


def test_a_snapshot_goes_on_with_the_next_leader_if_it_has_the_same() -> None:
    group = behind()
    group.compact("b")
    group.heal()
    group.find("c")
    for _ in range(3):
        group.settle_until(SnapshotChunk)
        group.deliver_next(kind=SnapshotChunk)
    group.crash("a")
    group.lose("a")
    offsets = []
    while group.network:
        message = group.network.pop(0)
        if isinstance(message, SnapshotChunk):
            offsets.append(message.offset)
        group.deliver(message)
    assert group.leaders() == ["b"]
    # The new leader asks from the beginning once, and is told what is there.
    assert offsets[:3] == [0, 300, 400]
    assert group.payloads("c") == ["first", *texts(20)]


def test_a_snapshot_of_an_older_term_is_refused() -> None:
    group = behind()
    group.heal()
    group.find("c")
    group.settle_until(SnapshotChunk)
    (piece,) = group.take(SnapshotChunk)
    group.isolate("a")
    group.lose("a", seen_by="bc")
    group.settle()
    assert group.leaders()[-1] == "b"
    group.heal()
    group.take()
    group.deliver(piece)
    (answer,) = group.take(AppendAnswer, sender="c", to="a")
    assert (answer.accepted, answer.term) == (False, 2)


def test_a_snapshot_of_what_is_committed_here_takes_nothing_back() -> None:
    group = behind()
    group.heal()
    group.find("c")
    pieces = []
    while group.network:
        message = group.network.pop(0)
        pieces += [message] if isinstance(message, SnapshotChunk) else []
        group.deliver(message)
    group.propose("a", "later")
    group.settle()
    before = group.on_disk("c")
    for piece in pieces:
        group.deliver(piece)
        (answer,) = group.take(AppendAnswer, sender="c")
        assert (answer.accepted, answer.index) == (True, 23)
    assert group.on_disk("c") == before
    assert group.payloads("c") == ["first", *texts(20), "later"]


def test_a_snapshot_whose_last_entry_is_here_only_commits() -> None:
    """Its later entries, which may be acknowledged, must survive (thesis 5.3)."""
    group = behind()
    piece = group.snapshot_piece("a", "b")
    group.propose("a", "later")
    group.settle()
    before = group.on_disk("b")
    group.deliver(piece)
    assert group.on_disk("b") == before


def test_a_damaged_snapshot_is_not_installed() -> None:
    group = behind()
    group.heal()
    group.find("c")
    spoiled = 0
    for _ in range(200):
        if not group.network:
            break
        message = group.network.pop(0)
        if isinstance(message, SnapshotChunk) and message.offset == 200 and not spoiled:
            spoiled += 1
            data = bytes(byte ^ 1 for byte in message.data)
            message = SnapshotChunk(
                message.sender,
                message.to,
                message.term,
                message.index,
                message.last_term,
                message.snapshot_id,
                message.total_bytes,
                message.offset,
                data,
            )
        group.deliver(message)
    group.tick_all(4)
    assert spoiled == 1
    assert group.payloads("c") == ["first", *texts(20)]


def test_p2_a_snapshot_under_way_commits_nothing_of_an_own_tail() -> None:
    """An old leader with entries that nobody else has is sent a snapshot: none of them counts."""
    group = Group()
    group.elect("c")
    group.propose("c", "first")
    group.settle()
    group.isolate("c")
    for n in range(30):
        group.propose("c", f"lost-{n}")
    group.lose("c", seen_by="ab")
    group.settle()
    for text in texts(20):
        group.propose("a", text)
    group.settle()
    group.compact("a")
    group.heal()
    for _ in range(3):
        group.tick("a", 2)
        while group.network and not any(isinstance(m, SnapshotChunk) for m in group.network):
            group.deliver(group.network.pop(0))
        for piece in group.take(SnapshotChunk):
            group.deliver(piece)
        assert group.node("c").log.commit_index == 2
    group.settle()
    group.tick_all(4)
    assert group.payloads("c") == ["first", *texts(20)]


def test_p3_p4_a_message_from_before_the_snapshot_removes_nothing() -> None:
    group = Group()
    group.elect("a")
    kept = []
    for text in texts(6):
        group.propose("a", text)
        kept += [m for m in group.network if m.to == "b" and isinstance(m, Append)]
        group.settle()
    group.tick_all(4)
    group.compact("b")
    before = (group.on_disk("b"), group.node("b").log.last_index)
    for late in reversed(kept):
        group.deliver(late)
    assert (group.on_disk("b"), group.node("b").log.last_index) == before
    assert all(m.accepted for m in group.take(AppendAnswer))


def test_a_message_that_spans_the_snapshot_adds_what_follows() -> None:
    group = Group()
    group.elect("a")
    for text in texts(3):
        group.propose("a", text)
    group.settle()
    group.tick_all(4)
    group.compact("b")
    entries = tuple(group.node("a").log.entries(2, 4))
    group.cut = {("a", "b")}
    group.propose("a", "later")
    newest = group.node("a").log.entries(5, 5)[0]
    group.deliver(Append("a", "b", 1, 1, 1, (*entries, newest), 4))
    assert group.node("b").log.last_index == 5
    (answer,) = group.take(AppendAnswer, sender="b")
    assert (answer.accepted, answer.index) == (True, 5)


def test_p1_a_crash_between_snapshot_and_truncation_loses_nothing() -> None:
    group = behind()
    group.heal()
    group.propose("a", "x")
    group.compact("b", crash_between=True)
    group.start("b")
    group.tick_all(6)
    group.propose("a", "y")
    group.settle()
    group.tick_all(6)
    assert all(group.payloads(name) == ["first", *texts(20), "x", "y"] for name in "abc")


def test_a_whole_group_restarts_from_its_snapshots() -> None:
    group = behind()
    heal(group)
    group.propose("a", "x")
    group.settle()
    for name in "bc":
        group.compact(name)
    for name in "abc":
        group.restart(name)
    group.elect("b")
    group.propose("b", "y")
    group.settle()
    assert all(group.payloads(name) == ["first", *texts(20), "x", "y"] for name in "abc")


def test_an_up_to_date_log_is_one_even_when_it_is_empty_behind_its_snapshot() -> None:
    group = behind()
    for name in "ab":
        group.restart(name)
    assert group.node("a").log.last_term == 1
    group.elect("a")


def test_no_snapshot_ends_where_the_application_is_not_yet() -> None:
    group = behind()
    for index in (21, 23):
        with pytest.raises(InvalidRequest, match="no snapshot can end at"):
            group.node("a").snapshot_at(index)


def test_a_snapshot_that_was_replaced_is_not_provided() -> None:
    group = Group()
    group.provides_snapshots = False
    behind(group)
    group.heal()
    group.find("c")
    group.tick_all(1)
    node = group.node("a")
    assert node.sending_snapshot
    group.propose("a", "later")
    group.settle()
    old = group.members["a"].disk.snapshot
    assert old is not None
    group.compact("a")
    group.provides_snapshots = True
    node.provide_snapshot(old.meta.index, old.state)
    group.pump("a")
    group.settle()
    group.tick_all(4)
    assert group.payloads("c") == ["first", *texts(20), "later"]
    assert not node.sending_snapshot


# -- a proposal counts once, also when its entry is forgotten ---------------------------------


def test_a_forgotten_proposal_is_still_known() -> None:
    group = behind()
    index = group.index_by_id["proposal-3"]
    assert group.node("a").log.index_of("proposal-3") == index
    assert group.propose("a", "proposal-3") is Proposed.COMMITTED
    heal(group)
    group.restart("c")
    assert group.node("c").log.index_of("proposal-3") == index
    assert group.node("c").propose("proposal-3", b"proposal-3") is Proposed.COMMITTED


def test_a_proposal_older_than_what_is_remembered_is_refused_for_good() -> None:
    group = behind(Group(identities_max=5))
    log = group.node("a").log
    assert log.index_of("proposal-14") is None
    assert log.index_of("proposal-15") == log.horizon + 1
    assert group.propose("a", "proposal-3") is Proposed.EXPIRED
    assert group.propose("a", "proposal-17") is Proposed.COMMITTED
    # A new one is not affected, wherever it comes from.
    assert group.propose("b", "new") is Proposed.FORWARDED
    group.settle()
    assert "new" in group.index_by_id


def test_an_old_proposal_that_arrives_late_is_refused_for_good() -> None:
    group = Group(identities_max=5)
    group.elect("a")
    group.propose("b", "late")
    (late,) = group.take(Propose)
    for text in texts(20):
        group.propose("a", text)
    group.settle()
    group.deliver(late)
    group.settle()
    assert "late" in group.index_by_id, "everything is known as long as nothing is forgotten"
    group.compact("a")
    for text in texts(20, 20):
        group.propose("a", text)
    group.settle()
    group.compact("a")
    group.deliver(late)
    (refusal,) = group.take(ProposeRefused)
    assert refusal.expired
    group.deliver(refusal)
    assert group.expired == {"late"}


def test_a_heartbeat_while_a_snapshot_travels_keeps_the_leader() -> None:
    group = behind()
    group.heal()
    group.find("c")
    for _ in range(60):
        for name in "abc":
            group.tick(name)
        group.take(SnapshotChunk)
        while group.network:
            group.deliver(group.network.pop(0))
            group.take(SnapshotChunk)
    assert group.leaders() == ["a"]
    assert (group.node("c").leader, group.node("c").term) == ("a", 1)
