"""The notebook's functions and classes, under ids that are the same on every replica.

A function or class defined in a cell has no module to be imported from. Sending its body with
everything that mentions it would break identity (`type(x) is Foo`), so each one is a *definition*:
it travels once, in a component of its own, and everything else names its id. When it changes, the
other replicas change their object in place; what refers to it there stays as it is.

A definition travels in two parts. The *header* is enough to create the object (code and closure
cells; metaclass, name and bases); the *body* fills it in. All headers of a delta are loaded before
the first body, so that definitions may refer to each other in any order.

Closure cells have no identity of their own in a pickle. Each is named by a function that has it and
its place there, so that functions that share a cell go on sharing it, whenever they travel.
"""

from __future__ import annotations

import sys
import types
import typing
import uuid
import weakref
from collections.abc import Container
from enum import Enum
from typing import Any, NamedTuple

from cloudpickle import cloudpickle as private

from notebookos_ext.kernel import finalizers

Definition = types.FunctionType | type
_BY_LAYOUT = (types.MemberDescriptorType, types.GetSetDescriptorType)
"""Attributes of a class that it has because of its layout, such as those for slots."""
Header = tuple[Any, ...]
CellKey = tuple[str, int]


class ForeignKey(NamedTuple):
    """Names globals that are not the notebook's by a function that has them."""

    function: str
    name: str
    """What the module that has them is called."""


