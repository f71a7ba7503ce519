"""`jupyter notebookos import-state`: a new kernel out of such a file, once it is trusted."""

from __future__ import annotations

import argparse
from pathlib import Path

from notebookos_ext.errors import Refused
from notebookos_ext.live.cli.asking import Json, add_server_options, tell_server
from notebookos_ext.live.cli.export_state import LONG_S, contents

RUNS_CODE = (
    "Loading it runs code that the file holds, with all that you may do on the server's machine."
)


def add(command: argparse.ArgumentParser) -> None:
    """The options."""
    command.add_argument("file", help="what export-state has written, on the server's machine")
    command.add_argument(
        "--trust", action="store_true", help="you know where it comes from: do not ask"
    )
    command.add_argument(
        "--notebook", default="", metavar="PATH", help="give the kernel to this notebook"
    )
    command.add_argument(
        "--kernel-name", default="notebookos", metavar="NAME", help="the kernelspec (notebookos)"
    )
    add_server_options(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Say what the file has, ask, start the kernel. Raises Refused, NotFound, Unavailable."""
    path = str(Path(arguments.file).absolute())
    found = tell_server(
        arguments, "POST", "state-files/inspection", {"path": path}, answer_s=LONG_S
    )
    print(contents(found))
    made = "This installation made it, and it is unchanged."
    print(made if found["is_own"] else "It was not made by this installation.")
    print(RUNS_CODE)
    if not (arguments.trust or _agreed()):
        raise Refused("nothing was loaded; say --trust, or answer yes, if you trust the file")
    body: Json = {
        "path": path,
        "digest": found["digest"],
        "kernel_name": arguments.kernel_name,
        "notebook_path": arguments.notebook,
    }
    kernel = tell_server(arguments, "POST", "state-files/import", body, answer_s=LONG_S)
    print(f"kernel {kernel['id']} has it; its first cell or request loads the variables")
    return 0


def _agreed() -> bool:
    try:
        return input("Do you trust it? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
