"""Frames arrive in any pieces; nonsense is refused before memory is spent on it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notebookos_ext.cluster.frames import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    FrameDecoder,
    encode_frame,
)
from notebookos_ext.errors import ProtocolError


class Word(msgspec.Struct, frozen=True):
    text: str


@settings(max_examples=50)
@given(st.lists(st.text(max_size=20), max_size=8), st.lists(st.integers(1, 40), min_size=1))
def test_any_pieces_give_the_same_messages(texts: list[str], sizes: list[int]) -> None:
    words = [Word(text) for text in texts]
    stream = b"".join(encode_frame(word) for word in words)
    decoder = FrameDecoder(Word)
    received: list[Word] = []
    position = turn = 0
    while position < len(stream):
        size = sizes[turn % len(sizes)]
        received += decoder.feed(stream[position : position + size])
        position, turn = position + size, turn + 1
    assert received == words


def test_an_incomplete_frame_waits() -> None:
    decoder = FrameDecoder(Word)
    frame = encode_frame(Word("hello"))
    assert decoder.feed(frame[:-1]) == []
    assert decoder.feed(b"") == []
    assert decoder.feed(frame[-1:] + frame) == [Word("hello"), Word("hello")]


def test_too_long_a_message_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        encode_frame(Word("x" * (MAX_FRAME_BYTES + 1)))


def test_too_long_a_frame_is_refused_by_its_header_alone() -> None:
    header = (MAX_FRAME_BYTES + 1).to_bytes(HEADER_BYTES, "big")
    with pytest.raises(ProtocolError, match="announced a frame"):
        FrameDecoder(Word).feed(header)


@pytest.mark.parametrize("body", [b"\xc1", b"", b"\x93\x01\x02\x03", b"\x81\xa4text\x01"])
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        FrameDecoder(Word).feed(len(body).to_bytes(HEADER_BYTES, "big") + body)
