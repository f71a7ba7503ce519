"""Entries are signed per kernel; nothing unsigned reaches an unpickler."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebookos_ext.cluster.entries import (
    MAC_BYTES,
    BallotEntry,
    Block,
    ChunkRef,
    ClosedEntry,
    Component,
    Delta,
    EpochEntry,
    LeadEntry,
    LogEntry,
    StateEntry,
    decode_entry,
    encode_entry,
)
from notebookos_ext.cluster.model import CellId, DeviceId, HeldName, KernelId, Outcome, ReplicaId
from notebookos_ext.errors import CorruptRecord

KEY = b"k" * 32
KERNEL = KernelId("kernel")
CHUNK = ChunkRef("d1", 10)
DELTA = Delta(
    components=(
        Component(("a", "b"), b"pickle", (Block(3, inline=b"abc"), Block(10, chunks=(CHUNK,)))),
        Component(("c",), b"", (), (ChunkRef("d2", 20), ChunkRef("d3", 30))),
    ),
    deleted=("x",),
    environment=b"env",
    held=(HeldName("sock", "socket", "it is open"),),
    pending=("model",),
    gpu_names=("torch",),
)
ENTRIES: list[LogEntry] = [
    EpochEntry(2),
    LeadEntry(1, CellId("c"), 7, ReplicaId("k:1")),
    BallotEntry(1, CellId("c"), 7, ReplicaId("k:1"), lead=True, devices=(DeviceId("d"),)),
    BallotEntry(1, CellId("c"), 7, ReplicaId("k:2"), lead=False, reason="no GPU is free"),
    ClosedEntry(1, CellId("c"), 7, ReplicaId("k:1"), Outcome.DONE, DELTA),
    ClosedEntry(1, CellId("c"), 8, ReplicaId("k:1"), Outcome.LOST, None),
    StateEntry(1, 7, ReplicaId("k:1"), Delta()),
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_there_and_back(entry: LogEntry) -> None:
    assert decode_entry(KERNEL, encode_entry(KERNEL, entry, KEY), KEY) == entry


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_a_flipped_bit_anywhere_is_found(entry: LogEntry) -> None:
    payload = encode_entry(KERNEL, entry, KEY)
    for position in range(len(payload)):
        spoiled = bytearray(payload)
        spoiled[position] ^= 1
        with pytest.raises(CorruptRecord, match="not signed"):
            decode_entry(KERNEL, bytes(spoiled), KEY)


def test_an_entry_of_another_kernel_or_key_is_refused() -> None:
    payload = encode_entry(KERNEL, ENTRIES[0], KEY)
    with pytest.raises(CorruptRecord, match="kernel other"):
        decode_entry(KernelId("other"), payload, KEY)
    with pytest.raises(CorruptRecord):
        decode_entry(KERNEL, payload, b"x" * 32)


def test_bytes_cannot_move_between_the_kernels_name_and_the_entry() -> None:
    """The name's length is signed, too: `ab` with an entry is not `a` with another."""
    signed = encode_entry(KernelId("ab"), ENTRIES[0], KEY)
    with pytest.raises(CorruptRecord):
        decode_entry(KernelId("a"), signed[:MAC_BYTES] + b"b" + signed[MAC_BYTES:], KEY)


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode_entry(KERNEL, noise, KEY)


def test_the_chunks_of_a_delta() -> None:
    assert {ref.digest for ref in DELTA.chunk_refs()} == {"d1", "d2", "d3"}
    assert Delta().chunk_refs() == ()
