"""Turns components into what the log and the checkpoint store take; `arrival` is the way back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from notebookos_ext.cluster.entries import Block, ChunkRef, Component
from notebookos_ext.kernel.blocks import Chunk, ChunkShelf, Fingerprints, cut, fingerprints
from notebookos_ext.kernel.components import Dumped
from notebookos_ext.kernel.grouping import Group


class SyncOptions(msgspec.Struct, frozen=True):
    """Sizes in bytes."""

    inline_bytes: int = 256 * 1024
    """How much of a delta may stand in the log entry itself."""
    block_bytes: int = 64 * 1024
    """Buffers from this size on are kept out of the pickles."""
    early_bytes: int = 8 * 1024 * 1024
    """How much goes to the store before the reply; components beyond it follow late."""


class Staged(NamedTuple):
    """A component with copies of what the store lacks of its blocks."""

    group: Group
    skeleton: bytes
    blocks: tuple[list[Chunk], ...]
    prints: tuple[Fingerprints, ...]
    references: frozenset[str]


class Shipper:
    """Packs components, each delta with its own allowance of inline bytes."""

    def __init__(self, options: SyncOptions, shelf: ChunkShelf) -> None:
        self._options = options
        self._shelf = shelf

    def divide(self, changed: list[Dumped]) -> tuple[list[Dumped], list[Dumped]]:
        """Early and late: large components are late, with all that needs their definitions."""
        room = self._options.early_bytes
        early: list[Dumped] = []
        late: list[Dumped] = []
        for each in sorted(changed, key=lambda dumped: dumped.size_bytes):
            missing = sum(
                self._shelf.missing_bytes(block, prints)
                for block, prints in zip(each.blocks, each.prints, strict=True)
            )
            room -= missing
            (early if room >= 0 or not missing else late).append(each)
        waiting = {def_id for each in late for def_id in each.group.definitions}
        while waiting:
            behind = [each for each in early if each.references & waiting]
            early = [each for each in early if not each.references & waiting]
            late += behind
            waiting = {def_id for each in behind for def_id in each.group.definitions}
        return early, late

    def pack(self, components: Iterable[Dumped | Staged]) -> list[Component]:
        """Components for one delta; their chunks are in the store when this returns."""
        packing = _Packing(self._shelf, self._options.inline_bytes)
        return [packing.component(each) for each in components]

    def stage(self, dumped: Dumped) -> Staged:
        """A component to be packed later: user code goes on with the memory of its blocks."""
        pairs = zip(dumped.blocks, dumped.prints, strict=True)
        return Staged(
            dumped.group,
            dumped.skeleton,
            tuple(self._shelf.stage(view, prints) for view, prints in pairs),
            dumped.prints,
            dumped.references,
        )


class _Packing:
    def __init__(self, shelf: ChunkShelf, inline_bytes: int) -> None:
        self._shelf = shelf
        self._inline_bytes = inline_bytes

    def _fits(self, size_bytes: int) -> bool:
        if size_bytes > self._inline_bytes:
            return False
        self._inline_bytes -= size_bytes
        return True

    def component(self, packed: Dumped | Staged) -> Component:
        skeleton = packed.skeleton
        inline = self._fits(len(skeleton))
        blocks = tuple(map(self._block, packed.blocks, packed.prints))
        chunks: tuple[ChunkRef, ...] = ()
        if not inline:
            view = memoryview(skeleton)
            skeleton, chunks = b"", self._shelf.put(cut(view), fingerprints(view))
        return Component(
            packed.group.names,
            skeleton,
            blocks,
            chunks,
            definitions=packed.group.definitions,
            references=tuple(sorted(packed.references)),
        )

    def _block(self, block: memoryview | list[Chunk], prints: Fingerprints) -> Block:
        chunks = list(cut(block)) if isinstance(block, memoryview) else block
        size = sum(map(_chunk_bytes, chunks))
        new = [chunk for chunk in chunks if not isinstance(chunk, ChunkRef)]
        if len(new) == len(chunks) and self._fits(size):
            return Block(size, inline=b"".join(new))
        return Block(size, chunks=self._shelf.put(chunks, prints))


def _chunk_bytes(chunk: Chunk) -> int:
    return chunk.size_bytes if isinstance(chunk, ChunkRef) else len(chunk)
