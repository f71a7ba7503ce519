"""numpy arrays: a memory owner and its views travel as one piece of memory.

Used only when the user's kernel has loaded numpy; nothing here imports it before that. numpy's own
pickling copies every view. Here an array that owns its memory is reduced to that memory, and a view
to (owner, offset, shape, strides), so that `b = a[2:]` goes on sharing with `a` on any replica.
"""

from __future__ import annotations

import sys
from typing import Any

from notebookos_ext.kernel import tensors
from notebookos_ext.kernel.memory_owners import owners_of
from notebookos_ext.kernel.pieces import Data, Pieces, write
from notebookos_ext.kernel.reduction import Reduced, Reduction


def address(array: Any) -> int:
    """Where the first element is."""
    return int(array.__array_interface__["data"][0])


def _dtype_token(dtype: Any) -> Any:
    """A plain dtype as its short name: pickling dtype objects costs more than small arrays do."""
    return dtype.str if dtype.isbuiltin == 1 and dtype.kind in "biufc" else dtype


def reduce_array(pickler: Reduction, array: Any) -> Reduced:
    """Reduce an exact ndarray to its memory, or to a view on another object's memory."""
    if array.dtype.hasobject and array.base is None:
        return pickler.plain(array)
    if not array.nbytes:
        return _reduce_owner(pickler, array)
    owner = array
    while owner.base is not None:
        base = owner.base
        if isinstance(base, sys.modules["numpy"].ndarray) or type(base).__name__ == "DummyArray":
            owner = base
            continue
        return _reduce_foreign(pickler, array, base)
    if type(owner).__name__ != "ndarray" or not hasattr(owner, "dtype"):
        return _reduce_owner(pickler, array)
    if owner is array:
        return _reduce_owner(pickler, array)
    if owner.dtype.hasobject != array.dtype.hasobject or type(owner) is not type(array):
        return _reduce_owner(pickler, array)
    place = (owner, address(array) - address(owner))
    return load_view, (
        *place,
        _dtype_token(array.dtype),
        array.shape,
        array.strides,
        array.flags.writeable,
    )


def reduce_subclass(pickler: Reduction, array: Any) -> Reduced:
    """An array of a class that is not numpy's: numpy's own pickling loses its attributes."""
    kind, ndarray = type(array), sys.modules["numpy"].ndarray
    if kind.__module__.partition(".")[0] == "numpy" or kind.__reduce__ is not ndarray.__reduce__:
        return pickler.plain(array)
    state = dict(getattr(array, "__dict__", {}))
    return load_subclass, (array.view(ndarray), kind), state, None, None, set_attributes


def load_subclass(array: Any, kind: Any) -> Any:
    """The same memory, seen as another class."""
    return array.view(kind)


def set_attributes(array: Any, attributes: dict[str, Any]) -> None:
    """Give an array of a class of its own what it had, and nothing that making it added."""
    vars(array).clear()
    vars(array).update(attributes)


def _reduce_owner(pickler: Reduction, array: Any) -> Reduced:
    if (
        array.dtype.hasobject
        or type(array.dtype).__module__ != "numpy.dtypes"
        or array.dtype.kind == "T"
    ):
        return pickler.plain(array)
    flags = array.flags
    if flags.c_contiguous:
        flat, strides = array.reshape(-1), None
    elif flags.f_contiguous:
        flat, strides = array.reshape(-1, order="F"), array.strides
    else:
        flat = array.ravel(order="K")
        # A gap in the memory makes ravel() copy; then the copy's own order is as good as any.
        dense = array.base is None and sys.modules["numpy"].shares_memory(flat, array)
        if not dense:
            flat = array.reshape(-1)
        strides = array.strides if dense else None
    if array.base is None and array.nbytes and "torch" in sys.modules:
        start = address(array)
        if owners_of(pickler.session).add(start, start + array.nbytes, array):
            pickler.session.conflict = True
    data = pickler.buffer(memoryview(flat.view("u1")) if array.nbytes else memoryview(b""))
    return load_array, (data, _dtype_token(array.dtype), array.shape, strides, flags.writeable)


