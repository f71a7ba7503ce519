"""What must not happen when a standby replaces its copies of the notebook's objects: clean-up.

A copy that a delta replaces is gone for this process only; the user's object lives on elsewhere.
Its `__del__` or `weakref.finalize` would delete the file, or end the session, that is still in use.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_DEL = "__del__"
_known: weakref.WeakSet[type] = weakref.WeakSet()
"""The notebook's classes that have a `__del__`."""
_asleep: dict[type, Any] | None = None
"""While copies are replaced: what each class really has."""


def _nothing(_: object) -> None:
    """Stand for a `__del__` that sleeps; the class keeps the order of its attributes."""


def noticed(cls: type, body: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a class of the notebook, as the user wrote them."""
    if _DEL in body:
        _known.add(cls)
        if body[_DEL] is _nothing and _asleep is not None:
            body[_DEL] = _asleep[cls]
    return body


def give(cls: type, finalizer: Any) -> None:
    """Set a class's `__del__`; it sleeps until the copies were replaced."""
    _known.add(cls)
    if _asleep is not None:
        _asleep[cls] = finalizer
        finalizer = _nothing
    type.__setattr__(cls, _DEL, finalizer)


@contextmanager
def asleep() -> Iterator[None]:
    """No `__del__` of the notebook's classes and no `weakref.finalize` runs within.

    What became garbage within is collected before they wake up; that takes time, so it is done only
    where a class has a `__del__`.
    """
    global _asleep  # noqa: PLW0603 - one process is one replica, and classes are the process's
    _asleep = {cls: vars(cls)[_DEL] for cls in list(_known) if _DEL in vars(cls)}
    for cls in _asleep:
        type.__setattr__(cls, _DEL, _nothing)
    registry: dict[Any, Any] = weakref.finalize._registry  # type: ignore[attr-defined]  # noqa: SLF001
    weakref.finalize._registry = {}  # type: ignore[attr-defined]  # noqa: SLF001
    try:
        yield
    finally:
        sleeping, _asleep = _asleep, None
        if sleeping:
            gc.collect()
        for cls, finalizer in sleeping.items():
            if vars(cls).get(_DEL) is _nothing:
                type.__setattr__(cls, _DEL, finalizer)
        made = weakref.finalize._registry  # type: ignore[attr-defined]  # noqa: SLF001
        alive = {each: info for each, info in registry.items() if info.weakref() is not None}
        weakref.finalize._registry = alive | made  # type: ignore[attr-defined]  # noqa: SLF001
