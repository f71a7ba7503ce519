"""Objects to bytes and back: a pickler that keeps what a notebook can tell apart.

The stream of a component is a small index, then several pickles in one memo: the headers of its
definitions, their bodies, the values of its names, and the contents of closure cells. Objects that
every replica has of its own (the namespace itself, the standard streams, …) are put into the memo
before the first pickle and named by persistent ids on the other side.

Loading runs user code (`__setstate__`, reconstructors): bytes must be authenticated before.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import msgspec
from cloudpickle import cloudpickle as private

from notebookos_ext.kernel import arrays, frames, kinds, tensors
from notebookos_ext.kernel.definitions import CellKey, Definition, Definitions
from notebookos_ext.kernel.held import Leaf, Tombstone, tombstone_leaf, type_name
from notebookos_ext.kernel.reduction import Reduced, Reducer, Reduction

PROTOCOL = 5
_BY_NAME: dict[tuple[str, str], Reducer] = {
    **kinds.BY_NAME,
    ("numpy", "dtype"): arrays.reduce_dtype,
    ("numpy", "ufunc"): arrays.reduce_ufunc,
    ("numpy", "memmap"): arrays.reduce_memmap,
    ("torch", "Tensor"): tensors.reduce_tensor,
    ("torch.storage", "UntypedStorage"): tensors.reduce_untyped,
    ("torch.storage", "TypedStorage"): tensors.reduce_typed,
    ("torch", "dtype"): tensors.reduce_dtype,
    ("torch", "device"): tensors.reduce_dtype,
    ("torch", "layout"): tensors.reduce_dtype,
    ("torch", "memory_format"): tensors.reduce_dtype,
    ("torch.jit._script", "ScriptModule"): tensors.reduce_script,
    **frames.BY_NAME,
}
_EXACT_BY_NAME: dict[tuple[str, str], Reducer] = {("numpy", "ndarray"): arrays.reduce_array}
"""Kinds whose subclasses have reductions of their own."""

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
        tuple,
        frozenset,
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


class Index(msgspec.Struct, frozen=True, array_like=True):
    """What stands at the head of a component's stream."""

    definitions: tuple[tuple[str, int], ...]
    """Ids with their rank: a definition's header refers only to definitions of lower rank."""
    names: tuple[str, ...]


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
    ) -> None:
        self.definitions = definitions
        self.specials = specials
        self.shell = shell
        self.block_bytes = block_bytes
        self.travelling = travelling
        """Ids of the definitions that other replicas have or get now."""
        self.memory: dict[str, Any] = {}
        self.conflict = False
        self.reducers: dict[type, Reducer] = dict(kinds.EXACT)
        self.importable: dict[int, bool] = {}
        self.separate: set[int] = {id(value) for value in specials.values()}
        self.memo = {id(value): (place, value) for place, value in enumerate(specials.values())}
        self.ranks: dict[str, int] = {}


def _nothing(_: Reduction, __: object) -> Reduced:
    return NotImplemented


def _default(pickler: Reduction, value: object) -> Reduced:
    try:
        reduced = pickler.plain(value)
    except RecursionError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a __reduce__ raises, the rest travels
        return pickler.hold(value, str(error) or type(error).__name__)
    if isinstance(reduced, str):
        pickler.separate(value)
    elif (
        len(reduced) == 3
        and reduced[2] is not None
        and hasattr(type(value), "__getattr__")
        and not hasattr(type(value), "__setstate__")
    ):
        # Looking for __setstate__ on the half-made object would run the user's __getattr__.
        return (*reduced, None, None, kinds.fill_slots)
    return reduced


