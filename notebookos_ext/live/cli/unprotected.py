"""`jupyter notebookos continue`: lets a kernel go on that has lost most of its members."""

from __future__ import annotations

import argparse

from notebookos_ext.live.cli.asking import add_server_options, tell_server
from notebookos_ext.live.cli.migrate import find_kernel


def add(command: argparse.ArgumentParser) -> None:
    """The options."""
    command.add_argument("kernel", help="the kernel's id, or its beginning, or its notebook's path")
    add_server_options(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Begin it. Raises NotFound, Refused with why it cannot be, Unavailable."""
    kernel = find_kernel(arguments)
    tell_server(arguments, "POST", f"kernels/{kernel}/continue-unprotected", None)
    print(f"{kernel} goes on with what is left of it; its next cell says whether anything was lost")
    return 0
