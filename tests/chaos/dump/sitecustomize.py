"""What the harness needs inside the processes that it starts.

SIGUSR1 writes down what a process does, into a file. A host agent listens for its peers beside the
address that it announces: there the harness listens, and stands in between.

Python imports a module of this name at start. Only processes that the harness starts find it: it
puts this folder on their path.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import os
import pathlib
import signal
import sys
import threading
import traceback

FOLDER = "NOTEBOOKOS_CHAOS_DUMPS"
BEHIND = ".behind"
SHOWN = (
    "AgentClient", "Attempt", "AttemptRecord", "CellRequest", "Chains", "Feed", "HostedKernel",
    "Kernel", "KernelRecord", "KernelRouter", "Ledger", "Member", "OpenAttempt", "Replica",
    "ReplicaSession", "Request", "WaitingCell",
)  # fmt: skip
"""Classes whose living objects are written down, by name: this file imports nothing of ours."""
LONGEST = 2000


def _fields(thing: object) -> dict[str, object]:
    names = getattr(type(thing), "__struct_fields__", None) or getattr(type(thing), "__slots__", ())
    found = {n: getattr(thing, n, None) for n in names if isinstance(n, str)}
    return found | getattr(thing, "__dict__", {})


def _write(out: io.TextIOBase) -> None:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        out.write(f"\n== thread {names.get(ident)}\n")
        traceback.print_stack(frame, file=out)
    for thing in gc.get_objects():
        kind = type(thing)
        if isinstance(thing, asyncio.Task):
            with contextlib.suppress(Exception):
                if not thing.done():
                    out.write(f"\n== task {thing!r}\n")
                    thing.print_stack(file=out)
        elif kind.__name__ in SHOWN and kind.__module__.startswith("notebookos_ext"):
            out.write(f"\n== {kind.__module__}.{kind.__name__} {id(thing):#x}\n")
            for name, value in _fields(thing).items():
                with contextlib.suppress(Exception):
                    out.write(f"   {name} = {str(repr(value))[:LONGEST]}\n")


def _dump(_number: int, _frame: object) -> None:
    path = pathlib.Path(os.environ[FOLDER], f"{os.getpid()}.txt")
    with contextlib.suppress(OSError), path.open("w", encoding="utf-8") as out:
        out.write(" ".join(sys.orig_argv) + "\n")
        _write(out)


def _listen_behind() -> None:
    from notebookos_ext.agent import peer_addresses

    listen, vacate = peer_addresses.listen, peer_addresses.vacate

    async def beside(address: str, accept: object) -> tuple[object, str]:
        server, _ = await listen(address + BEHIND, accept)
        return server, address

    peer_addresses.listen = beside
    peer_addresses.vacate = lambda address: vacate(address + BEHIND)


if os.environ.get(FOLDER) and hasattr(sys, "orig_argv"):
    with contextlib.suppress(ValueError, OSError):
        signal.signal(signal.SIGUSR1, _dump)
    if "notebookos_ext.agent" in sys.orig_argv:
        _listen_behind()
