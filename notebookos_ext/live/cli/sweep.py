"""`jupyter notebookos sweep`: deletes chunks that nothing names from the checkpoint store."""

from __future__ import annotations

import argparse

from notebookos_ext.live.cli.asking import add_server_options, tell_server

SWEEP_S = 3600.0


def add(command: argparse.ArgumentParser) -> None:
    """The options."""
    command.add_argument(
        "--dry-run", action="store_true", help="say what would go, and delete nothing"
    )
    add_server_options(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Sweep and say what went. Raises NotFound, Unavailable with why nothing can be swept."""
    body = {"dry_run": arguments.dry_run}
    swept = tell_server(arguments, "POST", "store/sweep", body, answer_s=SWEEP_S)
    what = "would go" if arguments.dry_run else "are gone"
    print(f"{swept['chunks']} chunks ({swept['size_bytes'] / 1e6:.1f} MB) {what}")
    return 0
