"""What is left of a namespace's deltas when everything that later ones superseded is taken out.

Applied to an empty namespace, the folded deltas give what all of them would have given, in their
order. Nothing is unpickled: components say which names, definitions and references they have.

A component is kept while the last value of one of its names comes from it, or while something kept
needs a definition of it: the last version of the definition, and the one that was there when what
refers to it was loaded. Kept components stay in the order of the log. What the environment's
sections last were comes at the end, since loading may change it (random states), and what decides
about imports also at the beginning.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from notebookos_ext.cluster.entries import (
    EARLY_SECTIONS,
    Component,
    Delta,
    EnvironmentRecord,
    HistoryRecord,
)

PIECE_BYTES_MAX = 8_000_000
"""One folded delta; it travels to a replica in one frame."""

_INITIAL_NAMES = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})
"""Names that every namespace begins with, besides those with an underscore in front: that one was
deleted must be told even where nothing else says that it was there."""

_encode = msgspec.msgpack.Encoder().encode


class FoldedDelta(msgspec.Struct, frozen=True, array_like=True):
    """A delta, and the log index up to which the namespace is there once it is applied."""

    index: int
    delta: Delta


class _Placed(NamedTuple):
    """A component with the number of the delta that brought it."""

    component: Component
    step: int
    is_section: bool


def fold(deltas: Sequence[FoldedDelta]) -> tuple[FoldedDelta, ...]:
    """The same with less, for a namespace that is empty; folded deltas may be folded again.

    `deltas` are those of one epoch, in log order from its beginning. The last of the result has the
    index of the last of `deltas`; those before it are marked as unfinished.
    """
    if not deltas:
        return ()
    placed, owners, deleted = _survey(deltas)
    kept = _kept(placed, owners)
    values = [each for each in kept if not each.is_section]
    sections = [each for each in kept if each.is_section]
    stale = {name for each in values for name in each.component.names} - owners.keys()
    gone = tuple(sorted(stale | {name for name in deleted if _is_initial(name)}))
    pieces = [*_packed(values), *_packed(sections)]
    if not stale and len(pieces) == 2 and values and sections:
        # The usual case: everything in one, as if it had been sent in one.
        pieces = [values + sections]
    elif not pieces or (stale and not sections):
        # A deletion comes before what the same delta sets.
        pieces.append([])
    early = [
        each
        for each in sections
        if EARLY_SECTIONS.issuperset(each.component.names)
        and not each.component.references
        and not each.component.definitions
    ]
    return tuple(_deltas(pieces, early, _history(deltas), gone, deltas[-1]))


def _survey(
    deltas: Sequence[FoldedDelta],
) -> tuple[list[_Placed], dict[str, int], dict[str, None]]:
    """All components; which of them each name's last value comes from; names deleted at last."""
    placed: list[_Placed] = []
    owners: dict[str, int] = {}
    deleted: dict[str, None] = {}
    for step, folded in enumerate(deltas):
        delta = folded.delta
        for name in delta.deleted:
            owners.pop(name, None)
            deleted[name] = None
        record = delta.around()
        for components, is_section in ((delta.components, False), (record.components, True)):
            for component in components:
                for name in component.names:
                    owners[name] = len(placed)
                    deleted.pop(name, None)
                placed.append(_Placed(component, step, is_section))
    return placed, owners, deleted


def _kept(placed: list[_Placed], owners: dict[str, int]) -> list[_Placed]:
    """The components that are still needed, in order."""
    versions: dict[str, list[int]] = {}
    for number, each in enumerate(placed):
        for def_id in each.component.definitions or ():
            versions.setdefault(def_id, []).append(number)
    unknown = [number for number, each in enumerate(placed) if each.component.definitions is None]
    needed = [*owners.values(), *unknown]
    kept: set[int] = set()
    while needed:
        number = needed.pop()
        if number in kept:
            continue
        kept.add(number)
        component, step, is_section = placed[number]
        for def_id in (*(component.definitions or ()), *component.references):
            there = versions.get(def_id)
            if not there:
                continue
            needed.append(there[-1])
            before = [each for each in there if placed[each].step <= step]
            if before and not is_section:
                needed.append(before[-1])
    return [placed[number] for number in sorted(kept)]