class Definitions:
    """Both directions between definitions and their ids. Holds no definition alive."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._objects: weakref.WeakValueDictionary[str, Definition] = weakref.WeakValueDictionary()
        self._ids: dict[int, tuple[weakref.ref[Definition], str]] = {}
        self._cells: dict[int, tuple[weakref.ref[types.FunctionType], int]] = {}
        self._cells_limit = 1_000
        self._foreign: dict[int, weakref.ref[types.FunctionType]] = {}
        self._modules: weakref.WeakValueDictionary[int, types.ModuleType] = (
            weakref.WeakValueDictionary()
        )

    def id_of(self, definition: Definition) -> str:
        """The id of a function or class; a new one gets an id now."""
        found = self._ids.get(id(definition))
        if found is not None and found[0]() is definition:
            return found[1]
        if isinstance(definition, type):
            # cloudpickle's own id, so that what users pickle themselves loads on any replica.
            def_id: str = private._get_or_create_tracker_id(definition)  # noqa: SLF001
        else:
            def_id = uuid.uuid4().hex
        self._bind(def_id, definition)
        return def_id

    def get(self, def_id: str) -> Definition | None:
        """The definition of that id, if this replica has it."""
        return self._objects.get(def_id)

    def _bind(self, def_id: str, definition: Definition) -> None:
        key = id(definition)
        self._objects[def_id] = definition
        ids = self._ids

        def forget(_: object) -> None:
            ids.pop(key, None)

        ids[key] = (weakref.ref(definition, forget), def_id)
        if (
            isinstance(definition, type)
            and definition not in private._DYNAMIC_CLASS_TRACKER_BY_CLASS  # noqa: SLF001
        ):
            private._lookup_class_or_track(def_id, definition)  # noqa: SLF001

    # ------------------------------------------------------------- closure cells

    def cell_key(
        self,
        cell: types.CellType,
        owner: types.FunctionType,
        place: int,
        travelling: Container[str],
    ) -> CellKey:
        """Name a cell by a function that has it: a known one that travels too, else `owner`."""
        known = self._cells.get(id(cell))
        if known is not None:
            function, index = known[0](), known[1]
            if (
                function is not None
                and function.__closure__ is not None
                and index < len(function.__closure__)
                and function.__closure__[index] is cell
            ):
                def_id = self.id_of(function)
                if def_id in travelling:
                    return def_id, index
        if len(self._cells) > self._cells_limit:
            alive = {key: entry for key, entry in self._cells.items() if entry[0]() is not None}
            self._cells, self._cells_limit = alive, max(1_000, 2 * len(alive))
        self._cells[id(cell)] = (weakref.ref(owner), place)
        return self.id_of(owner), place

    def cell(self, key: CellKey) -> types.CellType | None:
        """The cell of that name, if this replica has the function."""
        function = self._objects.get(key[0])
        if not isinstance(function, types.FunctionType) or function.__closure__ is None:
            return None
        return function.__closure__[key[1]] if key[1] < len(function.__closure__) else None

    # ------------------------------------------------------------- functions

    def function_header(self, function: types.FunctionType, place: object) -> Header:
        """What creates the function: code, cells, and where its globals are."""
        return ("function", function.__code__, function.__closure__, place)

    def globals_place(
        self, function: types.FunctionType, travelling: Container[str]
    ) -> dict[str, Any] | str | ForeignKey:
        """Where a function's globals are: the notebook's, a module's by its name, or others."""
        namespace = function.__globals__
        if namespace is self._namespace:
            return namespace
        name = namespace.get("__name__")
        name = name if isinstance(name, str) else "namespace"
        module = sys.modules.get(name)
        if module is not None and getattr(module, "__dict__", None) is namespace:
            if name == "__main__":
                return self._namespace
            if getattr(module, "__spec__", None) is not None:
                return name
        known = self._foreign.get(id(namespace))
        owner = known() if known is not None else None
        if owner is not None and owner.__globals__ is namespace:
            def_id = self.id_of(owner)
            if def_id in travelling:
                return ForeignKey(def_id, name)
        self._foreign[id(namespace)] = weakref.ref(function)
        return ForeignKey(self.id_of(function), name)

    def foreign(self, key: ForeignKey) -> dict[str, Any] | None:
        """The globals of the named function, if this replica has it."""
        function = self._objects.get(key.function)
        return function.__globals__ if isinstance(function, types.FunctionType) else None

    def note_module(self, module: types.ModuleType) -> None:
        """Remember which module has these globals."""
        self._modules[id(vars(module))] = module

    def module_of(self, namespace: dict[str, Any]) -> types.ModuleType | None:
        """The module that has these globals."""
        return self._modules.get(id(namespace))

    def function_body(self, function: types.FunctionType) -> dict[str, Any]:
        """Everything else about a function, as it is now."""
        body: dict[str, Any] = {
            "__name__": function.__name__,
            "__qualname__": function.__qualname__,
            "__module__": function.__module__,
            "__doc__": function.__doc__,
            "__defaults__": function.__defaults__,
            "__kwdefaults__": function.__kwdefaults__,
            "__annotations__": function.__annotations__,
        }
        if hasattr(function, "__type_params__"):
            body["__type_params__"] = function.__type_params__
        if function.__dict__:
            body[".dict"] = dict(function.__dict__)
        return body

    def _create_function(self, def_id: str, header: Header) -> types.FunctionType:
        _, code, closure, place = header
        existing = self._objects.get(def_id)
        if isinstance(existing, types.FunctionType) and len(existing.__closure__ or ()) == len(
            closure or ()
        ):
            if existing.__code__ != code:
                existing.__code__ = code
            return existing
        if isinstance(place, str):
            __import__(place)
            place = vars(sys.modules[place])
        function = types.FunctionType(code, place, None, None, closure)
        self._bind(def_id, function)
        return function

    # ------------------------------------------------------------- classes

    def class_header(self, cls: type) -> Header:
        """What creates the class: metaclass, name, bases."""
        if issubclass(cls, Enum):
            bases, name, qualname, _, module, *_ = private._enum_getnewargs(cls)  # noqa: SLF001
            # With aliases and combined flags, which are no members of their own.
            values = {name: member.value for name, member in cls.__members__.items()}
            return ("enum", bases, name, qualname, values, module)
        meta, name, bases, keywords, *_ = private._class_getnewargs(cls)  # noqa: SLF001
        if "__slots__" in cls.__dict__:
            keywords["__slots__"] = cls.__dict__["__slots__"]
        if typing.NamedTuple in bases:
            # Naming it as a base means to make a new kind of tuple from annotations.
            bases = cls.__bases__
        return ("class", meta, name, bases, keywords)

    def class_body(self, cls: type) -> dict[str, Any]:
        """The class's own attributes, as they are now."""
        getter = private._enum_getstate if issubclass(cls, Enum) else private._class_getstate  # noqa: SLF001
        state, _ = getter(cls)
        # Slots are part of the header: they can only be given to a class when it is made.
        body = {
            key: value
            for key, value in state.items()
            if key != "__slots__" and not isinstance(value, _BY_LAYOUT)
        }
        if not issubclass(cls, Enum):
            # cloudpickle leaves out what is the very object that a base has under the same name.
            body |= {
                key: value
                for key, value in vars(cls).items()
                if key not in body and key not in _KEPT and not isinstance(value, _BY_LAYOUT)
            }
        body |= {"__name__": cls.__name__, "__qualname__": cls.__qualname__}
        if issubclass(cls, Enum):
            body[".members"] = {
                name: attributes
                for name, member in cls.__members__.items()
                if (attributes := _own_attributes(member))
            }
        return finalizers.noticed(cls, body)

    def _create_class(self, def_id: str, header: Header) -> type:
        existing = self._objects.get(def_id)
        if isinstance(existing, type):
            return existing
        if header[0] == "enum":
            _, bases, name, qualname, members, module = header
            cls = private._make_skeleton_enum(bases, name, qualname, members, module, None, None)  # noqa: SLF001
        else:
            _, meta, name, bases, keywords = header
            cls = private._make_skeleton_class(meta, name, bases, keywords, None, None)  # noqa: SLF001
        self._bind(def_id, cls)
        return cls  # type: ignore[no-any-return]

    # ------------------------------------------------------------- loading

    def create(self, def_id: str, header: Header) -> Definition:
        """Create the definition, or return the one that is already there."""
        if header[0] == "function":
            return self._create_function(def_id, header)
        return self._create_class(def_id, header)

    def fill(self, def_id: str, body: dict[str, Any], *, fresh: bool) -> None:
        """Give the definition the state of `body`; one not `fresh` loses what is not in it."""
        definition = self._objects[def_id]
        if isinstance(definition, types.FunctionType):
            _fill_function(definition, body)
        else:
            if not fresh and not issubclass(definition, Enum):
                _clear_class(definition, body)
            _fill_class(definition, body)


