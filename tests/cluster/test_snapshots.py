"""Snapshots of kernels are signed, versioned, and hold what a ledger knows."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebookos_ext.cluster.entries import (
    MAC_BYTES,
    ClosedEntry,
    Component,
    Delta,
    EpochEntry,
    LeadEntry,
    LogEntry,
    StateEntry,
    encode_entry,
)
from notebookos_ext.cluster.folding import FoldedDelta
from notebookos_ext.cluster.ledger import Ledger
from notebookos_ext.cluster.model import CellId, KernelId, Outcome, ReplicaId
from notebookos_ext.cluster.snapshots import KernelSnapshot, decode_snapshot, encode_snapshot
from notebookos_ext.errors import CorruptRecord

KERNEL = KernelId("kernel")
KEY = b"k" * 32
SNAPSHOT = KernelSnapshot(
    index=9,
    ledger=Ledger().state,
    deltas=(FoldedDelta(7, Delta((Component(("a",), b"s", definitions=()),))),),
    verdicts=(("p1", 3, True), ("p2", 4, False)),
    outcomes=((1, Outcome.DONE), (2, Outcome.LOST)),
)


def test_there_and_back() -> None:
    payload = encode_snapshot(KERNEL, SNAPSHOT, KEY)
    assert decode_snapshot(KERNEL, payload, KEY) == SNAPSHOT


def test_a_flipped_bit_anywhere_is_found() -> None:
    payload = encode_snapshot(KERNEL, SNAPSHOT, KEY)
    for position in range(len(payload)):
        spoiled = bytearray(payload)
        spoiled[position] ^= 1
        with pytest.raises(CorruptRecord, match="not signed"):
            decode_snapshot(KERNEL, bytes(spoiled), KEY)


def test_another_kernels_or_a_strangers_snapshot_is_refused() -> None:
    payload = encode_snapshot(KERNEL, SNAPSHOT, KEY)
    for kernel, key in ((KernelId("kerne"), KEY), (KERNEL, b"other")):
        with pytest.raises(CorruptRecord, match="not signed"):
            decode_snapshot(kernel, payload, key)


def test_an_entry_is_no_snapshot() -> None:
    entry = encode_entry(KERNEL, EpochEntry(1), KEY)
    with pytest.raises(CorruptRecord, match="not signed"):
        decode_snapshot(KERNEL, entry, KEY)


def test_a_later_format_is_named() -> None:
    later = msgspec.structs.replace(SNAPSHOT, version=2)
    with pytest.raises(CorruptRecord, match="has format 2, but this version reads 1"):
        decode_snapshot(KERNEL, encode_snapshot(KERNEL, later, KEY), KEY)
    assert len(encode_snapshot(KERNEL, later, KEY)) > MAC_BYTES


R1, R2 = ReplicaId("k:1"), ReplicaId("k:2")
replicas = st.sampled_from([R1, R2])
numbers = st.integers(0, 3)
entries: st.SearchStrategy[LogEntry] = st.one_of(
    st.builds(EpochEntry, numbers),
    st.builds(lambda e, a, r: LeadEntry(e, CellId("c"), a, r), numbers, numbers, replicas),
    st.builds(
        lambda e, a, r, o: ClosedEntry(e, CellId("c"), a, r, o, None),
        numbers,
        numbers,
        replicas,
        st.sampled_from(Outcome),
    ),
    st.builds(lambda e, a, r: StateEntry(e, a, r, Delta()), numbers, numbers, replicas),
)


@given(st.lists(entries), st.lists(entries))
def test_a_restored_ledger_decides_as_the_one_it_was_taken_from(
    before: list[LogEntry], after: list[LogEntry]
) -> None:
    ledger, restored = Ledger(), Ledger()
    for entry in before:
        ledger.accept(entry)
    snapshot = msgspec.structs.replace(SNAPSHOT, ledger=ledger.state)
    state = decode_snapshot(KERNEL, encode_snapshot(KERNEL, snapshot, KEY), KEY).ledger
    restored.restore(state)
    assert [ledger.accept(entry) for entry in after] == [restored.accept(e) for e in after]
    assert ledger.state == restored.state
