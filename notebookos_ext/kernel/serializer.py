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
from enum import Enum
from typing import Any

from cloudpickle import cloudpickle as private

from notebookos_ext.kernel import arrays, documents, frames, kinds, optimizers, tensors, trials
from notebookos_ext.kernel.blocks import Fingerprints
from notebookos_ext.kernel.definitions import (
    Definition,
    Definitions,
    ForeignKey,
)
from notebookos_ext.kernel.held import Leaf, Tombstone, tombstone_leaf, type_name
from notebookos_ext.kernel.reduction import Reduced, Reducer, Reduction
from notebookos_ext.kernel.references import (
    fill_module,
    find_cell,
    find_definition,
    find_module,
    find_namespace,
    load_code,
    load_main,
)
from notebookos_ext.kernel.set_order import Recipe, freeze, frozen_recipe_for, recipe_for

PROTOCOL = 5
_BY_NAME: dict[tuple[str, str], Reducer] = {
    **kinds.BY_NAME,
    ("numpy", "dtype"): arrays.reduce_dtype,
    ("numpy", "ufunc"): arrays.reduce_ufunc,
    ("numpy", "memmap"): arrays.reduce_memmap,
    ("numpy", "ndarray"): arrays.reduce_subclass,
    ("numpy.random.mtrand", "RandomState"): arrays.reduce_random_state,
    ("torch._C", "Generator"): tensors.reduce_generator,
    ("torch", "Tensor"): tensors.reduce_tensor,
    ("torch.storage", "UntypedStorage"): tensors.reduce_untyped,
    ("torch.storage", "TypedStorage"): tensors.reduce_typed,
    ("torch", "dtype"): tensors.reduce_dtype,
    ("torch", "device"): tensors.reduce_dtype,
    ("torch", "layout"): tensors.reduce_dtype,
    ("torch", "memory_format"): tensors.reduce_dtype,
    ("torch.jit._script", "ScriptModule"): tensors.reduce_script,
    ("torch.optim.optimizer", "Optimizer"): optimizers.reduce_optimizer,
    **frames.BY_NAME,
    **documents.BY_NAME,
}
_TYPE_PARAMETERS = frozenset({("typing", "ParamSpec"), ("typing", "TypeVarTuple")})
_EXACT_BY_NAME: dict[tuple[str, str], Reducer] = {("numpy", "ndarray"): arrays.reduce_array}
"""Kinds whose subclasses have reductions of their own."""
_TYPE_VARIABLE = ("typing", "TypeVar")

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
    elif (name := sentinel_name(value, reduced)) is not None:
        pickler.separate(value)
        return name
    elif isinstance(value, dict) and getattr(value, "__dict__", None) is value:
        items: Any = value
        return kinds.load_own_dict, (type(value),), None, None, iter(list(items.items()))
    elif (
        3 <= len(reduced) < 6
        and reduced[2] is not None
        and hasattr(type(value), "__getattr__")
        and not hasattr(type(value), "__setstate__")
    ):
        # Looking for __setstate__ on the half-made object would run the user's __getattr__.
        return (*(*reduced, None, None)[:5], kinds.fill_slots)
    return reduced


def sentinel_name(value: object, reduced: Any) -> str | None:
    """The name of a value without contents that its module keeps, such as `dataclasses.MISSING`.

    What such a value means is that it is this one object.
    """
    kind = type(value)
    if reduced[0] is not copyreg.__newobj__ or reduced[1] != (kind,) or any(reduced[2:]):  # type: ignore[attr-defined]  # typeshed lacks it
        return None
    module = sys.modules.get(kind.__module__)
    if module is None or kind.__module__ == "__main__" or isinstance(value, list | dict | set):
        return None
    return next((name for name, each in vars(module).items() if each is value), None)


def _tried(reducer: Reducer) -> Reducer:
    """For classes whose objects may not load again: what cannot is held like what cannot travel."""

    def reduce(pickler: Reduction, value: object) -> Reduced:
        reduced = reducer(pickler, value)
        if not isinstance(reduced, tuple) or reduced[0] is Tombstone:
            return reduced
        problem = trials.problem(value, reduced)
        return pickler.hold(value, problem) if problem else reduced

    return reduce


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
            found = found and not (isinstance(module, types.ModuleType) and _made_here(module))
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
        stand_ins = [(group, _Frozen(frozen_recipe_for(group))) for group in groups]
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
        stand_in = _Foreign(place)
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


def _reduce_class(pickler: Any, cls: type) -> Reduced:
    if type(cls) is type and (cls.__module__ == "builtins" or cls in private._BUILTIN_TYPE_NAMES):  # noqa: SLF001
        return private._class_reduce(cls)  # noqa: SLF001
    if pickler.importable(cls):
        return NotImplemented
    if type(cls).__module__ == "_ctypes":
        return pickler.hold(cls, "the layout of a ctypes class is of this process")
    return pickler.reference(cls)