def _fill_function(function: types.FunctionType, body: dict[str, Any]) -> None:
    attributes = body.pop(".dict", {})
    if ".globals" in body:
        replace_contents(function.__globals__, body.pop(".globals"))
    for key, value in body.items():
        setattr(function, key, value)
    if function.__dict__ or attributes:
        function.__dict__.clear()
        function.__dict__.update(attributes)


_KEPT = {
    "__dict__",
    "__weakref__",
    "__module__",
    "__doc__",
    "__slots__",
    "_abc_impl",
    "__annotations__",
}


def _clear_class(cls: type, body: dict[str, Any]) -> None:
    for key in [key for key in cls.__dict__ if key not in body and key not in _KEPT]:
        if not isinstance(cls.__dict__[key], types.MemberDescriptorType):
            type.__delattr__(cls, key)


def _own_attributes(member: Enum) -> dict[str, Any]:
    """What an enum's `__init__` or `__new__` gave a member; `Enum` keeps its own beside that."""
    return {key: value for key, value in vars(member).items() if not key.startswith("_")}


def _fill_class(cls: type, body: dict[str, Any]) -> None:
    for name, attributes in body.pop(".members", {}).items():
        member: Any = cls[name]  # type: ignore[index]
        vars(member).update(attributes)
    registered = body.pop("_abc_impl", None)
    if "__del__" in body:
        finalizers.give(cls, body.pop("__del__"))
    for key, value in body.items():
        # The metaclass's own __setattr__ is user code that already ran where the class was made.
        type.__setattr__(cls, key, value)
    if "__firstlineno__" in body:  # Python 3.13 drops it when anything else is set.
        type.__setattr__(cls, "__firstlineno__", body["__firstlineno__"])
    for subclass in registered or ():
        cls.register(subclass)  # type: ignore[attr-defined]


def replace_contents(namespace: dict[str, Any], new: dict[str, Any]) -> None:
    """Make a dict equal to another and keep its identity, and its `__builtins__`."""
    for key in [key for key in namespace if key not in new and key != "__builtins__"]:
        del namespace[key]
    namespace.update(new)
