"""`jupyter notebookos support-bundle`: one file for whoever is to help, without users' data."""

from __future__ import annotations

import argparse
import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from notebookos_ext.clock import SystemClock
from notebookos_ext.errors import NotebookOSError, StorageError
from notebookos_ext.live.cli import doctor
from notebookos_ext.live.cli.asking import Json, add_server_options, ask_servers
from notebookos_ext.live.log_sentences import Sentences
from notebookos_ext.live.support import bundle, packed

PACKAGE = Path(__file__).resolve().parents[2]


def add(command: argparse.ArgumentParser) -> None:
    """The options."""
    command.add_argument("--output", metavar="FILE", help="the file to write; it must not exist")
    doctor.add_state_options(command)
    add_server_options(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write it and say what is in it. Raises StorageError when it cannot be written."""
    now = SystemClock().now()
    name = f"notebookos-support-{datetime.fromtimestamp(now, UTC):%Y%m%d-%H%M%S}.tar.gz"
    path = Path(arguments.output or name)
    found = doctor.findings(arguments.state_folder, arguments.checkpoint_store)
    files = bundle(
        doctor.state_path(arguments.state_folder),
        found=[msgspec.to_builtins(finding) for finding in found],
        servers=_servers(arguments),
        sentences=Sentences(PACKAGE),
    )
    _write(path, packed(files, now=now))
    print(f"wrote {path} with {len(files)} files: {', '.join(sorted(files))}")
    print("It holds no code, outputs, names of variables or notebooks, tokens or keys.")
    print("Look through it before you send it.")
    return 0


def _servers(arguments: argparse.Namespace) -> list[Json]:
    """What running servers say; none of them need run."""
    try:
        return [view for _, view in ask_servers(arguments, "cluster")[0]]
    except NotebookOSError as error:
        print(f"without a server: {error.message}")
        return []


def _write(path: Path, data: bytes) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(data)
    except FileExistsError as error:
        raise StorageError(f"{path} exists; name another file with --output") from error
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({error.strerror}); name another file with --output"
        ) from error
