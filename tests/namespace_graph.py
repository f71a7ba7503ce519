"""A description of a namespace's object graph: equal text means equal values, types and identities.

Every object gets a number when it is first met; later it is only its number. What shares memory
(numpy, torch) has the number of the memory's owner and its place in it. What has no state that can
be told from outside is only its type.
"""

from __future__ import annotations

import contextlib
import enum
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

ATOMS = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range)
BY_REPR = {
    ("datetime", None),
    ("_decimal", "Decimal"),
    ("decimal", "Decimal"),
    ("fractions", "Fraction"),
    ("pathlib", None),
    ("uuid", "UUID"),
    ("zoneinfo", None),
    ("re", "Pattern"),
    ("ipaddress", None),
    ("numpy", "dtype"),
    ("torch", "dtype"),
    ("torch", "device"),
    ("torch", "Size"),
    ("builtins", "slice"),
}
OPAQUE = (
    "concurrent",
    "subprocess",
    "requests",
    "scipy",
    "matplotlib",
    "IPython",
    "traitlets",
    "ipywidgets",
    "comm",
    "asyncio",
    "logging",
    "sympy",
)
"""Packages whose objects keep what differs between processes; cases look at them from outside."""
CLASS_PARTS = {"__dict__", "__weakref__", "__doc__", "__module__", "_abc_impl", "__slotnames__"}
"""Of classes; the last is made when copyreg first looks at the class."""
DEEPEST = 60
Region = tuple[int, int]
"""The address of the first byte, and that behind the last one."""


