"""`jupyter notebookos install`: makes a replicated kernelspec out of an installed one."""

from __future__ import annotations

import argparse
import sys

from notebookos_ext.live.kernelspecs import install_replicated


def add(command: argparse.ArgumentParser) -> None:
    """The options."""
    command.add_argument("--kernel", required=True, metavar="NAME", help="the installed kernelspec")
    command.add_argument("--name", metavar="NEW", help="name of the new one (NAME-notebookos)")
    where = command.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="for this user (the default)")
    where.add_argument("--sys-prefix", action="store_true", help="into this Python environment")
    where.add_argument("--prefix", help="into another environment")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Install it. Raises what `install_replicated` does."""
    prefix = sys.prefix if arguments.sys_prefix else arguments.prefix
    name, where = install_replicated(
        arguments.kernel, name=arguments.name, user=prefix is None, prefix=prefix
    )
    print(f"installed the kernelspec {name} in {where}")
    return 0
