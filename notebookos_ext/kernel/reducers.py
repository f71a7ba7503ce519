"""How each kind of object is reduced: which reducer is asked, and those for Python's own kinds.

Classes, functions and modules are references; what a library or the standard library needs has its
reducers in a file of its own; everything else is asked for what it offers itself.
"""

from __future__ import annotations

import copyreg
import pickle
import sys
import types
from enum import Enum
from typing import Any

from cloudpickle import cloudpickle as private

from notebookos_ext.kernel import arrays, documents, frames, kinds, optimizers, tensors, trials
from notebookos_ext.kernel.definitions import ForeignKey
from notebookos_ext.kernel.filling import fill_slots
from notebookos_ext.kernel.held import Tombstone
from notebookos_ext.kernel.reduction import Reduced, Reducer, Reduction
from notebookos_ext.kernel.references import (
    fill_module,
    find_module,
    find_namespace,
    load_code,
    load_main,
)
from notebookos_ext.kernel.set_order import Recipe, freeze

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
        return (*(*reduced, None, None)[:5], fill_slots)
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
    if registered and not is_made_here(module):
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


def is_made_here(module: types.ModuleType) -> bool:
    """Whether a module was made by code: there is no file that another replica could import."""
    loader = getattr(module, "__loader__", None)
    return module.__spec__ is None and loader is None and not hasattr(module, "__file__")


def contents(namespace: dict[str, Any]) -> dict[str, Any]:
    """What travels of a module's or function's globals."""
    return {key: value for key, value in namespace.items() if key != "__builtins__"}


class Frozen:
    """Stands in a stream for a frozen set that pickle would bring back in another order."""

    def __init__(self, recipe: Recipe | None) -> None:
        self.recipe = recipe


def _reduce_frozen(_: Reduction, stand_in: Frozen) -> Reduced:
    return freeze, (stand_in.recipe,)


class Foreign:
    """Stands in a stream for the globals of functions that are not the notebook's."""

    def __init__(self, key: ForeignKey) -> None:
        self.key = key


def _reduce_foreign(_: Reduction, stand_in: Foreign) -> Reduced:
    return find_namespace, (stand_in.key,)


_FIXED: dict[type, Reducer] = {
    types.FunctionType: _reduce_function,
    types.CellType: _reduce_cell,
    types.CodeType: _reduce_code,
    types.ModuleType: _reduce_module,
    types.BuiltinFunctionType: _nothing,
    pickle.PickleBuffer: _nothing,
    tensors.StorageRoot: tensors.reduce_root,
    Foreign: _reduce_foreign,
    Frozen: _reduce_frozen,
}


def find_reducer(kind: type) -> Reducer:
    """The reducer for objects of a class; what may refuse to load again is tried first."""
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
