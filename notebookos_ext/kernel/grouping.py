"""Which roots belong together: groups, and how groups are joined by the objects they share."""

from __future__ import annotations

import types
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from notebookos_ext.kernel.serializer import SEPARATE_TYPES

Memo = dict[int, tuple[int, Any]]
"""A pickler's memo: address to (number, object)."""


_CONSTANTS = frozenset({str, bytes, int, float, complex, bool, type(None), tuple, type})


class Group(NamedTuple):
    """The roots of a component: names of the namespace and ids of definitions."""

    names: tuple[str, ...]
    definitions: tuple[str, ...]


def _is_equal_to_its_copy(value: Any) -> bool:
    """Whether components may each have their own: definitions, which have ids, and constants."""
    kind = type(value)
    if kind is tuple or kind is frozenset:
        return all(type(each) in _CONSTANTS for each in value)
    return issubclass(kind, (type, types.FunctionType))


def joined(memos: Sequence[Memo], separate: Collection[int], specials: int) -> list[list[int]]:
    """The numbers of the memos, grouped by the objects they have in common.

    Objects in `separate` and the first `specials` entries of each memo join nothing, and neither do
    immutable values, functions and classes, which travel by value or by id.
    """
    parent: list[int] = []
    joins: list[tuple[int, int]] = []

    def find(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    owner: dict[int, int] = {}
    # The largest is only asked: most objects of a notebook are often in one component.
    largest = max(range(len(memos)), key=lambda number: len(memos[number]), default=0)
    for number, memo in enumerate(memos):
        parent.append(number)
        if number == largest:
            continue
        for key, (place, value) in memo.items():
            if type(value) in SEPARATE_TYPES or place < specials:
                continue
            first = largest if key in memos[largest] else owner.setdefault(key, number)
            if first == number or key in separate or _is_equal_to_its_copy(value):
                continue
            joins.append((number, first))
    for one, other in joins:
        parent[find(one)] = find(other)
    together: dict[int, list[int]] = {}
    for number in range(len(parent)):
        together.setdefault(find(number), []).append(number)
    return list(together.values())
