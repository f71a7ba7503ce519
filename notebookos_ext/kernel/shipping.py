"""Turns components into what the log and the checkpoint store take, and back."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from notebookos_ext.cluster.entries import Block, ChunkRef, Component
from notebookos_ext.kernel.blocks import ChunkShelf, fingerprints
from notebookos_ext.kernel.components import Dumped

Bytes = bytes | bytearray


class SyncOptions(msgspec.Struct, frozen=True):
    """Sizes in bytes."""

    inline_bytes: int = 256 * 1024
    """How much of a delta may stand in the log entry itself."""
    block_bytes: int = 64 * 1024
    """Buffers from this size on are kept out of the pickles."""
    early_bytes: int = 8 * 1024 * 1024
    """How much goes to the store before the reply; components beyond it follow late."""


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

    def pack(self, components: Iterable[Dumped]) -> list[Component]:
        """Components for one delta; their chunks are in the store when this returns."""
        packing = _Packing(self._shelf, self._options.inline_bytes)
        return [packing.component(each) for each in components]

    def fetch(self, component: Component) -> tuple[Bytes, list[Bytes]]:
        """A component's stream and blocks. Raises what the store does, and CorruptRecord."""
        skeleton: Bytes = component.skeleton
        if component.skeleton_chunks:
            skeleton = self._shelf.fetch(component.skeleton_chunks)
        blocks = []
        for block in component.blocks:
            data = self._shelf.read(block)
            if block.chunks:
                self._shelf.note(fingerprints(memoryview(data)), block.chunks)
            blocks.append(data)
        return skeleton, blocks


class _Packing:
    def __init__(self, shelf: ChunkShelf, inline_bytes: int) -> None:
        self._shelf = shelf
        self._inline_bytes = inline_bytes

    def _fits(self, size_bytes: int) -> bool:
        if size_bytes > self._inline_bytes:
            return False
        self._inline_bytes -= size_bytes
        return True

    def component(self, dumped: Dumped) -> Component:
        names, skeleton = dumped.group.names, dumped.skeleton
        inline = self._fits(len(skeleton))
        blocks = []
        for view, prints in zip(dumped.blocks, dumped.prints, strict=True):
            if self._fits(view.nbytes):
                blocks.append(Block(view.nbytes, inline=bytes(view)))
            else:
                blocks.append(Block(view.nbytes, chunks=self._shelf.put(view, prints)))
        chunks: tuple[ChunkRef, ...] = ()
        if not inline:
            view = memoryview(skeleton)
            skeleton, chunks = b"", self._shelf.put(view, fingerprints(view))
        return Component(
            names,
            skeleton,
            tuple(blocks),
            chunks,
            definitions=dumped.group.definitions,
            references=tuple(sorted(dumped.references)),
        )


def staged(dumped: Dumped) -> Dumped:
    """With copies of its blocks, since user code goes on with the originals."""
    return dumped._replace(blocks=tuple(memoryview(bytes(block)) for block in dumped.blocks))
