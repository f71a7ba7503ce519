"""Bytes to objects: loads the components of a delta, which may refer to each other's definitions.

Loading runs user code (`__setstate__`, reconstructors): bytes must be authenticated before.
"""

from __future__ import annotations

import builtins
import io
import pickle
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from notebookos_ext.kernel import references
from notebookos_ext.kernel.definitions import CellKey, Definition, Definitions, ForeignKey
from notebookos_ext.kernel.pieces import Data, whole
from notebookos_ext.kernel.references import Index, empty
from notebookos_ext.kernel.set_order import arrange


def preamble(specials: Iterable[str]) -> bytes:
    """A pickle that only puts the special objects into the memo, in this order."""
    parts = [b"\x80\x05"]
    for name in specials:
        parts += [b"P", name.encode("ascii"), b"\n", pickle.MEMOIZE, pickle.POP]
    return b"".join([*parts, pickle.NONE, pickle.STOP])


class Loading:
    """What the unpicklers of one delta share: definitions and cells made on the way."""

    def __init__(self, definitions: Definitions, specials: dict[str, Any]) -> None:
        self.definitions = definitions
        self.specials = specials
        self.preamble = preamble(specials)
        self.alive: dict[str, Definition] = {}
        self.fresh: set[str] = set()
        self._cells: dict[CellKey, types.CellType] = {}
        self._modules: dict[ForeignKey, types.ModuleType] = {}

    def find_definition(self, def_id: str) -> Definition:
        """The definition of that id, which some component of this or an earlier delta created."""
        found = self.alive.get(def_id)
        if found is None:
            found = self.definitions.get(def_id)
        if found is None:
            raise pickle.UnpicklingError(f"the function or class {def_id} is not on this replica")
        return found

    def find_cell(self, key: CellKey | None) -> types.CellType:
        """The cell of that name: this replica's, or a new one."""
        if key is None:
            return types.CellType()
        known = self.definitions.cell(key)
        return known if known is not None else self._cells.setdefault(key, types.CellType())

    def find_namespace(self, key: ForeignKey) -> dict[str, Any]:
        """The globals that the named function has: this replica's, or new ones."""
        known = self.definitions.foreign(key)
        return known if known is not None else vars(self._new_module(key))

    def find_module(self, key: ForeignKey, registered: bool) -> types.ModuleType:
        """The module made by code whose globals the named function has, or a new one."""
        namespace = self.definitions.foreign(key) if key.function else None
        module = self.definitions.module_of(namespace) if namespace is not None else None
        if module is None:
            module = self._new_module(key)
        if registered:
            sys.modules[module.__name__] = module
        return module

    def _new_module(self, key: ForeignKey) -> types.ModuleType:
        made = self._modules.get(key) if key.function else None
        if made is None:
            made = self._modules[key] = types.ModuleType(key.name)
            vars(made).clear()
            vars(made)["__builtins__"] = builtins
            vars(made)["__name__"] = key.name
            self.definitions.note_module(made)
        return made


class NamespaceUnpickler(pickle.Unpickler):
    """Reads one component's stream, in the phases that `load_streams` goes through."""

    def __init__(self, stream: bytes, blocks: Iterable[Data], loading: Loading) -> None:
        size = int.from_bytes(stream[:4], "big")
        self.index = msgspec.msgpack.decode(stream[4 : 4 + size], type=Index)
        file = io.BytesIO(loading.preamble + stream[4 + size :])
        pieces = self.index.pieces
        buffers = (b if number in pieces else whole(b) for number, b in enumerate(blocks))
        super().__init__(file, buffers=buffers)
        self._loading = loading
        self.load()
        if self.index.frozen:
            self.load()

    def persistent_load(self, name: Any) -> Any:
        """An object that every replica has of its own."""
        return self._loading.specials[name]

    def find_class(self, module: str, name: str, /) -> Any:
        """Globals; our two stand-ins become this loading's methods."""
        if module == references.__name__ and name.startswith("find_"):
            return getattr(self._loading, name)
        return super().find_class(module, name)

    def load_header(self, place: int) -> None:
        """Create definition number `place` of the index."""
        def_id, _ = self.index.definitions[place]
        if self._loading.definitions.get(def_id) is None:
            self._loading.fresh.add(def_id)
        definition = self._loading.definitions.create(def_id, self.load())
        self._loading.alive[def_id] = definition

    def load_bodies(self) -> None:
        """Fill the definitions in."""
        if not self.index.definitions:
            return
        for def_id, _ in self.index.definitions:
            fresh = def_id in self._loading.fresh
            self._loading.definitions.fill(def_id, self.load(), fresh=fresh)
        self.load_cells()

    def load_cells(self) -> None:
        """Fill the closure cells met so far."""
        while (contents := self.load()) is not None:
            for cell, value in contents:
                if value:
                    cell.cell_contents = value[0]
                else:
                    empty(cell)

    def load_values(self) -> dict[str, Any]:
        """The values of the component's names."""
        values = {name: self.load() for name in self.index.names}
        if not self.index.tail:
            return values
        self.load_cells()
        for group, recipe in self.load() or ():
            arrange(group, recipe)
        return values


Failed = Callable[[NamespaceUnpickler, BaseException], None]


def load_streams(unpicklers: list[NamespaceUnpickler], failed: Failed) -> dict[str, Any]:
    """Load components that may refer to each other's definitions; returns their names' values.

    A component that cannot be loaded is reported to `failed` and left out.
    """
    broken: set[int] = set()

    def attempt(unpickler: NamespaceUnpickler, step: Callable[[], Any]) -> Any:
        if id(unpickler) in broken:
            return None
        try:
            return step()
        except Exception as error:  # noqa: BLE001 - user code runs here; the others must still load
            broken.add(id(unpickler))
            failed(unpickler, error)
            return None

    headers = sorted(
        (rank, order, place)
        for order, unpickler in enumerate(unpicklers)
        for place, (_, rank) in enumerate(unpickler.index.definitions)
    )
    for _, order, place in headers:
        unpickler = unpicklers[order]
        attempt(unpickler, lambda u=unpickler, p=place: u.load_header(p))  # type: ignore[misc]
    for unpickler in unpicklers:
        attempt(unpickler, unpickler.load_bodies)
    values: dict[str, Any] = {}
    for unpickler in unpicklers:
        values.update(attempt(unpickler, unpickler.load_values) or {})
    return values
