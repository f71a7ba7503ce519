"""Objects to bytes: a pickler that keeps what a notebook can tell apart.

The stream of a component is a small index, then several pickles in one memo: the headers of its
definitions, their bodies, the values of its names, and the contents of closure cells. Objects that
every replica has of its own (the namespace itself, the standard streams, …) are put into the memo
before the first pickle and named by persistent ids on the other side.

`loading.py` is the other side.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Iterable
from typing import Any

from cloudpickle import cloudpickle as private

from notebookos_ext.kernel import kinds
from notebookos_ext.kernel.blocks import Fingerprints
from notebookos_ext.kernel.definitions import (
    Definition,
    Definitions,
    ForeignKey,
)
from notebookos_ext.kernel.held import Leaf, Tombstone, tombstone_leaf, type_name
from notebookos_ext.kernel.reducers import Foreign, Frozen, contents, find_reducer, is_made_here
from notebookos_ext.kernel.reduction import Reduced, Reducer
from notebookos_ext.kernel.references import (
    find_cell,
    find_definition,
)
from notebookos_ext.kernel.set_order import frozen_recipe_for, recipe_for

PROTOCOL = 5

# A copy: whoever imports dill or registers reducers with cloudpickle changes theirs, not ours.
_DISPATCH = ChainMap(dict(private.Pickler._dispatch_table), copyreg.dispatch_table)  # noqa: SLF001

# Sharing one of these does not tie variables together.
SEPARATE_TYPES = frozenset(
    {
        str,
        bytes,
        int,
        float,
        complex,
        bool,
        type(None),
        range,
        slice,
        type,
        types.FunctionType,
        types.BuiltinFunctionType,
        types.ModuleType,
        types.CodeType,
        pickle.PickleBuffer,
        Tombstone,
    }
)


class SurveySession:
    """What the picklers of one survey share, see `reduction.Session`."""

    def __init__(
        self,
        definitions: Definitions,
        *,
        specials: dict[str, Any],
        shell: Any,
        block_bytes: int,
        travelling: set[str],
        fingerprints: Callable[[memoryview], Fingerprints],
    ) -> None:
        self.definitions = definitions
        self.specials = specials
        self.shell = shell
        self.block_bytes = block_bytes
        self.travelling = travelling
        """Ids of the definitions that other replicas have or get now."""
        self.fingerprints = fingerprints
        self.memory: dict[str, Any] = {}
        self.conflict = False
        self.reducers: dict[type, Reducer] = dict(kinds.EXACT)
        self.importable: dict[int, bool] = {}
        self.separate: set[int] = {id(value) for value in specials.values()}
        self.memo = {id(value): (place, value) for place, value in enumerate(specials.values())}


def _keeper(
    blocks: list[memoryview], block_bytes: int, ours: list[pickle.PickleBuffer], pieces: list[int]
) -> Callable[[pickle.PickleBuffer], bool]:
    """Takes large buffers out of the stream; true means to leave one in.

    The numbers of those that are in `ours` go to `pieces`.
    """

    def keep(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < block_bytes:
            return True
        if any(buffer is each for each in ours):
            ours.clear()
            # What stands for a read-only buffer in a stream must be one.
            if not view.readonly:
                pieces.append(len(blocks))
        blocks.append(view)
        return False

    return keep


class NamespacePickler(pickle.Pickler):
    """The C pickler with our reducers; one per component."""

    dispatch_table = _DISPATCH

    def __init__(self, session: SurveySession) -> None:
        self.file = io.BytesIO()
        self.blocks: list[memoryview] = []
        self.pieces: list[int] = []
        """Numbers of the blocks that our own functions load."""
        self._ours: list[pickle.PickleBuffer] = []
        # Not a method: a pickler that refers to itself would keep the user's objects alive.
        keep = _keeper(self.blocks, session.block_bytes, self._ours, self.pieces)
        super().__init__(self.file, PROTOCOL, buffer_callback=keep)
        self.session = session
        self.memo = session.memo
        self.references: set[str] = set()
        self.leaves: list[Leaf] = []
        self.held: dict[int, Leaf] = {}
        """Leaves by the address of what is held; the memo keeps that alive."""
        self.cells: list[types.CellType] = []
        self.touched: list[Any] = []
        """Objects that are shared without being in the memo."""
        self._adopted: dict[int, str] = {}

    def reducer_override(self, value: Any, /) -> Reduced:
        """Called by the C pickler for everything that is not an exact built-in value."""
        kind = type(value)
        reducer = self.session.reducers.get(kind)
        if reducer is None:
            reducer = self.session.reducers[kind] = find_reducer(kind)
        return reducer(self, value)

    # ------------------------------------------------------------- what reducers ask for

    def hold(self, value: object, reason: str) -> Reduced:
        """See `Reduction`."""
        if isinstance(value, Tombstone):
            leaf = tombstone_leaf(value)
        else:
            leaf = Leaf(type_name(value), reason)
        self.leaves.append(leaf)
        self.held[id(value)] = leaf
        return Tombstone, (leaf.type_name, leaf.reason)

    def lose(self, value: object, reason: str) -> None:
        """See `Reduction`."""
        self.leaves.append(Leaf(type_name(value), reason))

    def separate(self, value: object) -> None:
        """See `Reduction`."""
        self.session.separate.add(id(value))

    def buffer(self, view: memoryview, /) -> object:
        """See `Reduction`."""
        if view.nbytes < self.session.block_bytes:
            return bytes(view)
        buffer = pickle.PickleBuffer(view)
        self._ours.append(buffer)
        return buffer

    def plain(self, value: object) -> Reduced:
        """See `Reduction`."""
        reduce = _DISPATCH.get(type(value))
        return reduce(value) if reduce is not None else value.__reduce_ex__(PROTOCOL)

    # ------------------------------------------------------------- definitions

    def reference(self, definition: Definition) -> Reduced:
        """Reduce a definition to its id; its body is in a component of its own."""
        def_id = self.session.definitions.id_of(definition)
        self.references.add(def_id)
        return find_definition, (def_id,)

    def importable(self, value: Any) -> bool:
        """Whether other replicas can import a function or class."""
        found = self.session.importable.get(id(value))
        if found is None:
            # The session keeps no reference: the pickler's memo does, as long as it matters.
            found = private._should_pickle_by_reference(value)  # noqa: SLF001
            module = sys.modules.get(getattr(value, "__module__", None) or "")
            found = found and not (isinstance(module, types.ModuleType) and is_made_here(module))
            self.session.importable[id(value)] = found
        return found

    def dump_definitions(
        self, definitions: Iterable[tuple[str, Definition]]
    ) -> tuple[tuple[str, int], ...]:
        """Write headers, bodies and cells; returns the index of definitions, by rank."""
        ranked: list[tuple[str, int]] = []
        headers = sorted(definitions, key=lambda pair: _depth(pair[1]))
        for def_id, definition in headers:
            if isinstance(definition, types.FunctionType):
                self._dump_header(def_id, definition)
            else:
                self.dump(self.session.definitions.class_header(definition))
            ranked.append((def_id, _depth(definition)))
        for def_id, definition in headers:
            if isinstance(definition, types.FunctionType):
                self.dump(self._function_body(def_id, definition))
            else:
                self.dump(self.session.definitions.class_body(definition))
        self.dump_cells()
        return tuple(ranked)

    def dump_cells(self) -> None:
        """Write what is in the closure cells met since the last call, and in those met by that."""
        while self.cells:
            cells, self.cells = self.cells, []
            self.dump([(cell, _contents(cell)) for cell in cells])
        self.dump(None)

    def dump_frozen(self, groups: Iterable[frozenset[Any]]) -> None:
        """Write frozen sets by their recipes; each then takes the place of its stand-in."""
        stand_ins = [(group, Frozen(frozen_recipe_for(group))) for group in groups]
        self.dump([stand_in for _, stand_in in stand_ins])
        memo = self.memo.copy()
        for group, stand_in in stand_ins:
            memo[id(group)] = (memo.pop(id(stand_in))[0], group)
        self.memo = memo

    def dump_recipes(self, sets: Iterable[set[Any]]) -> None:
        """Write how to build those sets that would come back in another order."""
        found = [(group, recipe) for group in sets if (recipe := recipe_for(group)) is not None]
        self.dump(found or None)

    def _dump_header(self, def_id: str, function: types.FunctionType) -> None:
        """Write a function's header, and see to it that its cells and globals stay shared.

        The C pickler gives no say over an exact dict. For globals that are neither the notebook's
        nor a module's, a stand-in is pickled; then the dict takes its place in the memo, so that
        wherever else the dict is met, it is the same one.
        """
        self._name_cells(function)
        registry = self.session.definitions
        place = registry.globals_place(function, self.session.travelling)
        if not isinstance(place, ForeignKey):
            self.dump(registry.function_header(function, place))
            return
        namespace = function.__globals__
        if id(namespace) in self._adopted:
            self.dump(registry.function_header(function, namespace))
            return
        stand_in = Foreign(place)
        self.dump(registry.function_header(function, stand_in))
        memo = self.memo.copy()
        memo[id(namespace)] = (memo.pop(id(stand_in))[0], namespace)
        self.memo = memo
        self._adopted[id(namespace)] = def_id

    def _function_body(self, def_id: str, function: types.FunctionType) -> dict[str, Any]:
        body = self.session.definitions.function_body(function)
        if self._adopted.get(id(function.__globals__)) == def_id:
            body[".globals"] = contents(function.__globals__)
        return body

    def _name_cells(self, function: types.FunctionType) -> None:
        names = self.session.memory.setdefault("cells", {})
        for place, cell in enumerate(function.__closure__ or ()):
            if id(cell) not in names:
                registry = self.session.definitions
                key = registry.cell_key(cell, function, place, self.session.travelling)
                names[id(cell)] = (key, cell)

    def reduce_cell(self, cell: types.CellType) -> Reduced:
        """A cell travels empty, by name if a function has it; its contents follow."""
        self.cells.append(cell)
        named = self.session.memory.get("cells", {}).get(id(cell))
        return find_cell, ((named[0] if named else None),)


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _depth(definition: object) -> int:
    """How many definitions must exist before this one: bases, their arguments, metaclasses."""
    if not isinstance(definition, type):
        arguments = getattr(definition, "__args__", None)
        if isinstance(definition, types.FunctionType) or not isinstance(arguments, tuple):
            return 0
        return max(map(_depth, (*arguments, getattr(definition, "__origin__", None))), default=0)
    if definition.__module__ == "builtins":
        return 0
    bases = (
        getattr(definition, "__orig_bases__", ()) if "__orig_bases__" in vars(definition) else ()
    )
    return 1 + max(map(_depth, (*definition.__bases__, *bases, type(definition))))
