"""What is open, or runs: files, sockets, mapped memory, databases, pools, child processes.

What can be had again is opened or made anew at the same place; what was closed or has ended travels
as that; everything else is held.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import Any

from notebookos_ext.kernel.filling import fill
from notebookos_ext.kernel.reduction import Reduced, Reducer, Reduction

_MEMORY_KINDS = (io.BytesIO, io.StringIO)
_OPEN_KINDS = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)


def _file(pickler: Reduction, stream: Any) -> Reduced:
    if stream.closed:
        encoding = getattr(stream, "encoding", None)
        return load_closed_file, (
            type(stream),
            stream.name,
            getattr(stream, "mode", None),
            encoding,
        )
    name, mode = getattr(stream, "name", None), str(getattr(stream, "mode", ""))
    if not isinstance(name, str) or stream.isatty():
        return pickler.hold(stream, "an open file without a path")
    if mode not in {"r", "rb", "rt"}:
        return pickler.hold(stream, f"{name} is open for writing")
    if not stream.seekable():
        return pickler.hold(stream, f"{name} cannot be read from the middle")
    encoding = getattr(stream, "encoding", None)
    try:
        place = stream.tell()
    except OSError:
        return pickler.hold(stream, f"{name} is being iterated over")
    if isinstance(stream, io.FileIO):
        return pickler.hold(stream, f"{name} is open without a buffer")
    return load_file, (name, mode, encoding, place)


def _memory_stream(pickler: Reduction, stream: Any) -> Reduced:
    if not stream.closed:
        return pickler.plain(stream)
    return load_closed_stream, (type(stream),)


def load_file(name: str, mode: str, encoding: str | None, place: int) -> Any:
    """Open the same path on this host, at the same place."""
    stream = open(name, mode, encoding=encoding)  # noqa: SIM115, PTH123 - the user's own open file
    stream.seek(place)
    return stream


def load_closed_stream(kind: Any) -> Any:
    """A stream in memory that was closed."""
    stream = kind()
    stream.close()
    return stream


def load_closed_file(kind: Any, name: Any, mode: str | None, encoding: str | None) -> Any:
    """A file object that was closed. The path it is said to have is never opened."""
    raw = io.FileIO(os.devnull, "r+")
    raw.name = name
    stream: Any = raw
    if kind is io.TextIOWrapper:
        stream = io.TextIOWrapper(io.BufferedRandom(raw), encoding=encoding)
        if mode is not None:
            stream.mode = mode
    elif kind is not io.FileIO:
        stream = kind(raw)
    stream.close()
    return stream


def _popen(pickler: Reduction, process: Any) -> Reduced:
    if process.returncode is None:
        return pickler.hold(process, "a running child process")
    state = {
        key: value for key, value in vars(process).items() if not isinstance(value, _OPEN_KINDS)
    }
    state.update(stdin=None, stdout=None, stderr=None)
    state.pop("_waitpid_lock", None)
    return load_popen, (type(process),), state, None, None, fill


def load_popen(kind: Any) -> Any:
    """A child process that has ended."""
    process = kind.__new__(kind)
    process._waitpid_lock = threading.Lock()  # noqa: SLF001
    process._child_created = False  # noqa: SLF001
    return process


def _executor(pickler: Reduction, executor: Any) -> Reduced:
    pool: Any = sys.modules["concurrent.futures"].ThreadPoolExecutor
    closed = executor._shutdown  # noqa: SLF001
    if not closed and executor._work_queue.qsize():  # noqa: SLF001
        return pickler.hold(executor, "a thread pool with work in it")
    # What a subclass adds travels; threads, locks and the queue are made anew.
    mine = vars(pool(1))
    state = {key: value for key, value in vars(executor).items() if key not in mine}
    made_with = tuple(getattr(executor, name) for name in _POOL_PARTS)
    return load_pool, (type(executor), made_with, closed), state, None, None, fill


_POOL_PARTS = ("_max_workers", "_thread_name_prefix", "_initializer", "_initargs")


def load_pool(kind: Any, made_with: tuple[Any, ...], closed: bool) -> Any:
    """A thread pool that has not begun to work, or takes no more of it."""
    pool = sys.modules["concurrent.futures"].ThreadPoolExecutor
    executor = kind.__new__(kind)
    pool.__init__(executor, *made_with)
    if closed:
        executor.shutdown()
    return executor


def _database(pickler: Reduction, connection: Any) -> Reduced:
    if connection.in_transaction:
        return pickler.hold(connection, "a database connection within a transaction")
    try:
        files = connection.execute("pragma database_list").fetchall()
    except Exception:  # noqa: BLE001 - closed, or of another thread
        return pickler.hold(connection, "a database connection that cannot be read here")
    settings = (connection.isolation_level, connection.row_factory, connection.text_factory)
    # A database that was loaded from bytes has a name, too, but no path.
    main = files[0][2] if files[0][2].startswith("/") else ""
    if len(files) > 1:
        return pickler.hold(connection, "a connection to several databases")
    return load_database, (main, b"" if main else connection.serialize(), settings)


def load_database(file: str, contents: bytes, settings: tuple[Any, Any, Any]) -> Any:
    """A connection to the same file, or to a copy of a database in memory."""
    connection = __import__("sqlite3").connect(file or ":memory:")
    if contents:
        connection.deserialize(contents)
    connection.isolation_level, connection.row_factory, connection.text_factory = settings
    return connection


def _future(pickler: Reduction, future: Any) -> Reduced:
    if not future.done():
        return pickler.hold(future, "a future whose work is not done")
    if future.cancelled():
        return load_future, (None, None, True)
    return load_future, (future.exception() or future.result(), bool(future.exception()), False)


def load_future(outcome: Any, failed: Any, cancelled: bool) -> Any:
    """A future that is done."""
    from concurrent.futures import Future  # noqa: PLC0415

    future: Future[Any] = Future()
    if cancelled:
        future.cancel()
        future.set_running_or_notify_cancel()
    elif failed:
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
    return future


def _socket(pickler: Reduction, connection: Any) -> Reduced:
    if connection.fileno() != -1:
        return pickler.hold(connection, "an open socket")
    return load_closed_socket, (
        type(connection),
        (connection.family, connection.type, connection.proto),
    )


def load_closed_socket(kind: Any, arguments: tuple[Any, ...]) -> Any:
    """A socket that was closed."""
    connection = kind(*arguments)
    connection.close()
    return connection


def _mapped(pickler: Reduction, memory: Any) -> Reduced:
    return pickler.hold(memory, "a mapped file") if not memory.closed else (load_closed_map, ())


def load_closed_map() -> Any:
    """Mapped memory that was given back."""
    memory = __import__("mmap").mmap(-1, 1)
    memory.close()
    return memory


EXACT: dict[type, Reducer] = {
    **dict.fromkeys(_OPEN_KINDS, _file),
    **dict.fromkeys(_MEMORY_KINDS, _memory_stream),
}
"""By exact type."""

BY_NAME: dict[tuple[str, str], Reducer] = {
    ("subprocess", "Popen"): _popen,
    ("sqlite3", "Connection"): _database,
    ("concurrent.futures.thread", "ThreadPoolExecutor"): _executor,
    ("concurrent.futures._base", "Future"): _future,
    ("_socket", "socket"): _socket,
    ("mmap", "mmap"): _mapped,
}
"""By the (module, name) of a class in the value's MRO."""