def _reduce_foreign(pickler: Reduction, array: Any, base: Any) -> Reduced:
    """An array over memory that numpy does not own: a bytearray, a memoryview, a tensor."""
    if type(base).__module__ == "torch":
        root, start = tensors.storage_root(pickler, base.untyped_storage())
        offset = address(array) - start
        shape, strides, writable = array.shape, array.strides, array.flags.writeable
        return tensors.load_array_over, (
            root,
            offset,
            _dtype_token(array.dtype),
            shape,
            strides,
            writable,
        )
    source = base.obj if isinstance(base, memoryview) else base
    if not isinstance(source, (bytes, bytearray)) or array.dtype.hasobject:
        return _reduce_owner(pickler, array)
    whole = sys.modules["numpy"].frombuffer(source, dtype="u1")
    place = (source, address(array) - address(whole))
    return load_view, (
        *place,
        _dtype_token(array.dtype),
        array.shape,
        array.strides,
        array.flags.writeable,
    )


def load_array(data: Data, dtype: Any, shape: tuple[int, ...], strides: Any, writable: bool) -> Any:
    """Make an array that owns its memory, or patch the one that it replaces."""
    numpy = __import__("numpy")
    array = data.donor if isinstance(data, Pieces) else None
    if array is not None and _fits(array, numpy.dtype(dtype), shape, strides):
        assert isinstance(data, Pieces)  # noqa: S101 - for the type checker
        array.flags.writeable = True
        data.patch(flat_bytes(array))
    else:
        array = numpy.ndarray(shape, dtype=dtype, strides=strides)
        if array.nbytes:
            write(data, flat_bytes(array))
    if not writable:
        array.flags.writeable = False
    return array


def is_owner(value: Any) -> bool:
    """Whether `value` is a dense array that owns its memory."""
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray:
        return False
    return value.base is None and not value.dtype.hasobject and bool(value.flags.forc)


def is_over(value: Any, owner: Any) -> bool:
    """Whether `value` is this array, or a view on it and on nothing else."""
    return owner is not None and (
        value is owner or (type(value) is type(owner) and value.base is owner)
    )


def flat_bytes(array: Any) -> memoryview:
    """The memory of a dense array."""
    flat = array.reshape(-1) if array.flags.c_contiguous else array.ravel(order="K")
    return memoryview(flat.view("u1"))


def _fits(array: Any, dtype: Any, shape: tuple[int, ...], strides: Any) -> bool:
    if array.dtype != dtype or array.shape != shape:
        return False
    return bool(array.flags.c_contiguous if strides is None else array.strides == strides)


def load_view(owner: Any, offset: int, dtype: Any, shape: Any, strides: Any, writable: bool) -> Any:
    """Make a view on memory that another object owns."""
    numpy = __import__("numpy")
    if isinstance(owner, numpy.ndarray):
        was_writable = owner.flags.writeable
        if not was_writable:
            # A writable view may be older than its owner's lock.
            owner.flags.writeable = writable
        source = owner.ravel(order="K")
        view = numpy.ndarray(shape, dtype=dtype, buffer=source, offset=offset, strides=strides)
        owner.flags.writeable = was_writable
    else:
        view = numpy.ndarray(shape, dtype=dtype, buffer=owner, offset=offset, strides=strides)
    if not writable:
        view.flags.writeable = False
    return view


def reduce_dtype(pickler: Reduction, dtype: Any) -> Reduced:
    """Dtypes are shared by everything that has one."""
    pickler.separate(dtype)
    return pickler.plain(dtype)


def reduce_ufunc(pickler: Reduction, ufunc: Any) -> Reduced:
    """Ufuncs are found by name."""
    pickler.separate(ufunc)
    return pickler.plain(ufunc)


def reduce_random_state(pickler: Reduction, state: Any) -> Reduced:
    """Numpy's own global generator is each replica's own; its state is part of the environment."""
    if state is not sys.modules["numpy.random.mtrand"]._rand:  # noqa: SLF001
        return pickler.plain(state)
    pickler.separate(state)
    return load_global_random, ()


def load_global_random() -> Any:
    """This process's global generator."""
    return __import__("numpy").random.mtrand._rand  # noqa: SLF001


def reduce_memmap(pickler: Reduction, array: Any) -> Reduced:
    """Reopen the same file: hosts share the notebook's folder."""
    if array.base is None or array.filename is None or not hasattr(array, "mode"):
        return pickler.plain(array)
    array.flush()
    mode = "r+" if array.mode == "w+" else array.mode
    if mode == "c" or type(array.base).__name__ != "mmap":
        return pickler.hold(array, "a view or private copy of a mapped file")
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    return load_memmap, (str(array.filename), array.dtype, mode, array.offset, array.shape, order)


def load_memmap(name: str, dtype: Any, mode: str, offset: int, shape: Any, order: str) -> Any:
    """Map the file on this host."""
    numpy = __import__("numpy")
    return numpy.memmap(name, dtype=dtype, mode=mode, offset=offset, shape=shape, order=order)
