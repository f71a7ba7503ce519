"""The components of a delta on their way in: what is not here yet is fetched, and only that.

A standby has most of a large array that a cell changed a little: chunks that it has by fingerprint
are taken from its own memory. An array that a new version of the same variables replaces, and that
nothing but these variables refers to, is not copied either: it is patched in place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any
from weakref import getweakrefcount

from notebookos_ext.cluster.entries import ChunkRef, Component
from notebookos_ext.kernel import arrays
from notebookos_ext.kernel.blocks import ChunkShelf, cut
from notebookos_ext.kernel.components import Dumped
from notebookos_ext.kernel.pieces import Data, Piece, Pieces

Arrived = tuple[bytes, list[Data]]
"""A component's stream and blocks."""
Names = tuple[str, ...]


class Arrival:
    """Fetches what the components of one delta lack.

    `here` are the components of this process that may have some of their chunks, as they are now;
    the list is emptied, since an array that it keeps alive could not be patched.
    """

    def __init__(self, shelf: ChunkShelf, namespace: dict[str, Any], here: list[Dumped]) -> None:
        self._shelf = shelf
        self._namespace = namespace
        self._chunks: dict[str, memoryview] = {}
        self._donors: dict[Names, list[str]] = {}
        """By names, the digests of an array's chunks; empty strings for unknown ones."""
        for dumped in here:
            for view, prints in zip(dumped.blocks, dumped.prints, strict=True):
                digests = []
                for chunk, found in zip(cut(view), prints, strict=True):
                    ref = shelf.find(found, chunk.nbytes)
                    digests.append("" if ref is None else ref.digest)
                    self._chunks[digests[-1]] = chunk
                names = dumped.group.names
                if len(dumped.blocks) == 1 and _donor(namespace, names) is not None:
                    self._donors[names] = digests
        here.clear()

    def take(self, components: Iterable[Component]) -> list[Arrived]:
        """Streams and blocks. Raises what the store does, and CorruptRecord."""
        plans = [self._plan(component) for component in components]
        lacking = (ref for plan in plans for ref in plan.refs if ref.digest not in self._chunks)
        pieces: dict[str, Piece] = {}
        pieces |= self._shelf.fetch(lacking)
        pieces |= self._chunks
        self._chunks.clear()
        for plan in plans:
            plan.assemble(pieces)
        pieces.clear()
        # Only now: a piece that lies in another place of the donor is a reference to it.
        return [plan.arrived(self._namespace) for plan in plans]

    def _plan(self, component: Component) -> _Plan:
        if len(component.blocks) == 1 and component.blocks[0].chunks:
            for names, digests in self._donors.items():
                donor = _donor(self._namespace, names)
                if donor.nbytes == component.blocks[0].size_bytes and _has(component, names):
                    return _Plan(component, names, digests)
        return _Plan(component)


class _Plan:
    """How one component is put together."""

    def __init__(
        self, component: Component, donor: Names = (), donated: Sequence[str] = ()
    ) -> None:
        """`donated` are the digests of the chunks of the array behind the names `donor`."""
        self._component = component
        self._donor = donor
        self._kept = [
            [ref.digest == digest for ref, digest in zip_longest(block.chunks, donated)]
            if donor
            else [False] * len(block.chunks)
            for block in component.blocks
        ]
        self._parts: list[list[Piece | None]] = []
        self._stream = component.skeleton

    @property
    def refs(self) -> Iterator[ChunkRef]:
        """The chunks that must come from elsewhere."""
        yield from self._component.skeleton_chunks
        for block, kept in zip(self._component.blocks, self._kept, strict=True):
            yield from (ref for ref, here in zip(block.chunks, kept, strict=True) if not here)

    def assemble(self, pieces: Mapping[str, Piece]) -> None:
        """Take what belongs to this component."""
        if self._component.skeleton_chunks:
            parts = (pieces[ref.digest] for ref in self._component.skeleton_chunks)
            self._stream = b"".join(parts)
        for block, kept in zip(self._component.blocks, self._kept, strict=True):
            pairs = zip(block.chunks, kept, strict=True)
            self._parts.append([None if here else pieces[ref.digest] for ref, here in pairs])

    def arrived(self, namespace: dict[str, Any]) -> Arrived:
        """The stream and the blocks; what a donor has is not copied if it can be patched."""
        donor = memory = None
        if self._donor:
            alone = _are_alone(namespace, self._donor)
            donor = _donor(namespace, self._donor)
            memory = arrays.flat_bytes(donor)
            donor = donor if alone else None
        blocks: list[Data] = []
        for block, parts in zip(self._component.blocks, self._parts, strict=True):
            sizes = [ref.size_bytes for ref in block.chunks]
            blocks.append(Pieces(parts, sizes, donor, memory) if sizes else block.inline)
        return self._stream, blocks


def _has(component: Component, names: Names) -> bool:
    return set(names) <= set(component.names)


def _donor(namespace: Mapping[str, Any], names: Names) -> Any:
    """The array that owns the memory of all these variables; None if it is not that simple."""
    owners = [value for name in names if arrays.is_owner(value := namespace.get(name))]
    owner = owners[0] if owners else None
    if all(arrays.is_over(namespace.get(name), owner) for name in names):
        return owner
    return None


def _are_alone(namespace: Mapping[str, Any], names: Names) -> bool:
    """Whether nothing but the variables refers to an array and its views."""
    ids = [id(namespace[name]) for name in names]
    views = {id(namespace[name]) for name in names if namespace[name].base is not None}
    for name in names:
        its_views = 0 if id(namespace[name]) in views else len(views)
        if _references(namespace, name) != _ALONE - 1 + ids.count(id(namespace[name])) + its_views:
            return False
    return True


def _references(namespace: Mapping[str, Any], name: str) -> int:
    """How many references there are to what a name stands for, weak ones included."""
    value = namespace[name]
    return sys.getrefcount(value) + getweakrefcount(value)


class _Probe:
    pass


_ALONE = _references({"value": _Probe()}, "value")
"""What `_references` says of an object that only the namespace refers to."""
