"""The order in which a set gives its elements, kept across a pickle.

A set's order depends on its table's size and on which element came first to a contested place.
Pickle adds the elements in the order they are given out, which can settle contests otherwise, or
leave a smaller table. Where that would show, a *recipe* travels with the set: an order of adding,
the table's size, and the places of deleted elements, which others had to pass. Equal hashes are a
condition: all replicas share one hash seed.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterable
from typing import Any

Recipe = tuple[list[Any], int, list[int]]

_WORD = ctypes.sizeof(ctypes.c_ssize_t)
_FILL_AT, _MASK_AT, _TABLE_AT = 2 * _WORD, 4 * _WORD, 5 * _WORD
"""Of CPython's set object, behind its header: fill, used, mask, table."""
_LINEAR_PROBES = 9
_PERTURB_SHIFT = 5
_MAX_ORDERS = 150
_MAX_SHUFFLED = 64
_AT_ONCE = -1
"""As a table's size: what a dict's length makes it, as when a set is made from a set."""
_MAX_ELEMENTS = 100_000


def recipe_for(group: set[Any]) -> Recipe | None:
    """How to build a set with the order of `group`; None if pickle's way does, or none is known."""
    given = list(group)
    if not given or len(given) > _MAX_ELEMENTS:
        return None
    pickled = set(given)
    same_order = list(pickled) == given
    if same_order and _counts(pickled) == _counts(group):
        return None
    size, slots, deleted = _table(group)
    if len(slots) != len(given):
        return None
    second_best: Recipe | None = None
    for recipe in _candidates(given, size, slots, deleted):
        built: set[Any] = set()
        arrange(built, recipe)
        if list(built) == given:
            if _counts(built) == _counts(group):
                return recipe
            second_best = second_best or recipe
    return None if same_order else second_best


def frozen_recipe_for(group: frozenset[Any]) -> Recipe | None:
    """How to build a frozen set with the order of `group`; None as for `recipe_for`."""
    given = list(group)
    if len(given) < 2 or len(given) > _MAX_ELEMENTS or list(frozenset(given)) == given:
        return None
    size, slots, deleted = _table(group)
    if len(slots) != len(given):
        return None
    for recipe in _candidates(given, size, slots, deleted):
        if list(freeze(recipe)) == given:
            return recipe
    return None


def freeze(recipe: Recipe) -> frozenset[Any]:
    """A frozen set by its recipe."""
    order, size, _ = recipe
    if not size:
        return frozenset(order)
    if size == _AT_ONCE:
        return frozenset(dict.fromkeys(order))
    built: set[Any] = set()
    arrange(built, recipe)
    return frozenset(built)


def _counts(group: set[Any]) -> tuple[int, int]:
    """How many places were ever taken, and the table's size: the next elements depend on both."""
    start = id(group)
    fill = ctypes.c_ssize_t.from_address(start + _FILL_AT).value
    return fill, ctypes.c_ssize_t.from_address(start + _MASK_AT).value


class _Filler:
    """Takes a place in a table."""

    __slots__ = ("_place",)

    def __init__(self, place: int) -> None:
        self._place = place

    def __hash__(self) -> int:
        return self._place


def arrange(group: set[Any], recipe: Recipe) -> None:
    """Empty `group` and fill it by the recipe. A size of 0 lets the table grow as it does."""
    order, size, deleted = recipe
    group.clear()
    fillers: list[Any] = [_Filler(place) for place in deleted]
    adding = [*fillers, *order]
    if size == _AT_ONCE:
        group.update(dict.fromkeys(order))
        return
    if size:
        # Updating from a dict makes room for twice its length at once.
        first = min(len(adding), size // 2 - 1)
        more = [_Filler(place) for place in range(size // 4 + 1 - first)]
        group.update(dict.fromkeys([*adding[:first], *more]))
        fillers += more
        adding = adding[first:]
    for each in adding:
        group.add(each)
    group.difference_update(fillers)


def _table(group: set[Any] | frozenset[Any]) -> tuple[int, list[int], list[int]]:
    """The table's size, the places that are taken, in order, and those of deleted elements."""
    start = id(group)
    mask = ctypes.c_ssize_t.from_address(start + _MASK_AT).value
    table = ctypes.c_ssize_t.from_address(start + _TABLE_AT).value
    entries = (ctypes.c_ssize_t * (2 * (mask + 1))).from_address(table)
    # An entry is a key's address and its hash; a deleted one has the hash -1.
    used = [place for place in range(mask + 1) if entries[2 * place]]
    taken = [place for place in used if entries[2 * place + 1] != -1]
    return mask + 1, taken, [place for place in used if entries[2 * place + 1] == -1]


def _candidates(
    given: list[Any], size: int, slots: list[int], deleted: list[int]
) -> Iterable[Recipe]:
    order = _settled(given, size, slots)
    if not deleted:
        yield order, 0, []
        yield order, _AT_ONCE, []
        if len(given) <= _MAX_SHUFFLED:
            # A growing table settles contests anew; few orders of adding go wrong everywhere.
            chance = random.Random(0)
            for _ in range(_MAX_ORDERS):
                chance.shuffle(order)
                yield list(order), 0, []
            order = _settled(given, size, slots)
    yield order, size, deleted


def _settled(given: list[Any], size: int, slots: list[int]) -> list[Any]:
    """The elements so that each comes after those that made it move on from a better place."""
    at = dict(zip(slots, given, strict=True))
    order: list[Any] = []
    done: set[int] = set()
    for slot in slots:
        waiting = [slot]
        while waiting:
            current = waiting[-1]
            before = [
                place
                for place in _probes(hash(at[current]), size, current)
                if place in at and place not in done and place not in waiting
            ]
            if before:
                waiting.append(before[0])
                continue
            waiting.pop()
            if current not in done:
                done.add(current)
                order.append(at[current])
    return order


def _probes(value: int, size: int, until: int) -> Iterable[int]:
    """The places looked at for a hash before the one it got."""
    mask = size - 1
    perturb = value & (2 ** (8 * _WORD) - 1)
    place = value & mask
    for _ in range(4 * size):
        span = _LINEAR_PROBES if place + _LINEAR_PROBES <= mask else 0
        for near in range(place, place + span + 1):
            if near == until:
                return
            yield near
        perturb >>= _PERTURB_SHIFT
        place = (place * 5 + 1 + perturb) & mask
