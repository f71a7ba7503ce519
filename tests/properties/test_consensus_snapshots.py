"""Snapshots arrive whole or not at all, and a log that forgets answers like one that does not."""

from __future__ import annotations

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from notebookos_ext.cluster.consensus import snapshot as snapshots
from notebookos_ext.cluster.consensus.log import Log
from notebookos_ext.cluster.consensus.membership import Membership
from notebookos_ext.cluster.consensus.messages import Entry
from notebookos_ext.cluster.consensus.snapshot import (
    IncomingSnapshot,
    OutgoingSnapshot,
    Snapshot,
    SnapshotMeta,
)

META = SnapshotMeta(7, 3, Membership(("a", "b"), ("c",)), 5, 2, (("p", 3), ("q", 6)))


@given(
    size=st.integers(0, 400),
    piece=st.integers(1, 80),
    disorder=st.lists(st.integers(0, 500), max_size=30),
)
def test_pieces_of_any_size_in_any_order_make_the_snapshot(
    size: int, piece: int, disorder: list[int]
) -> None:
    sent = Snapshot(META, bytes(n % 251 for n in range(size)))
    with mock.patch.object(snapshots, "CHUNK_BYTES_MAX", piece):
        outgoing, incoming = OutgoingSnapshot(sent), IncomingSnapshot()

        def deliver(offset: int) -> Snapshot | None:
            chunk = outgoing.chunk(sender="a", to="c", term=4, offset=offset)
            return incoming.take(chunk)

        for offset in disorder:
            assert deliver(offset) in {None, sent}
        for _ in range(1_000):
            got = deliver(incoming.held_bytes(outgoing.snapshot_id))
            if got is not None:
                break
        assert got == sent


@given(spoilt=st.integers(0, 10_000), size=st.integers(0, 200))
def test_a_damaged_snapshot_never_arrives(spoilt: int, size: int) -> None:
    outgoing, incoming = OutgoingSnapshot(Snapshot(META, bytes(size))), IncomingSnapshot()
    chunk = outgoing.chunk(sender="a", to="c", term=4, offset=0)
    data = bytearray(chunk.data)
    data[spoilt % len(data)] ^= 1 + spoilt % 255
    damaged = type(chunk)(
        *(getattr(chunk, field) for field in chunk.__struct_fields__[:-1]), bytes(data)
    )
    assert incoming.take(damaged) is None
    assert incoming.held_bytes(chunk.snapshot_id) == 0


@given(
    terms=st.lists(st.integers(1, 3), min_size=1, max_size=20).map(sorted),
    cuts=st.lists(st.integers(0, 20), max_size=4).map(sorted),
    remembered=st.integers(0, 6),
)
def test_a_log_that_forgets_answers_like_one_that_does_not(
    terms: list[int], cuts: list[int], remembered: int
) -> None:
    entries = [
        Entry(term, index, f"p{index}", b"", Membership((f"m{index}",)) if index % 5 == 0 else None)
        for index, term in enumerate(terms, start=1)
    ]
    whole = Log(entries, founders=Membership(("f",)))
    log = Log(entries, founders=Membership(("f",)), identities_max=remembered)
    for each in (whole, log):
        each.commit_to(len(entries))
        each.take_deliverable()
    for cut in cuts:
        if log.base_index < cut <= len(entries):
            snapshot = log.snapshot_at(cut)
            assert (snapshot.term, snapshot.index) == (whole.term_at(cut), cut)
            log.compact(snapshot)
            restarted = Log(
                entries[cut:], founders=None, snapshot=snapshot, identities_max=remembered
            )
            for each in (log, restarted):
                assert (each.last_index, each.last_term) == (whole.last_index, whole.last_term)
                assert each.membership == whole.membership
                assert each.membership_index == whole.membership_index
                assert list(each.entries(1, len(entries))) == entries[cut:]
                for entry in entries:
                    known = each.index_of(entry.proposal_id)
                    assert known == (entry.index if entry.index > each.horizon else None)
                    if entry.index >= cut:
                        assert each.matches(entry.index, entry.term)
            assert len(snapshot.identities) <= remembered