class Walk:
    """One walk through a namespace, by `describe`."""

    def __init__(self, namespace: dict[str, Any], regions: Iterable[Region] = ()) -> None:
        self._namespace = namespace
        self._regions = list(regions)
        self.met: list[Region] = []
        """All memory that was met."""
        self._numbers: dict[Any, int] = {}
        """By address, or by what else says who something is."""
        self._alive: list[Any] = []
        self._depth = 0

    def _number(self, key: Any) -> tuple[int, bool]:
        known = key in self._numbers
        return self._numbers.setdefault(key, len(self._numbers)), known

    def describe(self, value: Any) -> Any:
        """`value` as text, numbers and nested lists."""
        kind = type(value)
        if kind in weakref.ProxyTypes:
            return "a proxy"
        if kind.__name__.endswith("iterator"):
            # Python's own pickling turns some kinds into others.
            return "an iterator"
        if kind in ATOMS:
            return repr(value)
        if kind in (tuple, frozenset) and _is_constant(value):
            # Equal ones may be one object or several.
            return [kind.__name__, *self._all(value)]
        special = self._special(value)
        if special is not None:
            return special
        number, known = self._number(id(value))
        if known:
            return ["seen", number]
        self._alive.append(value)
        if self._depth > DEEPEST:
            return ["deep"]
        self._depth += 1
        try:
            return [number, self._named(kind), *self._parts(value, kind)]
        finally:
            self._depth -= 1

    def _special(self, value: Any) -> Any:
        if value is self._namespace:
            return "the namespace"
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        if isinstance(value, enum.Enum):
            return ["member", type(value).__name__, value.name]
        kind = type(value)
        if (kind.__module__, kind.__qualname__) in BY_REPR or (kind.__module__, None) in BY_REPR:
            return repr(value)
        if isinstance(value, type | types.FunctionType) and _importable(value):
            return ["import", value.__module__, value.__qualname__]
        return None

    def _named(self, kind: type) -> str:
        return f"{kind.__module__}.{kind.__qualname__}"

    def _all(self, values: Iterable[Any]) -> list[Any]:
        return [self.describe(each) for each in values]

    def _pairs(self, pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
        return [[self.describe(key), self.describe(each)] for key, each in pairs]

    def _parts(self, value: Any, kind: type) -> list[Any]:
        for base in kind.__mro__:
            parts = _PARTS.get((base.__module__, base.__qualname__))
            if parts is not None:
                return parts(self, value)
        if kind.__module__.partition(".")[0] in OPAQUE:
            return []
        return self._attributes(value)

    def _attributes(self, value: Any) -> list[Any]:
        found: list[Any] = []
        with contextlib.suppress(AttributeError):
            found += self._pairs(object.__getattribute__(value, "__dict__").items())
        for base in type(value).__mro__:
            for name, slot in list(vars(base).items()):
                if isinstance(slot, types.MemberDescriptorType) and base.__module__ == "__main__":
                    try:
                        found.append([name, self.describe(slot.__get__(value))])
                    except AttributeError:
                        found.append([name])
        return found

    # ------------------------------------------------------------- kinds

    def items(self, value: Any) -> list[Any]:
        base = next(each for each in type(value).__mro__ if each.__module__ != "__main__")
        more = [] if base is type(value) else self._attributes(value)
        return [self._all(base.__iter__(value)), *more]

    def weak_mapping(self, value: Any) -> list[Any]:
        return [self._pairs(value.items())]

    def weak_items(self, value: Any) -> list[Any]:
        return [self._all(value)]

    def mapping(self, value: Any) -> list[Any]:
        more = [] if type(value).__module__ == "builtins" else self._attributes(value)
        pairs = [pair for pair in dict.items(value) if pair[0] != "__builtins__"]
        return [self._pairs(pairs), *more]

    def function(self, value: types.FunctionType) -> list[Any]:
        cells = []
        for cell in value.__closure__ or ():
            number, known = self._number(id(cell))
            self._alive.append(cell)
            try:
                cells.append([number, "seen" if known else self.describe(cell.cell_contents)])
            except ValueError:
                cells.append([number, "empty"])
        where = value.__globals__
        return [
            value.__qualname__,
            value.__module__,
            value.__code__.co_code.hex(),
            self._all((value.__defaults__, value.__kwdefaults__, value.__annotations__)),
            self._pairs(value.__dict__.items()),
            cells,
            "" if where is self._namespace else str(where.get("__name__")),
        ]

    def method(self, value: Any) -> list[Any]:
        return self._all((value.__func__, value.__self__))

    def builtin_method(self, value: Any) -> list[Any]:
        return [value.__qualname__, self.describe(value.__self__)]

    def made_class(self, value: type) -> list[Any]:
        parts = [
            (name, each)
            for name, each in sorted(vars(value).items())
            if name not in CLASS_PARTS
            and not isinstance(
                each,
                types.MemberDescriptorType
                | types.GetSetDescriptorType
                | types.WrapperDescriptorType,
            )
        ]
        return [value.__qualname__, self._all(value.__bases__), self._pairs(parts)]

    def descriptor(self, value: Any) -> list[Any]:
        if isinstance(value, property):
            return self._all((value.fget, value.fset, value.fdel))
        return [self.describe(value.__func__)]

    def partial(self, value: Any) -> list[Any]:
        return self._all((value.func, value.args, value.keywords))

    def reference(self, value: Any) -> list[Any]:
        return [self.describe(value())]

    def view(self, value: memoryview) -> list[Any]:
        return [value.tobytes().hex(), value.format, self.describe(value.obj)]

    def error(self, value: BaseException) -> list[Any]:
        chain = (value.__cause__, value.__context__)
        return [self._all(value.args), self._pairs(vars(value).items()), self._all(chain)]

    def array(self, value: Any) -> list[Any]:
        numpy = sys.modules["numpy"]
        owner = value
        while isinstance(owner.base, numpy.ndarray):
            owner = owner.base
        self.met += [
            numpy.lib.array_utils.byte_bounds(each)
            for each in (value, owner)
            if each.nbytes and (each is value or each.base is None)
        ]
        place = value.__array_interface__["data"][0]
        contents = value.ravel().tolist() if value.dtype.hasobject else value.tobytes().hex()
        return [
            str(value.dtype),
            list(value.shape),
            list(value.strides),
            value.flags.writeable,
            self._memory(place, value.nbytes),
            self.describe(contents),
        ]

    def tensor(self, value: Any) -> list[Any]:
        head = [str(value.dtype), list(value.shape), value.requires_grad, str(value.device)]
        if value.device.type == "meta":
            return head
        if str(value.layout) != "torch.strided" or value.is_quantized:
            return [*head, str(value)]
        storage = value.untyped_storage()
        if storage.nbytes():
            self.met.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        plain = value.detach().resolve_conj().resolve_neg()
        gradient = value.grad if value.is_leaf else None
        return [
            *head,
            list(value.stride()),
            self._memory(value.data_ptr(), value.numel()),
            self.describe(plain.tolist()),
            self.describe(gradient),
            self._pairs(vars(value).items()),
        ]

    def _memory(self, place: int, size: int) -> list[int]:
        """Which piece of memory, and where in it."""
        for first, last in self._regions if size else ():
            if first <= place < last:
                return [self._number(("memory", first))[0], place - first]
        return []

    def frame(self, value: Any) -> list[Any]:
        columns = [value[name] for name in value.columns] if value.columns.is_unique else []
        return [
            [str(name) for name in value.columns],
            str(value.index),
            [[str(column.dtype), column.to_list().__repr__()] for column in columns],
            repr(value.attrs),
        ]

    def labelled(self, value: Any) -> list[Any]:
        return [str(value.dtype), repr(value)]

    def tombstone(self, value: Any) -> list[Any]:
        from notebookos_ext.kernel.held import tombstone_leaf

        return [tombstone_leaf(value).reason]

    def nothing(self, _: Any) -> list[Any]:
        return []


def _is_constant(group: Any) -> bool:
    return all(
        type(each) in ATOMS
        or type(each).__module__ == "typing"
        or (type(each) is tuple and _is_constant(each))
        for each in group
    )


def _importable(value: Any) -> bool:
    found: Any = sys.modules.get(value.__module__ or "")
    if found is None or value.__module__ == "__main__":
        return False
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value


_PARTS: dict[tuple[str, str], Callable[[Walk, Any], list[Any]]] = {
    **{("builtins", name): Walk.items for name in ("list", "tuple", "set", "frozenset")},
    ("collections", "deque"): Walk.items,
    ("builtins", "dict"): Walk.mapping,
    ("builtins", "function"): Walk.function,
    ("builtins", "method"): Walk.method,
    ("builtins", "builtin_function_or_method"): Walk.builtin_method,
    ("builtins", "type"): Walk.made_class,
    ("builtins", "property"): Walk.descriptor,
    ("builtins", "staticmethod"): Walk.descriptor,
    ("builtins", "classmethod"): Walk.descriptor,
    ("functools", "partial"): Walk.partial,
    (weakref.ref.__module__, weakref.ref.__qualname__): Walk.reference,
    ("weakref", "WeakValueDictionary"): Walk.weak_mapping,
    ("weakref", "WeakKeyDictionary"): Walk.weak_mapping,
    ("_weakrefset", "WeakSet"): Walk.weak_items,
    ("builtins", "memoryview"): Walk.view,
    ("builtins", "BaseException"): Walk.error,
    ("numpy", "ndarray"): Walk.array,
    ("torch", "Tensor"): Walk.tensor,
    ("pandas", "DataFrame"): Walk.frame,
    ("pandas", "Series"): Walk.labelled,
    ("pandas", "Index"): Walk.labelled,
    ("pandas.core.indexes.base", "Index"): Walk.labelled,
    ("pandas.core.frame", "DataFrame"): Walk.frame,
    ("pandas.core.series", "Series"): Walk.labelled,
    ("notebookos_ext.kernel.held", "Tombstone"): Walk.tombstone,
    ("threading", "Thread"): Walk.nothing,
    ("sqlite3", "Connection"): Walk.nothing,
}


_INPUTS = re.compile(r"_(i+|i[0-9]+)\Z")


def describe(
    namespace: dict[str, Any], initial: dict[str, Any], without: set[str]
) -> dict[str, str]:
    """What each name leads to that was added to `initial`, except those in `without`.

    In one walk, so that what names share is part of it.
    """
    names = [
        name
        for name in sorted(namespace)
        if (name not in initial or initial[name] is not namespace[name])
        and name not in without
        and not _INPUTS.match(name)
    ]
    first = Walk(namespace)
    for name in names:
        first.describe(namespace[name])
    walk = Walk(namespace, _joined(first.met))
    return {name: repr(walk.describe(namespace[name])) for name in names}


def _joined(regions: list[Region]) -> list[Region]:
    """Memory that overlaps is one piece, whoever is said to own it."""
    joined: list[Region] = []
    for first, last in sorted(regions):
        if joined and first < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined
