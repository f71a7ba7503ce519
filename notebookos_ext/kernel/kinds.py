"""How the standard library's unpicklable kinds travel.

Three answers: an equal object is made anew (a lock, a cache without its entries), the same object
is found by name (a logger, a context variable), or the object lives here and is held (a socket, a
running thread). What is not listed is asked through `__reduce_ex__`, and held if it refuses.
"""

from __future__ import annotations

import asyncio
import functools
import re
import sys
import threading
import types
import weakref
from typing import Any

from notebookos_ext.kernel import open_kinds
from notebookos_ext.kernel.filling import fill
from notebookos_ext.kernel.held import Tombstone
from notebookos_ext.kernel.reduction import Reduced, Reducer, Reduction

_LOCK = type(threading.Lock())
_RLOCK = type(threading.RLock())


def _lock(pickler: Reduction, lock: Any) -> Reduced:
    if lock.locked():
        return pickler.hold(lock, "a lock that is taken belongs to a running thread")
    return threading.Lock, ()


def _rlock(pickler: Reduction, lock: Any) -> Reduced:
    # Taken by the thread that asks, or not to be had: both mean taken.
    if lock._is_owned() or not lock.acquire(blocking=False):  # noqa: SLF001
        return pickler.hold(lock, "a lock that is taken belongs to a running thread")
    lock.release()
    return threading.RLock, ()


def _thread_local(_: Reduction, local: Any) -> Reduced:
    return load_local, (type(local), dict(local.__dict__))


def load_local(kind: type, values: dict[str, Any]) -> Any:
    """A threading.local with the main thread's values."""
    local = kind()
    local.__dict__.update(values)
    return local


def _thread(pickler: Reduction, thread: Any) -> Reduced:
    if thread.is_alive():
        if thread is threading.main_thread():
            return threading.main_thread, ()
        return pickler.hold(thread, "a running thread")
    state = {key: value for key, value in vars(thread).items() if key not in _THREAD_PARTS}
    started = thread._started.is_set()  # noqa: SLF001
    return load_thread, (type(thread), started, thread.ident), state, None, None, fill


_THREAD_PARTS = {"_started", "_tstate_lock", "_stderr", "_invoke_excepthook", "_handle", "_ident"}


def load_thread(kind: Any, started: bool, ident: int | None) -> Any:
    """A thread that has ended, or was not started."""
    thread = kind.__new__(kind)
    threading.Thread.__init__(thread)
    if started:
        thread._started.set()  # noqa: SLF001
        for name, value in (("_tstate_lock", None), ("_ident", ident)):
            if hasattr(thread, name):
                setattr(thread, name, value)
    return thread


def _logger(pickler: Reduction, logger: Any) -> Reduced:
    pickler.separate(logger)
    logging = sys.modules["logging"]
    return logging.getLogger, (() if logger is logging.getLogger() else (logger.name,))


def _handler(_: Reduction, handler: Any) -> Reduced:
    state = {key: value for key, value in vars(handler).items() if key != "lock"}
    if isinstance(handler, sys.modules["logging"].FileHandler) and handler.stream is not None:
        # It is flushed after each record, and opened again with the next one.
        state.update(stream=None, mode=handler.mode.replace("w", "a"))
    return load_handler, (type(handler),), state, None, None, fill


def load_handler(kind: Any) -> Any:
    """A logging handler with a lock of its own."""
    handler = kind.__new__(kind)
    handler.createLock()
    return handler


def _weakref(_: Reduction, reference: Any) -> Reduced:
    target = reference()
    if target is None:
        return load_dead_weakref, ()
    callback = reference.__callback__
    return type(reference), ((target,) if callback is None else (target, callback))


def _proxy(_: Reduction, proxy: Any) -> Reduced:
    try:
        # A method found through the proxy is bound to what it stands for.
        return weakref.proxy, (proxy.__str__.__self__,)
    except ReferenceError:
        return load_dead_proxy, ()


def load_dead_proxy() -> Any:
    """A proxy whose target is gone."""
    return weakref.proxy(_Mortal())


class _Mortal:
    """Something to refer to for a moment."""


def load_dead_weakref() -> Any:
    """A weak reference whose target is gone."""
    return weakref.ref(_Mortal())


def _finalizer(pickler: Reduction, finalizer: Any) -> Reduced:
    if finalizer.alive:
        return pickler.hold(finalizer, "it cleans up in this process when its object is gone")
    return finalizer.__new__, (type(finalizer),)


def _weak_values(_: Reduction, mapping: Any) -> Reduced:
    return type(mapping), (), None, None, iter(list(mapping.items()))


def _weak_set(_: Reduction, group: Any) -> Reduced:
    return type(group), (list(group),)


def _memoryview(_: Reduction, view: memoryview) -> Reduced:
    source = view.obj
    if not view.c_contiguous or not isinstance(source, (bytes, bytearray)) or view.readonly:
        return (
            (memoryview, (source,))
            if view.nbytes == memoryview(source).nbytes
            else (
                memoryview,
                (view.tobytes(),),
            )
        )
    import ctypes  # noqa: PLC0415 - only for the rare view on a part

    start = ctypes.addressof(ctypes.c_char.from_buffer(source)) if view.nbytes else 0
    offset = ctypes.addressof(ctypes.c_char.from_buffer(view)) - start if view.nbytes else 0
    shape = list(view.shape) if view.shape and view.ndim > 1 else None
    return load_memoryview, (source, offset, view.nbytes, view.format, shape)


def load_memoryview(source: Any, offset: int, size: int, code: str, shape: list[int] | None) -> Any:
    """A view on a part of a buffer."""
    view = memoryview(source)[offset : offset + size]
    return view.cast(code, shape) if shape else (view if code == "B" else view.cast(code))  # type: ignore[call-overload]


def _context_var(pickler: Reduction, variable: Any) -> Reduced:
    pickler.separate(variable)
    try:
        value = (variable.get(),)
    except LookupError:
        return load_context_var, (variable.name, ())
    return load_context_var, (variable.name, value)


_context_vars: dict[str, Any] = {}


def load_context_var(name: str, value: tuple[Any, ...]) -> Any:
    """The notebook's context variable of that name: one per name, since they are never freed."""
    import contextvars  # noqa: PLC0415

    variable = _context_vars.setdefault(name, contextvars.ContextVar(name))
    if value:
        variable.set(value[0])
    return variable


def _lru_cache(_: Reduction, cached: Any) -> Reduced:
    module = sys.modules.get(cached.__module__ or "")
    if module is not None and cached.__module__ != "__main__":
        found: Any = module
        for part in cached.__qualname__.split("."):
            found = getattr(found, part, None)
        if found is cached:
            return str(cached.__qualname__)
    return (
        load_lru_cache,
        (cached.__wrapped__, cached.cache_parameters()),
        dict(vars(cached)),
        None,
        None,
        fill,
    )


def load_lru_cache(function: Any, parameters: dict[str, Any]) -> Any:
    """The cached function with an empty cache."""
    return functools.lru_cache(**parameters)(function)


def load_own_dict(kind: Any) -> Any:
    """A dict whose attributes are its items."""
    made = kind.__new__(kind)
    made.__dict__ = made
    return made


def _exception(pickler: Reduction, error: BaseException) -> Reduced:
    state = dict(vars(error))
    chain = (error.__cause__, error.__context__, error.__suppress_context__)
    kind = type(error)
    if kind.__module__ == "builtins" or kind.__reduce__ is not BaseException.__reduce__:
        reduced = pickler.plain(error)
        maker, arguments = (reduced[0], reduced[1]) if isinstance(reduced, tuple) else (kind, ())
        return maker, arguments, (state, chain), None, None, fill_exception
    return load_exception, (kind, error.args), (state, chain), None, None, fill_exception


def load_exception(kind: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    """An exception without its `__init__`, whose signature may not be that of `args`."""
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    return error


def fill_exception(
    error: BaseException, state: tuple[dict[str, Any], tuple[Any, Any, bool]]
) -> None:
    """Attributes and chain; a traceback stays with the frames it shows."""
    attributes, (cause, context, suppress) = state
    vars(error).update(attributes)
    error.__cause__ = cause
    error.__context__ = context
    error.__suppress_context__ = suppress


def _traceback(_: Reduction, __: types.TracebackType) -> Reduced:
    return type(None), ()


def _match(pickler: Reduction, match: re.Match[Any]) -> Reduced:
    again = match.re.match(match.string, match.pos, match.endpos)
    for name in ("match", "fullmatch", "search"):
        again = getattr(match.re, name)(match.string, match.pos, match.endpos)
        if again is not None and again.regs == match.regs:
            return load_match, (match.re, name, match.string, match.pos, match.endpos)
    for again in match.re.finditer(match.string, match.pos, match.endpos):
        if again.regs == match.regs:
            return load_match, (match.re, "search", match.string, match.start(), match.endpos)
    return pickler.hold(match, "a regular expression match that cannot be found again")


def load_match(pattern: Any, name: str, text: Any, start: int, end: int) -> Any:
    """Match again."""
    return getattr(pattern, name)(text, start, end)


def _tombstone(pickler: Reduction, tombstone: Tombstone) -> Reduced:
    return pickler.hold(tombstone, "")


def _shell(pickler: Reduction, shell: Any) -> Reduced:
    if shell is not pickler.session.shell:
        return pickler.hold(shell, "an IPython shell of its own")
    pickler.separate(shell)
    return load_shell, ()


def load_shell() -> Any:
    """This replica's IPython shell."""
    return sys.modules["IPython"].get_ipython()


def _method(_: Reduction, method: Any) -> Reduced:
    return types.MethodType, (method.__func__, method.__self__)


def _loop(pickler: Reduction, loop: Any) -> Reduced:
    if loop is not asyncio._get_running_loop():  # noqa: SLF001
        return pickler.hold(loop, "an event loop of this process")
    pickler.separate(loop)
    return asyncio.get_event_loop, ()


def _foreign_data(pickler: Reduction, data: Any) -> Reduced:
    if type(data).__module__ != "ctypes":
        return pickler.hold(data, "the layout of a ctypes class is of this process")
    return pickler.plain(data)


def _held(reason: str) -> Reducer:
    def reduce(pickler: Reduction, value: Any) -> Reduced:
        return pickler.hold(value, reason)

    return reduce


EXACT: dict[type, Reducer] = {
    **open_kinds.EXACT,
    _LOCK: _lock,
    _RLOCK: _rlock,
    Tombstone: _tombstone,
    memoryview: _memoryview,
    weakref.ReferenceType: _weakref,
    weakref.ProxyType: _proxy,
    weakref.CallableProxyType: _proxy,
    weakref.finalize: _finalizer,
    weakref.WeakValueDictionary: _weak_values,
    weakref.WeakKeyDictionary: _weak_values,
    weakref.WeakSet: _weak_set,
    type(functools.lru_cache(len)): _lru_cache,
    re.Match: _match,
    types.TracebackType: _traceback,
    types.MethodType: _method,
    types.GeneratorType: _held("a generator that has started cannot be copied"),
    types.CoroutineType: _held("a coroutine belongs to this process"),
    types.AsyncGeneratorType: _held("an asynchronous generator belongs to this process"),
    types.FrameType: _held("a frame of running code"),
}
"""By exact type."""

BY_NAME: dict[tuple[str, str], Reducer] = {
    **open_kinds.BY_NAME,
    ("builtins", "BaseException"): _exception,
    ("threading", "Thread"): _thread,
    ("_thread", "_local"): _thread_local,
    ("logging", "Logger"): _logger,
    ("logging", "Handler"): _handler,
    ("_contextvars", "ContextVar"): _context_var,
    ("sqlite3", "Cursor"): _held("a cursor of a database connection"),
    ("_ctypes", "_CData"): _foreign_data,
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter"): _held(
        "an iterator of a DataLoader belongs to this process"
    ),
    ("_asyncio", "Task"): _held("a running task"),
    ("_asyncio", "Future"): _held("a future of this process's event loop"),
    ("asyncio.events", "AbstractEventLoop"): _loop,
    ("multiprocessing.process", "BaseProcess"): _held("a child process"),
    ("IPython.core.interactiveshell", "InteractiveShell"): _shell,
}
"""By the (module, name) of a class in the value's MRO, so that nothing need be imported."""
