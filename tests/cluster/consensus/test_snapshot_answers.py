"""What a follower makes of a snapshot: rules that planted faults showed untested.

See `docs/consensus.md`, planted faults.
"""

from __future__ import annotations

import random

import pytest

from notebookos_ext.cluster.consensus.membership import Membership
from notebookos_ext.cluster.consensus.messages import (
    AppendAnswer,
    Entry,
    HardState,
    Heartbeat,
    SnapshotChunk,
)
from notebookos_ext.cluster.consensus.node import Node
from notebookos_ext.cluster.consensus.snapshot import OutgoingSnapshot, Snapshot, SnapshotMeta
from notebookos_ext.errors import InvalidRequest

MEMBERS = ("a", "b", "c")


def follower(terms: tuple[int, ...], *, term: int, committed: int) -> Node:
    """Member b with entries of these terms, of which its leader a has told it what is committed."""
    node = Node(
        me="b",
        members=MEMBERS,
        rng=random.Random(0),
        hard_state=HardState(term, "a"),
        entries=[Entry(t, index, f"p{index}", b"") for index, t in enumerate(terms, start=1)],
    )
    node.step(Heartbeat("a", "b", term, committed, 0))
    node.ready()
    return node


def chunk(index: int, last_term: int, *, term: int) -> SnapshotChunk:
    meta = SnapshotMeta(index, last_term, Membership(MEMBERS))
    outgoing = OutgoingSnapshot(Snapshot(meta, b"state"))
    return outgoing.chunk(sender="a", to="b", term=term, offset=0)


def test_a_snapshot_that_the_log_matches_takes_nothing_from_it() -> None:
    node = follower((1, 1), term=1, committed=0)
    node.step(chunk(1, 1, term=1))
    ready = node.ready()
    assert ready is not None
    assert ready.snapshot is None
    assert node.log.last_index == 2, "entry 2 may be acknowledged and counted already"
    assert node.log.commit_index == 1
    assert ready.messages == (AppendAnswer("b", "a", 1, accepted=True, index=1),)


def test_an_old_snapshot_proves_nothing_of_what_follows_it() -> None:
    node = follower((1, 1), term=2, committed=1)
    node.step(chunk(1, 1, term=2))
    ready = node.ready()
    assert ready is not None
    assert ready.messages == (AppendAnswer("b", "a", 2, accepted=True, index=1),), (
        "entry 2 is of an older leader, and the present one may have another there"
    )


def test_no_snapshot_ends_beyond_what_is_delivered() -> None:
    node = follower((1, 1), term=1, committed=1)
    assert node.snapshot_at(1).index == 1
    with pytest.raises(InvalidRequest, match="no snapshot can end at 2"):
        node.snapshot_at(2)
