"""Who owns which piece of memory, by address: what numpy and torch share goes on being shared."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any

from notebookos_ext.kernel.reduction import Session


class Owners:
    """Address ranges of memory owned by arrays, and of foreign storages seen before their owner."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.owners: dict[int, tuple[int, Any]] = {}
        self.foreign_starts: list[int] = []
        self.foreign: dict[int, tuple[int, Any]] = {}

    def add(self, start: int, end: int, array: Any) -> bool:
        """Note an owner. True if a foreign storage was already taken to own part of its memory."""
        if start in self.owners:
            return False
        insort(self.starts, start)
        self.owners[start] = (end, array)
        place = bisect_left(self.foreign_starts, start)
        if place == len(self.foreign_starts):
            return False
        return self.foreign_starts[place] < end

    def forget_foreign(self) -> None:
        """Start again with the owners only."""
        self.foreign_starts.clear()
        self.foreign.clear()

    def find(self, start: int, end: int) -> tuple[int, Any] | None:
        """The owner whose memory holds the range, as (its start, the array)."""
        place = bisect_left(self.starts, start + 1) - 1
        if place < 0:
            return None
        first = self.starts[place]
        last, array = self.owners[first]
        return (first, array) if start < last and end <= last else None

    def foreign_root(self, start: int, end: int, root: Any) -> Any:
        """The root that stands for a foreign range; `root` if it is new."""
        known = self.foreign.get(start)
        if known is not None:
            return known[1]
        insort(self.foreign_starts, start)
        self.foreign[start] = (end, root)
        return root


def owners_of(session: Session) -> Owners:
    """The survey's map of memory."""
    found: Owners | None = session.memory.get("owners")
    if found is None:
        found = session.memory["owners"] = Owners()
    return found
