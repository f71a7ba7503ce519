"""Deltas that must fit into the log, and deltas whose chunks are missing."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebookos_ext.agent.deltas import component_chunks, fit, log_bytes, without_missing
from notebookos_ext.cluster.digests import chunk_digest
from notebookos_ext.cluster.entries import CHUNK_BYTES, Block, ChunkRef, Component, Delta
from notebookos_ext.errors import StorageFull


class Chunks(dict[str, bytes]):
    async def put(self, digest: str, data: bytes) -> None:
        assert chunk_digest(data) == digest
        assert len(data) <= CHUNK_BYTES
        self[digest] = data


def whole(component: Component, chunks: Chunks) -> tuple[bytes, list[bytes]]:
    """A component's bytes, wherever they are."""

    def joined(inline: bytes, refs: tuple[ChunkRef, ...]) -> bytes:
        return inline or b"".join(chunks[ref.digest] for ref in refs)

    blocks = [joined(block.inline, block.chunks) for block in component.blocks]
    return joined(component.skeleton, component.skeleton_chunks), blocks


SIZES = st.integers(0, 5_000)


@given(
    parts=st.lists(st.tuples(SIZES, st.lists(SIZES, max_size=3)), max_size=6),
    limit_bytes=st.integers(3_000, 20_000),
)
def test_whatever_is_moved_is_still_there(
    parts: list[tuple[int, list[int]]], limit_bytes: int
) -> None:
    chunks = Chunks()
    before = Delta(
        components=tuple(
            Component(
                names=(f"n{i}",),
                skeleton=bytes([i]) * skeleton,
                blocks=tuple(Block(size, inline=bytes([i + 50]) * size) for size in blocks),
            )
            for i, (skeleton, blocks) in enumerate(parts)
        )
    )
    after = asyncio.run(fit(before, chunks.put, limit_bytes))
    assert [whole(c, chunks) for c in after.components] == [
        whole(c, chunks) for c in before.components
    ]
    assert [c.names for c in after.components] == [c.names for c in before.components]
    movable = sum(log_bytes(Delta(components=(c,))) > 4_200 for c in before.components)
    assert log_bytes(after) <= max(limit_bytes, 6 * 4_400) or not movable
    if log_bytes(before) <= limit_bytes:
        assert after == before


def test_what_is_moved_is_cut_into_chunks_and_the_largest_goes_first() -> None:
    chunks = Chunks()
    large = Component(("large",), b"s" * (CHUNK_BYTES + 10))
    small = Component(("small",), b"s" * 1000)
    after = asyncio.run(fit(Delta(components=(small, large)), chunks.put))
    assert after.components[0] == small
    assert [ref.size_bytes for ref in after.components[1].skeleton_chunks] == [CHUNK_BYTES, 10]
    assert len(msgspec.msgpack.encode(after)) < 2_000


def test_a_store_that_is_full_is_told() -> None:
    async def put(_digest: str, _data: bytes) -> None:
        raise StorageFull("no space")

    with pytest.raises(StorageFull):
        asyncio.run(fit(Delta(components=(Component(("x",), b"x" * 10_000_000),)), put))


def test_components_without_their_chunks_become_pending() -> None:
    def with_chunks(name: str, digest: str) -> Component:
        return Component((name,), b"s", (Block(3, chunks=(ChunkRef(digest, 3),)),))

    there, lacking = with_chunks("there", "a" * 64), with_chunks("lacking", "b" * 64)
    skeleton = Component(("far",), b"", skeleton_chunks=(ChunkRef("c" * 64, 1),))
    delta = Delta(components=(there, lacking, skeleton), deleted=("d",), pending=("p", "lacking"))
    assert component_chunks(skeleton) == ["c" * 64]
    after, names = without_missing(delta, {"b" * 64, "c" * 64})
    assert names == ("lacking", "far")
    assert after == Delta(components=(there,), deleted=("d",), pending=("p", "lacking", "far"))
    assert without_missing(delta, set()) == (delta, ())
