"""Which globals lead to a GPU framework: for the simple rule that decides which cells bind GPUs.

Cheap and conservative: a module of a framework, an instance whose class comes from one, and the
notebook's functions and classes that mention such a global, through any number of steps.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

FRAMEWORKS = frozenset(
    {"torch", "torchvision", "torchaudio", "tensorflow", "keras", "jax", "jaxlib", "flax", "cupy"}
    | {"cudf", "cuml", "numba", "pycuda", "triton", "transformers", "accelerate", "lightning"}
    | {"pytorch_lightning", "diffusers", "mxnet", "paddle", "xgboost", "lightgbm", "catboost"}
)
"""Top-level packages whose objects compute on GPUs."""

_PLAIN = frozenset({int, float, complex, bool, str, bytes, type(None)})
_CONTAINERS = frozenset({list, tuple, set, frozenset, dict})
_CONTAINER_LOOK = 20
"""How many items of a container are looked at."""


def _package(kind: Any) -> str:
    module = getattr(kind, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""


def _is_framework(value: Any) -> bool:
    kind = type(value)
    # Asking the value for its class would run user code, or fail for a dead proxy.
    if issubclass(kind, types.ModuleType):
        return value.__name__.partition(".")[0] in FRAMEWORKS
    if issubclass(kind, (type, types.FunctionType, types.BuiltinFunctionType)):
        return _package(value) in FRAMEWORKS or _derived(value)
    return _derived(kind)


def _derived(kind: Any) -> bool:
    return issubclass(type(kind), type) and any(
        _package(base) in FRAMEWORKS for base in kind.__mro__
    )


def _items(value: Any) -> Iterator[Any]:
    """A few of a container's items."""
    if type(value) is dict:
        return islice(value.values(), _CONTAINER_LOOK)
    return islice(value, _CONTAINER_LOOK) if type(value) in _CONTAINERS else iter(())


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _mentions(value: Any) -> set[str]:
    """The names that a notebook's function, method or class may look up."""
    if type(value) is types.MethodType:
        value = value.__func__
    if type(value) is types.FunctionType:
        if value.__module__ != "__main__":
            return set()
        return {name for code in _codes(value.__code__) for name in code.co_names}
    if issubclass(type(value), type) and value.__module__ == "__main__":
        found: set[str] = {base.__name__ for base in value.__bases__}
        for member in list(vars(value).values()):
            inner = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
            if isinstance(inner, types.FunctionType):
                found |= {name for code in _codes(inner.__code__) for name in code.co_names}
        return found
    return set()


def gpu_names(namespace: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` through which code reaches a GPU framework, sorted."""
    reaching: set[str] = set()
    mentioned: dict[str, set[str]] = {}
    plain = dict.fromkeys(_PLAIN, True)
    """Types that neither come from a framework nor contain or mention anything."""
    for name in names:
        value = namespace.get(name)
        kind = type(value)
        if plain.get(kind) or (kind in _CONTAINERS and _PLAIN.issuperset(map(type, _items(value)))):
            continue
        if _is_framework(value) or any(
            type(item) not in _PLAIN and _is_framework(item) for item in _items(value)
        ):
            reaching.add(name)
            continue
        of_class = kind if kind.__module__ == "__main__" else None
        found = _mentions(value if of_class is None else of_class)
        if found:
            mentioned[name] = found
        elif not issubclass(kind, (type, types.FunctionType, types.MethodType, types.ModuleType)):
            plain[kind] = kind not in _CONTAINERS
    grown = True
    while grown:
        new = {
            name for name, found in mentioned.items() if name not in reaching and found & reaching
        }
        reaching |= new
        grown = bool(new)
    return tuple(sorted(reaching))
