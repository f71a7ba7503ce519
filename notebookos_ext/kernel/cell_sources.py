"""Makes the code of a cell known under one file name on every replica.

ipykernel names a cell's code after the process that ran it and keeps its lines in that process. A
function defined in a cell would then show no source lines in a traceback on another replica. Here
the name depends on the kernel only, and a standby learns the lines from the replicated history.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from typing import Any

import ipykernel.compiler
import ipykernel.debugger


def share_code_names(kernel: str) -> None:
    """Give this process the code file names that every replica of `kernel` uses.

    They look like ipykernel's (`…/ipykernel_<number>/<hash>.py`), since users' tools match those;
    the debugger takes the same ones, so breakpoints keep their place when the executor changes.
    """
    number = zlib.crc32(kernel.encode())

    def folder() -> str:
        return f"{tempfile.gettempdir()}{os.sep}ipykernel_{number}"

    ipykernel.compiler.get_tmp_directory = folder
    # The debugger imported the function by name.
    vars(ipykernel.debugger)["get_tmp_directory"] = folder


class CellSources:
    """Keeps the shell's compiler in step with its history."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._known = 1
        """History entries from here on are not registered yet; entry 0 is IPython's own blank."""

    def note(self) -> None:
        """A cell ran here, so the compiler knows it already."""
        self._known = len(self._shell.history_manager.input_hist_raw)

    def learn(self) -> None:
        """Register the cells that the history got from another replica."""
        history = self._shell.history_manager
        count = min(len(history.input_hist_raw), len(history.input_hist_parsed))
        for number in range(min(self._known, count), count):
            raw, transformed = history.input_hist_raw[number], history.input_hist_parsed[number]
            # The cell's code ended with a line break when it was compiled.
            self._shell.compile.cache(transformed + "\n", number, raw_code=raw)
        self._known = count
