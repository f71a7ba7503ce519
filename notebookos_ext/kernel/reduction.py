"""What a reducer may ask of the pickler that calls it: reducers need not know the pickler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Reduced = Any
"""What `__reduce_ex__` returns: a global's name, or a tuple of 2 to 6 items."""


class Session(Protocol):
    """What all picklers of one survey of the namespace share."""

    memory: dict[str, Any]
    """Adapters keep their map of address ranges here, under their own name."""
    conflict: bool
    """Set when memory seen as separate turned out to be shared: the survey starts again."""
    shell: Any


class Reduction(Protocol):
    """The pickler as reducers see it."""

    @property
    def session(self) -> Session:
        """What it shares with the other picklers of its survey."""
        ...

    def hold(self, value: object, reason: str) -> Reduced:
        """Reduce `value` to a tombstone: it lives in this process only."""
        ...

    def lose(self, value: object, reason: str) -> None:
        """Tell the user that `value` travels, but not all of it."""
        ...

    def separate(self, value: object) -> None:
        """Sharing `value` does not tie variables together (immutable, or found by name)."""
        ...

    def buffer(self, view: memoryview, /) -> object:
        """What to put into a reduced tuple for a flat run of bytes, large or small."""
        ...

    def plain(self, value: object) -> Reduced:
        """The reduction the value itself offers (`copyreg`, `__reduce_ex__`)."""
        ...


Reducer = Callable[[Reduction, Any], Reduced]
