"""A replica for tests: the real shell and synchronizer in a process of its own, told what to do.

`python -m namespace_replica SOCKET_FD [LIBRARY...]` is a template: it imports what cells use once,
and forks a replica for each request, so that a pair of replicas costs milliseconds.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

import namespace_graph

SHELL = (
    "IPython.core.application",
    "IPython.core.completerlib",
    "IPython.core.crashhandler",
    "IPython.core.magics",
    "pygments.formatters.terminal256",
    "notebookos_ext.kernel.synchronizer",
)
"""What every replica needs."""


def send(stream: socket.socket, message: Any, descriptors: tuple[int, ...] = ()) -> None:
    """One message, with descriptors beside its first bytes."""
    data = pickle.dumps(message)
    head = struct.pack(">Q", len(data))
    if descriptors:
        socket.send_fds(stream, [head], list(descriptors))
    else:
        stream.sendall(head)
    stream.sendall(data)


def receive(stream: socket.socket) -> tuple[Any, list[int]]:
    """The next message and its descriptors; EOFError at the end."""
    head, descriptors, _, _ = socket.recv_fds(stream, 8, 4)
    if not head:
        raise EOFError
    while len(head) < 8:
        head += stream.recv(8 - len(head))
    left, parts = struct.unpack(">Q", head)[0], []
    while left:
        part = stream.recv(min(left, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        left -= len(part)
    return pickle.loads(b"".join(parts)), descriptors


class Folder:
    """A checkpoint store in a folder."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.puts: list[tuple[str, int]] = []
        self.fetched_bytes = 0
        self.broken = False

    def put(self, digest: str, data: bytes) -> None:
        if self.broken:
            raise OSError("the store is away")
        self.puts.append((digest, len(data)))
        (self.path / digest).write_bytes(data)

    def fetch(self, digest: str) -> bytes:
        if self.broken:
            raise OSError("the store is away")
        data = (self.path / digest).read_bytes()
        self.fetched_bytes += len(data)
        return data


class Screen(io.TextIOBase):
    """A standard stream whose text a test sees."""

    def __init__(self, parts: list[str]) -> None:
        self._parts = parts

    def write(self, text: str) -> int:
        self._parts.append(text)
        return len(text)


class Replica:
    """What runs in the forked process."""

    def __init__(self, store: str, options: dict[str, int]) -> None:
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        from notebookos_ext.kernel.synchronizer import Synchronizer, SyncOptions

        self.shown: list[str] = []
        sys.stdout, sys.stderr = Screen(self.shown), Screen(self.shown)
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.xmode = "Minimal"
        config.InteractiveShell.colors = "nocolor"
        self.shell = InteractiveShell.instance(config=config)
        self.initial = dict(self.shell.user_ns)
        self.store = Folder(store)
        self.synchronizer = Synchronizer(
            self.shell,
            options=SyncOptions(**options),
            put_chunk=self.store.put,
            fetch_chunks=lambda digests: map(self.store.fetch, digests),
        )

    def run(self, code: str) -> tuple[str, str]:
        """Run a cell; returns what it printed and the error that it raised."""
        self.shown.clear()
        result = self.shell.run_cell(code, store_history=True)
        error = result.error_before_exec or result.error_in_exec
        return "".join(self.shown), "" if error is None else f"{type(error).__name__}: {error}"

    def enter(self, folder: str) -> None:
        """Make that the working directory, as if the kernel had begun there."""
        os.chdir(folder)
        self.synchronizer.collect()

    def graph(self, without: set[str]) -> dict[str, str]:
        """What each name leads to, as text; see `namespace_graph`."""
        return namespace_graph.describe(self.shell.user_ns, self.initial, without)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the namespace, which must be picklable."""
        return eval(expression, self.shell.user_ns)

    def collect(self) -> tuple[bytes, bytes, tuple[str, ...]] | None:
        import msgspec

        collected = self.synchronizer.collect()
        if collected is None:
            return None
        late = b""
        if collected.late is not None:
            late = msgspec.msgpack.encode(self.synchronizer.ship_late(collected.late))
        return msgspec.msgpack.encode(collected.delta), late, collected.notes

    def collect_and_change(self, code: str) -> tuple[bytes, bytes, tuple[str, ...]]:
        """Collect, run more code, and keep the late parts for `ship_kept`."""
        import msgspec

        collected = self.synchronizer.collect()
        self.kept = collected.late
        self.shell.run_cell(code)
        return msgspec.msgpack.encode(collected.delta), b"", collected.notes

    def ship_kept(self) -> bytes:
        import msgspec

        return msgspec.msgpack.encode(self.synchronizer.ship_late(self.kept))

    def apply(self, data: bytes) -> tuple[str, ...]:
        import msgspec

        from notebookos_ext.cluster.entries import Delta
        from notebookos_ext.kernel import finalizers

        with finalizers.asleep():
            return self.synchronizer.apply(msgspec.msgpack.decode(data, type=Delta))

    def held(self) -> list[tuple[str, str, str]]:
        return [(each.name, each.type_name, each.reason) for each in self.synchronizer.held]

    def gpu_names(self) -> tuple[str, ...]:
        return self.synchronizer.gpu_names

    def forget(self, names: list[str]) -> None:
        self.synchronizer.forget(names)

    def forget_all(self) -> None:
        self.synchronizer.forget_all()

    def evaluate_puts(self) -> list[tuple[str, int]]:
        """Digest and size of each chunk that was put."""
        return self.store.puts

    def take_fetched_bytes(self) -> int:
        """How much was fetched from the store since this was last asked."""
        fetched, self.store.fetched_bytes = self.store.fetched_bytes, 0
        return fetched

    def break_store(self) -> None:
        self.store.broken = True

    def mend_store(self) -> None:
        self.store.broken = False


def serve(stream: socket.socket, store: str, options: dict[str, int]) -> None:
    """Answer requests until the test closes the socket."""
    replica = Replica(store, options)
    while True:
        try:
            (method, arguments), _ = receive(stream)
        except EOFError:
            return
        try:
            answer = (True, getattr(replica, method)(*arguments))
        except Exception as error:  # noqa: BLE001 - the test sees it
            import traceback

            answer = (False, f"{error}\n{traceback.format_exc()}")
        send(stream, answer)


def template(control: socket.socket, libraries: list[str]) -> None:
    """Import, then fork a replica per request."""
    import importlib

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for name in (*libraries, *SHELL):
        importlib.import_module(name)
    while True:
        try:
            (store, options), descriptors = receive(control)
        except EOFError:
            return
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            stream = socket.socket(fileno=descriptors[0])
            with contextlib.suppress(BrokenPipeError), stream:
                serve(stream, store, options)
            os._exit(0)
        os.close(descriptors[0])


if __name__ == "__main__":
    # Imported: what this file defines is not the notebook's.
    from namespace_replica import template as run

    run(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
