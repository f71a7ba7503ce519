"""What a cell does to modules: loads submodules, sets attributes, reloads a helper's file."""

from __future__ import annotations

import ast
import importlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from notebookos_ext.kernel.helper_state import is_own

Patch = tuple[str, str]
"""A module's name and an attribute's, dotted where it is one of a class in that module."""
_SHELLS = {("sys", "excepthook"), ("sys", "displayhook")}
"""IPython puts its own there for the time of a cell: what the user assigns is gone after it."""


class ModuleState:
    """Watches the modules of one process. `inputs` gives the cells run so far."""

    def __init__(self, inputs: Callable[[], list[str]]) -> None:
        self._inputs = inputs
        self._count = 0
        self._modules: set[str] = set(sys.modules)
        self._imported: list[str] = []
        self._read = 0
        self._patched: dict[Patch, None] = {}
        self._specs: dict[str, Any] = {}
        self._reloads: dict[str, int] = {}
        self.sections: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
            "reloads": (lambda: dict(self._reloads), self._reload),
            "modules": (lambda: list(self._imported), _import_all),
            "patches": (self._patches, _patch),
        }

    def look(self, namespace: Mapping[str, Any]) -> None:
        """Note what happened since the last time."""
        if len(sys.modules) != self._count:
            self._note_new(namespace)
        for name, spec in self._specs.items():
            now = getattr(sys.modules.get(name), "__spec__", None)
            if now is not spec and now is not None:
                self._specs[name] = now
                self._reloads[name] = self._reloads.get(name, 0) + 1
        inputs = self._inputs()
        for source in inputs[min(self._read, len(inputs)) :]:
            for path in _assigned_attributes(source):
                owner = _resolve(namespace, path[:-1])
                if owner is not None and (patch := (owner[0], owner[1] + path[-1])) not in _SHELLS:
                    self._patched[patch] = None
        self._read = len(inputs)

    def _note_new(self, namespace: Mapping[str, Any]) -> None:
        """Find submodules of packages that the namespace names, and modules of the user's own.

        `import a.b` binds `a` only, yet makes `a.b` usable.
        """
        self._count = len(sys.modules)
        new = {name: sys.modules[name] for name in set(sys.modules) - self._modules}
        self._modules |= new.keys()
        roots = {
            vars(value)["__name__"].partition(".")[0]
            for value in list(namespace.values())
            if type(value) is types.ModuleType
        }
        self._imported += sorted(
            name
            for name, module in new.items()
            if "." in name and name.partition(".")[0] in roots and module is not None
        )
        for name, module in new.items():
            if is_own(module):
                self._specs[name] = getattr(module, "__spec__", None)

    # ------------------------------------------------------------- attributes and reloads

    def _patches(self) -> dict[Patch, Any] | None:
        found = {}
        for name, attribute in self._patched:
            *classes, last = attribute.split(".")
            owner = _find(sys.modules.get(name), classes)
            if owner is not None and last in vars(owner):
                found[name, attribute] = vars(owner)[last]
        return found or None

    def _reload(self, counts: dict[str, int]) -> None:
        for name, count in counts.items():
            module = sys.modules.get(name)
            if module is not None and self._reloads.get(name, 0) != count:
                importlib.reload(module)
                self._specs[name] = module.__spec__
            self._reloads[name] = count


def _assigned_attributes(source: str) -> Iterator[tuple[str, ...]]:
    """The dotted names that a cell assigns to, such as `("np", "random", "x")`."""
    if not ("." in source and "=" in source) and "setattr" not in source:
        return
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        path: tuple[str, ...] = ()
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            path = _dotted(node)
        elif (
            isinstance(node, ast.Call)
            and len(node.args) == 3
            and _dotted(node.func) == ("setattr",)
        ):
            before, name = _dotted(node.args[0]), node.args[1]
            if before and isinstance(name, ast.Constant) and isinstance(name.value, str):
                path = (*before, name.value)
        if path:
            yield path


def _dotted(node: ast.expr) -> tuple[str, ...]:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return (*before, node.attr) if before else ()
    return ()


def _resolve(namespace: Mapping[str, Any], path: tuple[str, ...]) -> tuple[str, str] | None:
    """The module or importable class that a dotted name means: the module, and a prefix in it.

    Asks no object but modules and classes.
    """
    found = _find(namespace.get(path[0]), path[1:])
    if isinstance(found, types.ModuleType):
        return (found.__name__, "") if sys.modules.get(found.__name__) is found else None
    if found is None or found.__module__ == "__main__":
        # Classes of the notebook travel whole.
        return None
    if _find(sys.modules.get(found.__module__), found.__qualname__.split(".")) is not found:
        return None
    return found.__module__, found.__qualname__ + "."


def _find(start: Any, names: Iterable[str]) -> types.ModuleType | type | None:
    """Follow attributes from module to module or class."""
    found = start
    for name in names:
        if not isinstance(found, types.ModuleType | type):
            return None
        found = vars(found).get(name)
    return found if isinstance(found, types.ModuleType | type) else None


def _patch(patches: dict[Patch, Any]) -> None:
    for (name, attribute), value in patches.items():
        *classes, last = attribute.split(".")
        owner = _find(importlib.import_module(name), classes)
        if owner is not None and vars(owner).get(last, patches) is not value:
            setattr(owner, last, value)


def _import_all(names: list[str]) -> None:
    for name in names:
        if name not in sys.modules:
            try:
                importlib.import_module(name)
            except Exception:  # noqa: BLE001, S112 - some submodules exist only while others load
                continue