def _packed(components: Iterable[_Placed]) -> Iterator[list[_Placed]]:
    """Pieces in which no name and no definition comes twice, none of them too large.

    What came in one delta stays in one piece: its components may refer to each other.
    """
    piece: list[_Placed] = []
    taken: set[str] = set()
    size_bytes = 0
    for _, step in itertools.groupby(components, key=lambda each: each.step):
        group = [*step]
        words = {word for each in group for word in _brings(each.component)}
        size = sum(_size_bytes(each.component) for each in group)
        if piece and (
            size_bytes + size > PIECE_BYTES_MAX
            or not taken.isdisjoint(words)
            or any(each.component.definitions is None for each in (*piece, *group))
        ):
            yield piece
            piece, taken, size_bytes = [], set(), 0
        piece += group
        taken |= words
        size_bytes += size
    if piece:
        yield piece


def _brings(component: Component) -> tuple[str, ...]:
    """Names and ids of definitions; no name is 32 hex digits as all those ids are."""
    return (*component.names, *(component.definitions or ()))


def _deltas(
    pieces: list[list[_Placed]],
    early: list[_Placed],
    history: list[HistoryRecord],
    gone: tuple[str, ...],
    last: FoldedDelta,
) -> Iterator[FoldedDelta]:
    latest = history[-1] if history else None
    for record in history[:-1]:
        yield FoldedDelta(0, Delta(environment=_around((), record), unfinished=True))
    for number, piece in enumerate(pieces, start=1):
        components = tuple(each.component for each in piece if not each.is_section)
        sections = [each.component for each in piece if each.is_section]
        if number < len(pieces):
            if number == 1 and not sections:
                sections = [each.component for each in early]
            environment = _around(sections, None)
            yield FoldedDelta(0, Delta(components, environment=environment, unfinished=True))
            continue
        yield FoldedDelta(
            last.index,
            msgspec.structs.replace(
                last.delta,
                components=components,
                deleted=gone,
                environment=_around(sections, latest),
            ),
        )


def _around(sections: Iterable[Component], history: HistoryRecord | None) -> bytes:
    record = EnvironmentRecord(tuple(sections), history)
    return _encode(record) if record.components or history is not None else b""


def _history(deltas: Sequence[FoldedDelta]) -> list[HistoryRecord]:
    """All that the history gained, in records that are not too long."""
    inputs: list[str] = []
    raw: list[str] = []
    start = -1
    record = None
    for folded in deltas:
        new = folded.delta.around().history
        if new is None:
            continue
        record = new
        if start < 0 or new.start < start:
            start = new.start
            inputs.clear()
            raw.clear()
        del inputs[new.start - start :], raw[new.start - start :]
        inputs += new.inputs
        raw += new.raw
    if record is None:
        return []
    cuts = [0]
    size = 0
    for number, text in enumerate(inputs):
        size += 2 * len(text)
        if size > PIECE_BYTES_MAX // 8 and number > cuts[-1]:
            cuts.append(number)
            size = 2 * len(text)
    cuts.append(max(len(inputs), len(raw)))
    nothing = (-1,) * len(record.latest)
    records = [
        HistoryRecord(
            start + begin, tuple(inputs[begin:end]), tuple(raw[begin:end]), record.count, nothing
        )
        for begin, end in itertools.pairwise(cuts)
    ]
    records[-1] = msgspec.structs.replace(records[-1], latest=record.latest)
    return records


def _is_initial(name: str) -> bool:
    return name.startswith("_") or name in _INITIAL_NAMES


def _size_bytes(component: Component) -> int:
    inline = sum(len(block.inline) + 100 * len(block.chunks) for block in component.blocks)
    words = (*_brings(component), *component.references)
    return len(component.skeleton) + inline + sum(map(len, words)) + 100
