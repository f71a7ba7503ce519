"""What calls leave inside modules of the user's own: a list in `helper.py`, a counter, a cache.

Every replica imports such a module by itself, so only what became different since it was executed
travels: its globals, and the attributes of its classes, are fingerprinted right after that. What
cannot travel stays as it is, one on each replica.
"""

from __future__ import annotations

import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from typing import Any

_INSTALLED = tuple({sys.prefix, sys.base_prefix, sys.exec_prefix})
_PACKAGES = ("site-packages", "dist-packages")
_OURS = __name__.partition(".")[0]
_ATOMS = (type(None), bool, int, float, complex, str, bytes)
_NOT_DATA = (
    types.ModuleType,
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    property,
    staticmethod,
    classmethod,
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
)

Place = tuple[str, str]
"""A module's name and an attribute's, dotted where it is one of a class in that module."""
Fingerprint = Callable[[Any], bytes | None]
"""Tells values apart; None for what cannot travel."""


def is_own(module: types.ModuleType) -> bool:
    """Whether a module is the user's own: from a file that no installation brought."""
    file = getattr(module, "__file__", None)
    return (
        isinstance(file, str)
        and not file.startswith(_INSTALLED)
        and not any(folder in file for folder in _PACKAGES)
    )


class HelperState:
    """Watches the user's own modules of one process. All methods belong to the main thread."""

    def __init__(self, fingerprint: Fingerprint) -> None:
        self._fingerprint = fingerprint
        self._began: dict[str, dict[str, Any]] = {}
        """By module: what its parts were when it had been executed, atoms by value."""
        self._changed: set[Place] = set()
        self._stays: set[Place] = set()
        self._resting: bytes | None = None
        """Of everything, when it was last looked at part by part."""
        _watch(self)

    def note(self, module: types.ModuleType) -> None:
        """A module was executed, for the first time or again."""
        name = module.__name__
        self._began[name] = {
            attribute: self._state(value) for attribute, value in _parts(module).items()
        }
        self._resting = None
        for places in (self._changed, self._stays):
            places -= {place for place in places if place[0] == name}

    def _state(self, value: Any) -> Any:
        return (value,) if type(value) in _ATOMS else self._fingerprint(value)

    def capture(self) -> dict[Place, Any] | None:
        """What is different from how its module began, or was; None if nothing ever was."""
        if not self._began:
            return None
        now = {
            (name, attribute): value
            for name in self._began
            if (module := sys.modules.get(name)) is not None
            for attribute, value in _parts(module).items()
            if (name, attribute) not in self._stays
        }
        whole = self._fingerprint(now)
        if whole is None or whole != self._resting:
            for place, value in now.items():
                state = self._state(value)
                if state is None:
                    self._stays.add(place)
                elif self._began[place[0]].get(place[1]) != state:
                    self._changed.add(place)
            self._resting = whole
        travels = self._changed - self._stays
        return {place: now[place] for place in sorted(travels) if place in now} or None

    def apply(self, values: dict[Place, Any]) -> None:
        """Take over what another replica's modules have."""
        for (name, attribute), value in values.items():
            *owners, last = attribute.split(".")
            found: Any = sys.modules.get(name) or __import__("importlib").import_module(name)
            for owner in owners:
                found = vars(found)[owner]
            setattr(found, last, value)
        self._changed |= values.keys()
        self._resting = None


def _parts(module: types.ModuleType) -> dict[str, Any]:
    """The data in a module and in its classes."""
    found: dict[str, Any] = {}
    for name, value in list(vars(module).items()):
        if name.startswith("__"):
            continue
        if isinstance(value, type):
            if value.__module__ == module.__name__:
                found |= {f"{name}.{key}": each for key, each in _class_parts(value)}
        elif not isinstance(value, _NOT_DATA):
            found[name] = value
    return found


def _class_parts(cls: type) -> Iterator[tuple[str, Any]]:
    for key, value in list(vars(cls).items()):
        if not key.startswith("_") and not isinstance(value, _NOT_DATA):
            yield key, value


_watching: weakref.WeakSet[HelperState] = weakref.WeakSet()


def _watch(state: HelperState) -> None:
    """Tell `state` of each module of the user's own that is executed from now on."""
    if not _watching:
        execute = SourceFileLoader.exec_module

        def execute_and_tell(loader: SourceFileLoader, module: types.ModuleType) -> None:
            execute(loader, module)
            # Objects are read on the main thread only.
            here = threading.current_thread() is threading.main_thread()
            if here and is_own(module) and module.__name__.partition(".")[0] != _OURS:
                for each in list(_watching):
                    each.note(module)

        SourceFileLoader.exec_module = execute_and_tell  # type: ignore[method-assign,assignment]
    _watching.add(state)