class NamespacePickler(pickle.Pickler):
    """The C pickler with our reducers; one per component."""

    dispatch_table = _DISPATCH

    def __init__(self, session: SurveySession) -> None:
        self.file = io.BytesIO()
        self.blocks: list[memoryview] = []
        super().__init__(self.file, PROTOCOL, buffer_callback=self._keep)
        self.session = session
        self.memo = session.memo
        self.references: set[str] = set()
        self.leaves: list[Leaf] = []
        self.cells: list[types.CellType] = []

    def _keep(self, buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < self.session.block_bytes:
            return True
        self.blocks.append(view)
        return False

    def reducer_override(self, value: Any, /) -> Reduced:
        """Called by the C pickler for everything that is not an exact built-in value."""
        kind = type(value)
        reducer = self.session.reducers.get(kind)
        if reducer is None:
            reducer = self.session.reducers[kind] = _find_reducer(kind)
        return reducer(self, value)

    # ------------------------------------------------------------- what reducers ask for

    def hold(self, value: object, reason: str) -> Reduced:
        """See `Reduction`."""
        if isinstance(value, Tombstone):
            leaf = tombstone_leaf(value)
        else:
            leaf = Leaf(type_name(value), reason)
        self.leaves.append(leaf)
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
        return pickle.PickleBuffer(view)

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
            self.session.importable[id(value)] = found
        return found

    def dump_definitions(
        self, definitions: Iterable[tuple[str, Definition]]
    ) -> tuple[tuple[str, int], ...]:
        """Write headers, bodies and cells; returns the index of definitions, by rank."""
        ranked: list[tuple[str, int]] = []
        headers = sorted(definitions, key=lambda pair: _depth(pair[1]))
        for def_id, definition in headers:
            outer, self.references = self.references, set()
            if isinstance(definition, types.FunctionType):
                self._name_cells(definition)
                self.dump(self.session.definitions.function_header(definition))
            else:
                self.dump(self.session.definitions.class_header(definition))
            ranks = (self.session.ranks.get(other, 0) for other in self.references)
            rank = (
                _depth(definition)
                if not self.references
                else max(_depth(definition), 1 + max(ranks))
            )
            self.session.ranks[def_id] = rank
            ranked.append((def_id, rank))
            self.references |= outer
        for _, definition in headers:
            if isinstance(definition, types.FunctionType):
                self.dump(self.session.definitions.function_body(definition))
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


def _depth(definition: Definition) -> int:
    return (
        len(definition.__mro__) + len(type(definition).__mro__)
        if isinstance(definition, type)
        else 0
    )


def _reduce_class(pickler: Any, cls: type) -> Reduced:
    if type(cls) is type and (cls.__module__ == "builtins" or cls in private._BUILTIN_TYPE_NAMES):  # noqa: SLF001
        return private._class_reduce(cls)  # noqa: SLF001
    return NotImplemented if pickler.importable(cls) else pickler.reference(cls)


def _reduce_function(pickler: Any, function: types.FunctionType) -> Reduced:
    return NotImplemented if pickler.importable(function) else pickler.reference(function)


def _reduce_cell(pickler: Any, cell: types.CellType) -> Reduced:
    return pickler.reduce_cell(cell)


def _reduce_enum(pickler: Reduction, member: Enum) -> Reduced:
    pickler.separate(member)
    return pickler.plain(member)


def _reduce_code(_: Reduction, code: types.CodeType) -> Reduced:
    _, args = private._code_reduce(code)  # noqa: SLF001
    return load_code, (args, code.co_filename)


def load_code(args: tuple[Any, ...], filename: str) -> types.CodeType:
    """Code that still names the cell it came from, so that tracebacks can show it."""
    return types.CodeType(*args).replace(co_filename=filename)


def _reduce_module(pickler: Any, module: types.ModuleType) -> Reduced:
    pickler.separate(module)
    if module.__name__ == "__main__":
        return load_main, ()
    return private._module_reduce(module)  # noqa: SLF001


def load_main() -> types.ModuleType:
    """This replica's `__main__`."""
    return sys.modules["__main__"]


def find_definition(_: str) -> Any:
    """Stands in streams for the definition of that id; the unpickler puts its own in this place."""
    raise pickle.UnpicklingError("a definition can only be loaded by NamespaceUnpickler")


def find_cell(_: CellKey | None) -> Any:
    """Stands in streams for a closure cell; the unpickler puts its own in this place."""
    raise pickle.UnpicklingError("a closure cell can only be loaded by NamespaceUnpickler")


_FIXED: dict[type, Reducer] = {
    types.FunctionType: _reduce_function,
    types.CellType: _reduce_cell,
    types.CodeType: _reduce_code,
    types.ModuleType: _reduce_module,
    types.BuiltinFunctionType: _nothing,
    pickle.PickleBuffer: _nothing,
    tensors.StorageRoot: tensors.reduce_root,
}


def _find_reducer(kind: type) -> Reducer:
    fixed = _FIXED.get(kind)
    if fixed is not None:
        return fixed
    if issubclass(kind, type):
        return _reduce_class
    exact = _EXACT_BY_NAME.get((kind.__module__, kind.__qualname__))
    if exact is not None:
        return exact
    for base in kind.__mro__:
        named = _BY_NAME.get((base.__module__, base.__qualname__))
        if named is not None:
            return named
        if base is Enum:
            return _reduce_enum
        if base is types.ModuleType:
            return _reduce_module
    return _default


# ----------------------------------------------------------------- loading


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


class NamespaceUnpickler(pickle.Unpickler):
    """Reads one component's stream, in the phases that `load_streams` goes through."""

    def __init__(
        self, stream: bytes | memoryview, buffers: Iterable[Any], loading: Loading
    ) -> None:
        size = int.from_bytes(stream[:4], "big")
        self.index = msgspec.msgpack.decode(stream[4 : 4 + size], type=Index)
        file = io.BytesIO(loading.preamble + bytes(stream[4 + size :]))
        super().__init__(file, buffers=buffers)
        self._loading = loading
        self.load()
        self._bodies: list[str] = []

    def persistent_load(self, name: Any) -> Any:
        """An object that every replica has of its own."""
        return self._loading.specials[name]

    def find_class(self, module: str, name: str, /) -> Any:
        """Globals; our two stand-ins become this loading's methods."""
        if module == __name__:
            if name == "find_definition":
                return self._loading.find_definition
            if name == "find_cell":
                return self._loading.find_cell
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
                elif _contents(cell):
                    del cell.cell_contents

    def load_values(self) -> dict[str, Any]:
        """The values of the component's names."""
        values = {name: self.load() for name in self.index.names}
        self.load_cells()
        return values


Failed = Callable[[NamespaceUnpickler, BaseException], None]


def load_streams(unpicklers: list[NamespaceUnpickler], failed: Failed) -> dict[str, Any]:
    """Load components that may refer to each other's definitions; returns the values of their names.

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