def _reduce_function(pickler: Any, function: types.FunctionType) -> Reduced:
    return NotImplemented if pickler.importable(function) else pickler.reference(function)


def _reduce_cell(pickler: Any, cell: types.CellType) -> Reduced:
    return pickler.reduce_cell(cell)


def _reduce_type_parameter(pickler: Reduction, parameter: Any) -> Reduced:
    pickler.separate(parameter)
    if parameter.__module__ != "__main__":
        return pickler.plain(parameter)
    # Known to cloudpickle under an id, as type variables are.
    tracked = private._get_or_create_tracker_id(parameter)  # noqa: SLF001
    return load_type_parameter, (type(parameter), parameter.__name__, tracked)


def _reduce_type_variable(pickler: Reduction, variable: Any) -> Reduced:
    pickler.separate(variable)
    reduced = pickler.plain(variable)
    if not isinstance(reduced, tuple) or reduced[0] is not private._make_typevar:  # noqa: SLF001
        return reduced
    return load_type_variable, (reduced[1], variable.__module__)


def load_type_variable(arguments: tuple[Any, ...], module: str) -> Any:
    """A type variable of the notebook: cloudpickle makes one per id, and calls it its own."""
    made = private._make_typevar(*arguments)  # noqa: SLF001
    made.__module__ = module
    return made


def load_type_parameter(kind: Any, name: str, tracked: str) -> Any:
    """A parameter specification or type variable tuple of the notebook; one per id."""
    made = kind(name)
    made.__module__ = "__main__"
    return private._lookup_class_or_track(tracked, made)  # noqa: SLF001


def _reduce_enum(pickler: Reduction, member: Enum) -> Reduced:
    pickler.separate(member)
    return pickler.plain(member)


def _reduce_code(_: Reduction, code: types.CodeType) -> Reduced:
    _, args = private._code_reduce(code)  # noqa: SLF001
    return load_code, (args, code.co_filename)


def _reduce_module(pickler: Any, module: types.ModuleType) -> Reduced:
    pickler.separate(module)
    if module.__name__ == "__main__":
        return load_main, ()
    registered = sys.modules.get(module.__name__) is module
    if registered and not _made_here(module):
        return private.subimport, (module.__name__,)
    namespace = vars(module)
    pickler.session.definitions.note_module(module)
    pickler.touched.append(namespace)
    key = None
    for value in list(namespace.values()):
        if isinstance(value, types.FunctionType) and value.__globals__ is namespace:
            place = pickler.session.definitions.globals_place(value, pickler.session.travelling)
            key = place if isinstance(place, ForeignKey) else None
            break
    arguments = (key or ForeignKey("", module.__name__), registered)
    return find_module, arguments, contents(namespace), None, None, fill_module


def _made_here(module: types.ModuleType) -> bool:
    """Whether a module was made by code: there is no file that another replica could import."""
    loader = getattr(module, "__loader__", None)
    return module.__spec__ is None and loader is None and not hasattr(module, "__file__")


def contents(namespace: dict[str, Any]) -> dict[str, Any]:
    """What travels of a module's or function's globals."""
    return {key: value for key, value in namespace.items() if key != "__builtins__"}


class _Frozen:
    """Stands in a stream for a frozen set that pickle would bring back in another order."""

    def __init__(self, recipe: Recipe | None) -> None:
        self.recipe = recipe


def _reduce_frozen(_: Reduction, stand_in: _Frozen) -> Reduced:
    return freeze, (stand_in.recipe,)


class _Foreign:
    """Stands in a stream for the globals of functions that are not the notebook's."""

    def __init__(self, key: ForeignKey) -> None:
        self.key = key


def _reduce_foreign(_: Reduction, stand_in: _Foreign) -> Reduced:
    return find_namespace, (stand_in.key,)


_FIXED: dict[type, Reducer] = {
    types.FunctionType: _reduce_function,
    types.CellType: _reduce_cell,
    types.CodeType: _reduce_code,
    types.ModuleType: _reduce_module,
    types.BuiltinFunctionType: _nothing,
    pickle.PickleBuffer: _nothing,
    tensors.StorageRoot: tensors.reduce_root,
    _Foreign: _reduce_foreign,
    _Frozen: _reduce_frozen,
}


def _find_reducer(kind: type) -> Reducer:
    reducer = _known_reducer(kind)
    own = reducer is _default or issubclass(kind, BaseException)
    return _tried(reducer) if own and trials.is_doubtful(kind) else reducer


def _known_reducer(kind: type) -> Reducer:
    fixed = _FIXED.get(kind)
    if fixed is not None:
        return fixed
    if issubclass(kind, type):
        return _reduce_class
    if (kind.__module__, kind.__qualname__) in _TYPE_PARAMETERS:
        return _reduce_type_parameter
    if (kind.__module__, kind.__qualname__) == _TYPE_VARIABLE:
        return _reduce_type_variable
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
