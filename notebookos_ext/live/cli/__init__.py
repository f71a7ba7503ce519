"""`jupyter notebookos`: what runs where, what it took, and making kernelspecs replicated.

It asks running servers by their REST API, so it shows what the sidebar shows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from notebookos_ext.errors import NotebookOSError
from notebookos_ext.live.cli import (
    doctor,
    drain,
    export_state,
    import_state,
    install,
    migrate,
    raftos,
    status,
    support,
    sweep,
    unprotected,
    usage,
)

COMMANDS = {
    "status": (status, "show hosts, GPUs, kernels and waiting cells of the running servers"),
    "usage": (usage, "show what cells took, how long they waited, and what was saved"),
    "migrate": (migrate, "move a replica of a kernel to another host"),
    "continue": (unprotected, "let a kernel go on that has lost most of its members"),
    "drain": (drain, "empty a host, and give it back if asked to"),
    "sweep": (sweep, "delete what nothing names any more from the checkpoint store"),
    "export-state": (export_state, "write a kernel's namespace into one file"),
    "import-state": (import_state, "start a new kernel out of such a file, once it is trusted"),
    "install": (install, "make a replicated kernelspec out of an installed one"),
    "doctor": (doctor, "look for what is wrong with this installation, and say what to do"),
    "support-bundle": (support, "write one file for whoever is to help, without users' data"),
    "install-raftos": (raftos, "install the engine raftos, which is not durable"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 when it worked, 1 after a sentence on stderr."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except NotebookOSError as error:
        print(f"jupyter notebookos: {error.message}", file=sys.stderr)
        if error.hint:
            print(error.hint, file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jupyter notebookos", description="Replicated notebook kernels."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (module, what) in COMMANDS.items():
        module.add(
            commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
