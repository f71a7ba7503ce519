"""What stands in streams for things that every replica has of its own, or makes in its own way.

The functions called `find_…` are never called: the unpickler puts its own methods in their place.
"""

from __future__ import annotations

import pickle
import sys
import types
from typing import Any

import msgspec

from notebookos_ext.kernel.definitions import CellKey, ForeignKey, replace_contents


class Index(msgspec.Struct, frozen=True, array_like=True):
    """What stands at the head of a component's stream."""

    definitions: tuple[tuple[str, int], ...]
    """Ids with their rank: a definition's header refers only to definitions of lower rank."""
    names: tuple[str, ...]
    frozen: bool = False
    """Whether frozen sets come first, by their recipes."""
    tail: bool = False
    """Whether the contents of cells and the recipes of sets follow."""
    pieces: tuple[int, ...] = ()
    """Which blocks are loaded by functions of ours that take them in pieces."""


def load_code(args: tuple[Any, ...], filename: str) -> types.CodeType:
    """Code that still names the cell it came from, so that tracebacks can show it."""
    return types.CodeType(*args).replace(co_filename=filename)


def load_main() -> types.ModuleType:
    """This replica's `__main__`."""
    return sys.modules["__main__"]


def fill_module(module: types.ModuleType, state: dict[str, Any]) -> None:
    """Give a module made by code its contents."""
    replace_contents(vars(module), state)


def empty(cell: types.CellType) -> None:
    """Take what is in a cell out of it."""
    try:
        del cell.cell_contents
    except ValueError:
        return


def find_definition(_: str) -> Any:
    """Stands in streams for the definition of that id; the unpickler puts its own in this place."""
    raise pickle.UnpicklingError("a definition can only be loaded by NamespaceUnpickler")


def find_cell(_: CellKey | None) -> Any:
    """Stands in streams for a closure cell; the unpickler puts its own in this place."""
    raise pickle.UnpicklingError("a closure cell can only be loaded by NamespaceUnpickler")


def find_namespace(_: ForeignKey) -> Any:
    """Stands in streams for a function's globals; the unpickler puts its own in this place."""
    raise pickle.UnpicklingError("globals can only be loaded by NamespaceUnpickler")


def find_module(_: ForeignKey, __: bool) -> Any:
    """Stands in streams for a module made by code; the unpickler puts its own in this place."""
    raise pickle.UnpicklingError("such a module can only be loaded by NamespaceUnpickler")
