"""Groups of replicas for tests: cells run on one, deltas go to the others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from namespace_replica import receive, send

from notebookos_ext.cluster.entries import Delta

TESTS = Path(__file__).parent


LIBRARIES = (
    "numpy",
    "pandas",
    "torch._dynamo",
    "sklearn.linear_model",
    "matplotlib.pyplot",
    "ipywidgets",
    "networkx",
    "scipy.stats",
    "sympy",
)


class Template:
    """A process that forks replicas, which have `libraries` loaded."""

    def __init__(self, libraries: tuple[str, ...] = LIBRARIES) -> None:
        self.control, theirs = socket.socketpair()
        environment = os.environ | {
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent))),
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
            "OMP_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, str(TESTS / "namespace_replica.py"), str(theirs.fileno()), *libraries],
            pass_fds=[theirs.fileno()],
            env=environment,
        )
        theirs.close()

    def fork(self, store: Path, options: dict[str, int]) -> Handle:
        ours, theirs = socket.socketpair()
        send(self.control, (str(store), options), (theirs.fileno(),))
        theirs.close()
        return Handle(ours)

    def close(self) -> None:
        self.control.close()
        self.process.wait(60)


class Handle:
    """Calls the methods of one `namespace_replica.Replica`."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            send(self._stream, (method, arguments))
            (good, answer), _ = receive(self._stream)
            if not good:
                raise AssertionError(f"{method} failed in the replica: {answer}")
            return answer

        return call

    def close(self) -> None:
        self._stream.close()


class Replicas:
    """Replicas of one kernel, and the log between them."""

    def __init__(self, handles: list[Handle]) -> None:
        self.handles = handles
        self.notes: list[str] = []
        self.deltas: list[Delta] = []
        self.problems: list[str] = []
        self.bytes_sent = 0

    def cell(self, code: str, on: int = 0) -> str:
        """Run a cell on one replica and bring the others up to date; returns its output."""
        output, error = self.handles[on].run(code)
        self.sync(on)
        return output + error

    def sync(self, on: int) -> None:
        """Collect on one replica, apply on the others."""
        collected = self.handles[on].collect()
        if collected is None:
            self.deltas.append(Delta())
            return
        delta, late, notes = collected
        self.notes.extend(notes)
        self.deltas.append(msgspec.msgpack.decode(delta, type=Delta))
        self.bytes_sent = len(delta) + len(late)
        for number, handle in enumerate(self.handles):
            if number != on:
                for each in filter(None, (delta, late)):
                    self.problems.extend(handle.apply(each))

    @property
    def sent(self) -> list[tuple[str, ...]]:
        """The names of the components in the last delta."""
        return sorted(each.names for each in self.deltas[-1].components)

    def close(self) -> None:
        for handle in self.handles:
            handle.close()
