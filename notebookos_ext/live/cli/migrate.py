"""`jupyter notebookos migrate`: moves a replica of a kernel to another host."""

from __future__ import annotations

import argparse

from notebookos_ext.errors import NotFound
from notebookos_ext.live.cli.asking import Json, add_server_options, ask_servers, tell_server


def add(command: argparse.ArgumentParser) -> None:
    """The options."""
    command.add_argument("kernel", help="the kernel's id, or its beginning, or its notebook's path")
    command.add_argument(
        "--replica", type=int, metavar="N", help="number of the replica (the scheduler chooses)"
    )
    command.add_argument("--to", metavar="HOST", help="where to (the scheduler chooses)")
    add_server_options(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Begin the move and say so. Raises NotFound, Refused with why it cannot be, Unavailable."""
    kernel = find_kernel(arguments)
    body: Json = {"replica": arguments.replica, "target": arguments.to}
    view = tell_server(arguments, "POST", f"kernels/{kernel}/migration", body)
    moving = view["migration"]
    if moving is None:
        print("it is done already")
        return 0
    number = str(moving["replica_id"]).rpartition(":")[2]
    print(
        f"replica {number} of {kernel} moves to {moving['target']}; `status` shows when it is there"
    )
    return 0


def find_kernel(arguments: argparse.Namespace) -> str:
    """The id of the one kernel that is meant. Raises NotFound when there is none, or several."""
    wanted = str(arguments.kernel)
    found, _ = ask_servers(arguments, "cluster")
    ids = [
        str(kernel["id"])
        for _, cluster in found
        for kernel in cluster["kernels"]
        if kernel["id"].startswith(wanted) or kernel["notebook_path"] == wanted
    ]
    if len(ids) == 1:
        return ids[0]
    if ids:
        raise NotFound(f"{wanted} may be any of {', '.join(ids)}; give more of the id")
    raise NotFound(f"no kernel has an id that begins with {wanted}, or that notebook")
