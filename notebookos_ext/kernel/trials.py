"""Whether what a class offers for pickling can be loaded again, found out before it is relied on.

Python pickles many objects that it cannot load: a class whose `__new__` wants an argument, an
exception whose `__init__` wants more than `args`, a `__setstate__` that raises. On the other
replicas such a value would be a tombstone, and its user would not know. So one object of each
class is tried here: by signatures, which run nothing of the user's, and `__setstate__` by calling
it on an empty instance.
"""

from __future__ import annotations

import copy
import copyreg
import inspect
import weakref
from typing import Any

_PLAIN_NEW: Any = object.__new__
_problems: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()
"""What was found out, by class; empty: it can be loaded."""


def is_doubtful(kind: type) -> bool:
    """Whether loading an object of this class runs code that may refuse."""
    if _problems.get(kind) == "":
        return False
    return (
        _is_overridden(kind, "__new__")
        or _is_overridden(kind, "__setstate__")
        or (issubclass(kind, BaseException) and _is_overridden(kind, "__init__"))
    )


def problem(value: object, reduced: Any) -> str:
    """Why `reduced` of a doubtful `value` cannot be loaded; empty if nothing speaks against it."""
    kind = type(value)
    found = _problems.get(kind)
    if found is None:
        found = _problems[kind] = _call(reduced) or _state(kind, reduced)
    return found


def _is_overridden(kind: type, name: str) -> bool:
    """Whether a Python function stands there, and not what C wrote."""
    return inspect.isfunction(_attribute(kind, name))


def _attribute(kind: type, name: str) -> Any:
    return getattr(kind, name, None)


def _call(reduced: Any) -> str:
    """Why the call that makes the object cannot be made, from the signatures alone."""
    function, arguments = reduced[0], reduced[1]
    if function is copyreg.__newobj__:  # type: ignore[attr-defined]  # typeshed lacks it
        return _unfit(arguments[0].__new__, arguments)
    if function is copyreg.__newobj_ex__:  # type: ignore[attr-defined]  # as above
        kind, positional, named = arguments
        return _unfit(kind.__new__, (kind, *positional), named)
    if isinstance(function, type):
        # Calling a class: each of the two takes the arguments, and C functions take any.
        return _unfit(function.__new__, (function, *arguments)) or _unfit(
            _attribute(function, "__init__"), (None, *arguments)
        )
    return ""


def _unfit(function: Any, positional: tuple[Any, ...], named: dict[str, Any] | None = None) -> str:
    if not inspect.isfunction(function):
        return ""
    try:
        inspect.signature(function).bind(*positional, **(named or {}))
    except TypeError as error:
        return (
            f"it can be pickled but not loaded again: {function.__qualname__} is called with what "
            f"pickling keeps, and {error}"
        )
    except ValueError:
        return ""
    return ""


def _state(kind: type, reduced: Any) -> str:
    """Why `__setstate__` refuses what `__getstate__` gave."""
    state = reduced[2] if len(reduced) > 2 else None
    if state is None or not _is_overridden(kind, "__setstate__"):
        return ""
    makes: Any = kind.__new__
    if makes is not _PLAIN_NEW or hasattr(kind, "__del__"):
        # An instance more would be noticed.
        return ""
    try:
        # A copy: it may be changed, and the object itself must not be.
        object.__new__(kind).__setstate__(copy.copy(state))
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        return (
            "it can be pickled but not loaded again: __setstate__ raised "
            f"{type(error).__name__}: {error}"
        )
    return ""
