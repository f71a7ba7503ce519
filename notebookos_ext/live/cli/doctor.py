"""`jupyter notebookos doctor`: what is wrong with this installation, and what to do about it."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_core.paths import jupyter_config_path, jupyter_data_dir, jupyter_path
from jupyter_server.extension.config import ExtensionConfigManager

from notebookos_ext.clock import SystemClock
from notebookos_ext.errors import NotebookOSError
from notebookos_ext.live import checkups, leftover_processes
from notebookos_ext.live.checkups import Finding
from notebookos_ext.live.cli.tables import table

PRIVATE_FOLDERS = "notebookos-private-"
WORDS = {"ok": "ok", "note": "note", "wrong": "WRONG"}


def add(command: argparse.ArgumentParser) -> None:
    """The options."""
    command.add_argument("--json", action="store_true", help="print the findings as JSON")
    add_state_options(command)
    command.set_defaults(run=run)


def add_state_options(command: argparse.ArgumentParser) -> None:
    """Where the state and the store are, when settings say so."""
    command.add_argument(
        "--state-folder", metavar="PATH", help="as NotebookOSApp.state_folder, if you set it"
    )
    command.add_argument(
        "--checkpoint-store", metavar="ADDRESS", help="as NotebookOSApp.checkpoint_store"
    )


def state_path(given: str | None) -> Path:
    """The state folder, by default the one in the user's Jupyter data folder."""
    return Path(given or Path(jupyter_data_dir()) / "notebookos").expanduser().absolute()


def run(arguments: argparse.Namespace) -> int:
    """Print what was found; 1 when something is wrong."""
    found = list(findings(arguments.state_folder, arguments.checkpoint_store))
    wrong = [finding for finding in found if finding.level == "wrong"]
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
        return 1 if wrong else 0
    rows: list[tuple[str, ...]] = [
        (WORDS[finding.level], finding.subject, finding.said) for finding in found
    ]
    print("\n".join(table(("", "WHAT", "HOW IT IS"), rows, empty="")))
    for finding in found:
        if finding.fix:
            print(f"\n{finding.subject}: {finding.said}\n  to do: {finding.fix}")
    print(f"\n{len(wrong)} wrong" if wrong else "\nnothing is wrong")
    return 1 if wrong else 0


def findings(state_folder: str | None, store: str | None) -> Iterator[Finding]:
    """Everything, in the order in which it is worth mending."""
    state = state_path(state_folder)
    yield from checkups.installation()
    yield from checkups.extension(_server_extensions(), [Path(p) for p in _labextensions()])
    yield from checkups.kernelspecs(_specs())
    yield from checkups.gpus()
    yield from checkups.limits()
    yield from checkups.socket_folder()
    yield from checkups.state_folder(state)
    yield from checkups.checkpoint_store(store or str(state / "store"), clock=SystemClock())
    # Looked at twice: one that is just being forked or mourned is nobody's for a moment.
    before = {p.pid for p in leftover_processes.orphaned_kernels(leftover_processes.processes())}
    now = leftover_processes.processes()
    moment = {p.pid for p in leftover_processes.orphaned_kernels(now)} - before
    settled = {pid: process for pid, process in now.items() if pid not in moment}
    yield from left_behind(settled, Path(tempfile.gettempdir()))


def left_behind(found: dict[int, leftover_processes.Running], temporary: Path) -> Iterator[Finding]:
    """Processes and folders that nobody has any more."""
    clean = True
    for agent in leftover_processes.orphaned_agents(found):
        clean = False
        yield Finding(
            "left behind",
            "note",
            f"host agent {agent.pid} of {agent.state_folder} has no server",
            "nothing: the next server takes it over, or it ends with its lease; "
            f"to end it now: kill {agent.pid}",
        )
    for process in leftover_processes.orphaned_kernels(found):
        clean = False
        yield Finding(
            "left behind",
            "wrong",
            f"process {process.pid} of a kernel has no host agent",
            f"kill {process.pid}",
        )
    for path in leftover_processes.abandoned_folders(temporary, PRIVATE_FOLDERS):
        clean = False
        yield Finding(
            "left behind",
            "note",
            f"{path} belonged to a process that was killed",
            f"nothing: the next private cluster removes it; to remove it now: rm -r '{path}'",
        )
    if clean:
        yield Finding("left behind", "ok", "no process and no folder of a killed server")


def _server_extensions() -> dict[str, bool]:
    manager = ExtensionConfigManager(read_config_path=jupyter_config_path())
    return dict(manager.get_jpserver_extensions())  # type: ignore[no-untyped-call]


def _labextensions() -> list[str]:
    return [str(path) for path in jupyter_path("labextensions")]


def _specs() -> dict[str, dict[str, object]]:
    try:
        found = KernelSpecManager().get_all_specs()
    except (OSError, ValueError) as error:
        raise NotebookOSError(f"the installed kernelspecs cannot be read: {error}") from error
    return {name: dict(entry["spec"]) for name, entry in found.items()}
