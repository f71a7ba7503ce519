"""`jupyter notebookos install-raftos`: the published raftos, beside libraries of today."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys

from notebookos_ext.errors import LaunchFailed
from notebookos_ext.settings import RAFTOS_VERSION

PACKAGES = (f"raftos=={RAFTOS_VERSION}", "msgpack")
"""raftos pins libraries of 2016 that no Python of today can build, hence `--no-deps`."""


def add(command: argparse.ArgumentParser) -> None:
    """No options."""
    command.set_defaults(run=run)


def run(_arguments: argparse.Namespace) -> int:
    """Install it into this environment. Raises LaunchFailed."""
    command = [sys.executable, "-m", "pip", "install", "--no-deps", *PACKAGES]
    print(shlex.join(command))
    try:
        code = subprocess.run(command, check=False).returncode
    except OSError as error:
        raise LaunchFailed(f"{sys.executable} cannot be started: {error.strerror}") from error
    if code != 0:
        raise LaunchFailed(
            f"pip ended with status {code} and has not installed raftos",
            hint=f"Install {' and '.join(PACKAGES)} into {sys.prefix} without dependencies.",
        )
    print(
        "installed. `pip check` will complain about its pins, which do no harm here. Set "
        "NotebookOSApp.consensus_engine to raftos to use it; it is not durable."
    )
    return 0
