"""`jupyter notebookos export-state`: writes a kernel's namespace into one file."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path

from notebookos_ext.live.cli.asking import Json, add_server_options, tell_server
from notebookos_ext.live.cli.migrate import find_kernel

LONG_S = 3600.0
"""Tens of gigabytes take their time."""
NAMES_SHOWN = 40
BESIDES = (
    "functions, classes and imports that they need, the history, outputs, random states, "
    "environment variables, working directory"
)


def add(command: argparse.ArgumentParser) -> None:
    """The options."""
    command.add_argument("kernel", help="the kernel's id, or its beginning, or its notebook's path")
    command.add_argument("file", help="where to write it, on the server's machine")
    command.add_argument("--overwrite", action="store_true", help="also over a file that is there")
    add_server_options(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write it and say what it has. Raises NotFound, Refused with why it cannot be, Unavailable."""
    kernel = find_kernel(arguments)
    path = str(Path(arguments.file).absolute())
    body: Json = {"path": path, "overwrite": arguments.overwrite}
    made = tell_server(arguments, "POST", f"kernels/{kernel}/export", body, answer_s=LONG_S)
    print(f"{path} is written, for its owner only")
    print(contents(made))
    return 0


def contents(view: Json) -> str:
    """What a file has, in sentences."""
    when = datetime.fromtimestamp(float(view["made_at"])).astimezone()
    what = view["notebook_path"] or f"kernel {view['kernel_id']}"
    lines = [
        f"the namespace of {what} as of {when:%Y-%m-%d %H:%M:%S}, {view['size_bytes']:,} bytes",
        f"Python {view['python'] or 'of an unknown version'}, NotebookOS {view['version']}",
        f"variables: {_some(view['names'])}",
        f"besides: {BESIDES}",
    ]
    if view["left_out"]:
        lines.append(f"left out, because it cannot travel: {_some(view['left_out'])}")
    return "\n".join(lines)


def _some(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN
    shown = ", ".join(names[:NAMES_SHOWN]) or "none"
    return f"{shown} and {more} more" if more > 0 else shown
