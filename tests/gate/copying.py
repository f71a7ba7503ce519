"""Copies, keys and renamings of live objects, for a search that goes on from the same member often.

Members are ordinary objects with references to each other. What never changes (numbers, strings,
frozen structs) is shared between copies.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Hashable, Mapping
from typing import Any

import msgspec

ATOMS = (int, str, bytes, float, type(None), enum.Enum, type)


class Copier:
    """Knows which attributes are no part of a state: timers that nothing reads, chance, tables."""

    def __init__(self, *, left_out: frozenset[str], shared: frozenset[str]) -> None:
        self._left_out = left_out
        """Attributes that are copied but not part of a state."""
        self._shared = shared
        """Attributes that all copies have in common, such as the source of chance."""

    def copy(self, value: Any, made: dict[int, Any] | None = None) -> Any:
        """A copy that shares no mutable part with `value`, except what is shared on purpose."""
        made = {} if made is None else made
        if isinstance(value, (*ATOMS, msgspec.Struct, tuple, frozenset)):
            return value
        if isinstance(value, list):
            return [self.copy(item, made) for item in value]
        if isinstance(value, dict):
            return {key: self.copy(item, made) for key, item in value.items()}
        if isinstance(value, set | deque | bytearray):
            return type(value)(value)
        if id(value) not in made:
            copied = made[id(value)] = self._begun(value)
            vars(copied).update({name: self.copy(i, made) for name, i in self._parts(value)})
        return made[id(value)]

    def key(self, value: Any) -> Hashable:
        """Equal for two objects exactly if they are in the same state."""
        if isinstance(value, (*ATOMS, msgspec.Struct, tuple, frozenset)):
            return value
        if isinstance(value, list | deque):
            return tuple(self.key(item) for item in value)
        if isinstance(value, dict):
            return frozenset((key, self.key(item)) for key, item in value.items())
        if isinstance(value, set):
            return frozenset(value)
        if isinstance(value, bytearray):
            return bytes(value)
        parts = (self.key(item) for name, item in self._parts(value) if name not in self._left_out)
        return (type(value).__name__, *parts)

    def renamed(
        self, value: Any, names: Mapping[str, str], made: dict[int, Any] | None = None
    ) -> Any:
        """A copy in which members are called otherwise. Tuples of names stay in order of rank."""
        made = {} if made is None else made
        if isinstance(value, str) and not isinstance(value, enum.Enum):
            return names.get(value, value)
        if isinstance(value, (*ATOMS, bytearray)):
            return value
        if isinstance(value, msgspec.Struct):
            fields = (getattr(value, field) for field in value.__struct_fields__)
            return type(value)(*(self.renamed(field, names, made) for field in fields))
        if isinstance(value, tuple):
            items = tuple(self.renamed(item, names, made) for item in value)
            return tuple(sorted(items)) if value and set(value) <= names.keys() else items
        if isinstance(value, dict):
            renamed = ((self.renamed(k, names, made), i) for k, i in value.items())
            return {key: self.renamed(item, names, made) for key, item in renamed}
        if isinstance(value, list | set | deque | frozenset):
            return type(value)(self.renamed(item, names, made) for item in value)
        if id(value) not in made:
            copied = made[id(value)] = self._begun(value)
            parts = {name: self.renamed(i, names, made) for name, i in self._parts(value)}
            vars(copied).update(parts)
        return made[id(value)]

    def _parts(self, value: Any) -> list[tuple[str, Any]]:
        return [(name, item) for name, item in vars(value).items() if name not in self._shared]

    def _begun(self, value: Any) -> Any:
        made = object.__new__(type(value))
        vars(made).update(vars(value))
        handlers = vars(value).get("_handlers")
        if handlers is not None:
            # Bound methods: the copy needs its own.
            made._handlers = {kind: getattr(made, b.__name__) for kind, b in handlers.items()}
        return made
