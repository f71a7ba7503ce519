"""What a cell does to modules: loads submodules, sets attributes, reloads a helper's file."""

from __future__ import annotations

import ast
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_INSTALLED = tuple({sys.prefix, sys.base_prefix, sys.exec_prefix})
Patch = tuple[str, str]
"""A module's name and an attribute's."""


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
                module = _resolve(namespace, path[:-1])
                if module is not None:
                    self._patched[module.__name__, path[-1]] = None
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
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and not file.startswith(_INSTALLED):
                self._specs[name] = getattr(module, "__spec__", None)

    # ------------------------------------------------------------- attributes and reloads

    def _patches(self) -> dict[Patch, Any] | None:
        found = {}
        for name, attribute in self._patched:
            module = sys.modules.get(name)
            if module is not None and attribute in vars(module):
                found[name, attribute] = vars(module)[attribute]
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
    if "." not in source or "=" not in source:
        return
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            path = _dotted(node)
            if path:
                yield path


def _dotted(node: ast.expr) -> tuple[str, ...]:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return (*before, node.attr) if before else ()
    return ()


def _resolve(namespace: Mapping[str, Any], path: tuple[str, ...]) -> types.ModuleType | None:
    """The module that a dotted name means; asks no object but modules."""
    found: Any = namespace.get(path[0])
    for name in path[1:]:
        if type(found) is not types.ModuleType:
            return None
        found = vars(found).get(name)
    if type(found) is types.ModuleType and sys.modules.get(found.__name__) is found:
        return found
    return None


def _patch(patches: dict[Patch, Any]) -> None:
    for (name, attribute), value in patches.items():
        module = importlib.import_module(name)
        if vars(module).get(attribute, patches) is not value:
            setattr(module, attribute, value)


def _import_all(names: list[str]) -> None:
    for name in names:
        if name not in sys.modules:
            try:
                importlib.import_module(name)
            except Exception:  # noqa: BLE001, S112 - some submodules exist only while others load
                continue
