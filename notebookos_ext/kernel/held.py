"""What cannot travel, and what stands in its place on the other replicas.

A generator, a socket or an open widget lives in one process. The pickler puts a `Tombstone` where
such an object is and reports a `Leaf`; the rest of the value travels. A tombstone raises a helpful
error on any use; only asking for its type, identity or existence is allowed.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from notebookos_ext.errors import Unavailable


class HeldElsewhere(Unavailable):
    """The value lived in the process of another replica, which is gone."""


class Leaf(NamedTuple):
    """One object met while pickling that cannot travel.

    `held` tells whether the kernel must stay with the process that has it: false for the tombstone
    of something already lost, which travels as the tombstone that it is.
    """

    type_name: str
    reason: str
    held: bool = True


def type_name(value: object) -> str:
    """The type's name as a user would write it."""
    kind = type(value)
    module = kind.__module__
    return (
        kind.__qualname__ if module in {"builtins", "__main__"} else f"{module}.{kind.__qualname__}"
    )


class Tombstone:
    """Stands for an object that could not travel; every use raises HeldElsewhere."""

    __slots__ = ("__weakref__", "_tombstone")

    def __init__(self, kind: str, reason: str) -> None:
        object.__setattr__(self, "_tombstone", (kind, reason))

    def __reduce__(self) -> tuple[Any, ...]:
        return Tombstone, object.__getattribute__(self, "_tombstone")

    def __getattribute__(self, name: str) -> Any:
        # The pickler, copy and isinstance() look these up on the instance.
        if name in {"__class__", "__reduce_ex__", "__reduce__"}:
            return object.__getattribute__(self, name)
        return _refuse(self)

    def __setattr__(self, name: str, value: object) -> None:
        _refuse(self)

    def __delattr__(self, name: str) -> None:
        _refuse(self)


def tombstone_leaf(value: Tombstone) -> Leaf:
    """What a tombstone says, without using it."""
    kind, reason = object.__getattribute__(value, "_tombstone")
    return Leaf(kind, reason, held=False)


def _refuse(tombstone: Tombstone, *_: object, **__: object) -> NoReturn:
    kind, reason = object.__getattribute__(tombstone, "_tombstone")
    raise HeldElsewhere(
        f"this {kind} did not survive the move to another replica ({reason}); "
        "run the cell that makes it again"
    )


_USES = [
    "__call__",
    "__repr__",
    "__str__",
    "__format__",
    "__bytes__",
    "__bool__",
    "__len__",
    "__iter__",
    "__next__",
    "__contains__",
    "__getitem__",
    "__setitem__",
    "__delitem__",
    "__enter__",
    "__exit__",
    "__aenter__",
    "__aexit__",
    "__await__",
    "__aiter__",
    "__anext__",
    "__add__",
    "__radd__",
    "__sub__",
    "__rsub__",
    "__mul__",
    "__rmul__",
    "__matmul__",
    "__rmatmul__",
    "__truediv__",
    "__rtruediv__",
    "__floordiv__",
    "__rfloordiv__",
    "__mod__",
    "__rmod__",
    "__pow__",
    "__rpow__",
    "__and__",
    "__rand__",
    "__or__",
    "__ror__",
    "__xor__",
    "__rxor__",
    "__lshift__",
    "__rshift__",
    "__neg__",
    "__pos__",
    "__abs__",
    "__invert__",
    "__int__",
    "__float__",
    "__complex__",
    "__index__",
    "__round__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
]
for _use in _USES:
    # Python looks operators up on the type, past __getattribute__.
    setattr(Tombstone, _use, _refuse)
