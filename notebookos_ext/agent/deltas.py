"""Fitting a delta into one log entry: what is large goes to the store, what lacks chunks waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

import msgspec

from notebookos_ext.cluster.digests import chunk_digest
from notebookos_ext.cluster.entries import CHUNK_BYTES, Block, ChunkRef, Component, Delta

DELTA_LIMIT_BYTES = 900_000
"""Leaves room in an entry (1 MB at most) for everything around the delta."""
KEPT_INLINE_BYTES = 1024
"""Parts smaller than this stay in the log whatever happens."""

PutChunk = Callable[[str, bytes], Awaitable[None]]


def component_chunks(component: Component) -> list[str]:
    """Digests of every chunk that a component needs."""
    return [ref.digest for ref in component.chunk_refs()]


def without_missing(delta: Delta, missing: Collection[str]) -> tuple[Delta, tuple[str, ...]]:
    """Leave out components whose chunks are not in the store; their names are pending instead."""
    lacking = [c for c in delta.components if any(d in missing for d in component_chunks(c))]
    if not lacking:
        return delta, ()
    names = tuple(name for component in lacking for name in component.names)
    kept = tuple(component for component in delta.components if component not in lacking)
    pending = (*delta.pending, *(name for name in names if name not in delta.pending))
    return msgspec.structs.replace(delta, components=kept, pending=pending), names


def log_bytes(delta: Delta) -> int:
    """About how long the delta is in the log."""
    parts = sum(_inline_bytes(component) for component in delta.components)
    words = sum(len(h.name) + len(h.type_name) + len(h.reason) for h in delta.held)
    names = sum(map(len, (*delta.deleted, *delta.pending, *delta.gpu_names)))
    return parts + len(delta.environment) + words + names


async def fit(delta: Delta, put: PutChunk, limit_bytes: int = DELTA_LIMIT_BYTES) -> Delta:
    """Move the largest components' bytes to the store until the delta is short enough.

    Raises StorageError when the store cannot take them.
    """
    excess = log_bytes(delta) - limit_bytes
    if excess <= 0:
        return delta
    components = list(delta.components)
    for place in sorted(range(len(components)), key=lambda i: -_inline_bytes(components[i])):
        before = _inline_bytes(components[place])
        components[place] = await _outsource(components[place], put)
        excess -= before - _inline_bytes(components[place])
        if excess <= 0:
            break
    return msgspec.structs.replace(delta, components=tuple(components))


def _inline_bytes(component: Component) -> int:
    blocks = sum(len(block.inline) + 80 * len(block.chunks) + 16 for block in component.blocks)
    words = (*component.names, *(component.definitions or ()), *component.references)
    names = sum(len(word) + 4 for word in words)
    return len(component.skeleton) + 80 * len(component.skeleton_chunks) + blocks + names


async def _outsource(component: Component, put: PutChunk) -> Component:
    blocks = []
    for block in component.blocks:
        if len(block.inline) > KEPT_INLINE_BYTES:
            refs = await _store(block.inline, put)
            blocks.append(Block(size_bytes=block.size_bytes, chunks=refs))
        else:
            blocks.append(block)
    skeleton, skeleton_chunks = component.skeleton, component.skeleton_chunks
    if len(skeleton) > KEPT_INLINE_BYTES:
        skeleton, skeleton_chunks = b"", await _store(skeleton, put)
    return msgspec.structs.replace(
        component, skeleton=skeleton, blocks=tuple(blocks), skeleton_chunks=skeleton_chunks
    )


async def _store(data: bytes, put: PutChunk) -> tuple[ChunkRef, ...]:
    refs = []
    for start in range(0, len(data), CHUNK_BYTES):
        piece = data[start : start + CHUNK_BYTES]
        digest = chunk_digest(piece)
        await put(digest, piece)
        refs.append(ChunkRef(digest=digest, size_bytes=len(piece)))
    return tuple(refs)
