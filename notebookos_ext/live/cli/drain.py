"""`jupyter notebookos drain`: empties a host, and gives it back if asked to."""

from __future__ import annotations

import argparse

from notebookos_ext.live.cli.asking import add_server_options, tell_server


def add(command: argparse.ArgumentParser) -> None:
    """The options."""
    command.add_argument("host", help="the host's id, as `status` shows it")
    what = command.add_mutually_exclusive_group()
    what.add_argument("--release", action="store_true", help="give it back once it is empty")
    what.add_argument("--cancel", action="store_true", help="use it again like any other")
    add_server_options(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Begin or cancel it, and say how many replicas are there. Raises NotFound, Unavailable."""
    path = f"hosts/{arguments.host}/drain"
    if arguments.cancel:
        view = tell_server(arguments, "DELETE", path, None)
        print(f"{view['id']} is used again")
        return 0
    view = tell_server(arguments, "PUT", path, {"release": arguments.release})
    then = ", then it is given back" if arguments.release else ""
    print(f"{view['id']} takes nothing new; its {view['replica_count']} replicas move{then}")
    return 0
