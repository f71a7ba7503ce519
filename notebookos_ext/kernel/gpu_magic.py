"""`%%gpu N` on a cell's first line, as the replica sees it.

The line is read by the scheduler, which binds N GPUs before the cell starts; here it only has to
vanish, so that the rest of the cell runs. `%gpu` tells where the cell runs.
"""

from __future__ import annotations

import os
import re
from typing import Any

GPU_LINE = re.compile(r"^%%gpu(?:[ \t].*)?$")

HELP = """%%gpu N: run this cell with N GPUs (0: with none, and without waiting for any).

Must be the first line of the cell, comments aside. The GPUs are bound when the cell starts and
given back when it ends; inside the cell they are cuda:0 … cuda:N-1, and the environment variable
NOTEBOOKOS_GPUS lists them."""


def strip_gpu_line(lines: list[str]) -> list[str]:
    """Input transformer: take `%%gpu N` off the first line that is neither blank nor a comment.

    `cluster/gpu_rule.py` looks for it in the same place. A comment takes its place, so that line
    numbers in tracebacks and breakpoints are those of the cell; before another cell magic, which
    has to come first, the line goes entirely.
    """
    first = next((i for i, line in enumerate(lines) if not _is_blank(line)), None)
    if first is None or not GPU_LINE.match(lines[first].strip()):
        return lines
    rest = lines[first + 1 :]
    following = next((line for line in rest if line.strip()), "")
    if following.startswith("%%"):
        return rest
    return [*lines[:first], "# " + lines[first].lstrip(), *rest]


def _is_blank(line: str) -> bool:
    text = line.strip()
    return not text or text.startswith("#")


def describe_binding(environ: dict[str, str] | os._Environ[str]) -> str:
    """One sentence about the replica and the GPUs of the running cell."""
    replica = environ.get("NOTEBOOKOS_REPLICA", "")
    gpus = [gpu for gpu in environ.get("NOTEBOOKOS_GPUS", "").split(",") if gpu]
    if not gpus:
        return f"This cell runs on replica {replica} without GPUs."
    kind = "simulated GPUs" if environ.get("NOTEBOOKOS_GPU_KIND") == "simulated" else "GPUs"
    return f"This cell runs on replica {replica} with the {kind} {', '.join(gpus)}."


def install(shell: Any) -> None:
    """Add the transformer and the magics to an IPython shell."""

    def gpu(line: str, cell: str | None = None) -> None:  # noqa: ARG001 — IPython's signature
        if cell is not None:
            from IPython.core.error import UsageError  # noqa: PLC0415

            raise UsageError("%%gpu must stand on the first line of the cell.")
        print(describe_binding(os.environ))  # noqa: T201 — the magic's output

    gpu.__doc__ = HELP
    shell.input_transformers_cleanup.insert(0, strip_gpu_line)
    shell.register_magic_function(gpu, magic_kind="line_cell", magic_name="gpu")
