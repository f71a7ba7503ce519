"""What `jupyter notebookos doctor` looks at, one function per subject; nothing is changed by it.

Each answers with findings: a sentence that says how it is and, where it is not as it should be,
what to do about it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from packaging.requirements import Requirement

from notebookos_ext.clock import Clock
from notebookos_ext.errors import NotebookOSError
from notebookos_ext.live.file_systems import network_file_system
from notebookos_ext.live.kernelspecs import PROVISIONER, check_interpreter, interpreter
from notebookos_ext.storage.kept_kernels import KeptKernels
from notebookos_ext.storage.opening import open_store

Level = Literal["ok", "note", "wrong"]

DISTRIBUTION = "notebookos_ext"
LEAST_PYTHON = (3, 11)
LEAST_FREE_BYTES = 1 << 30
LEAST_DESCRIPTORS = 1024
"""A kernel with one open tab takes about sixty."""
ASK_S = 30.0
PRIVATE_FILES = ("token", "hash_seed", "lock")


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at. `fix` says what to do; empty where nothing is to be done."""

    subject: str
    level: Level
    said: str
    fix: str = ""


def installation() -> Iterator[Finding]:
    """Python, and every package that this one needs, in the versions that it needs."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < LEAST_PYTHON:
        yield Finding("python", "wrong", f"Python {version}", "install Python 3.11 or later")
    else:
        yield Finding("python", "ok", f"Python {version}")
    if sys.platform != "linux":
        yield Finding(
            "system",
            "wrong",
            f"{sys.platform} is not supported",
            "run the Jupyter server on Linux",
        )
    try:
        own = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        yield Finding(
            "package",
            "wrong",
            f"{DISTRIBUTION} is not installed in {sys.prefix}",
            f"{sys.executable} -m pip install {DISTRIBUTION}",
        )
        return
    yield Finding("package", "ok", f"{DISTRIBUTION} {own.version}")
    yield from required(own.requires or [], _installed_version)


def required(requirements: list[str], version_of: Callable[[str], str | None]) -> Iterator[Finding]:
    """Which of these requirements are not met; one finding when all are."""
    count = 0
    wrong = False
    for text in requirements:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        count += 1
        there = version_of(wanted.name)
        if there is not None and wanted.specifier.contains(there, prereleases=True):
            continue
        wrong = True
        said = f"{wanted.name} is {there or 'not installed'}; {wanted.specifier or 'any'} is needed"
        fix = f"{sys.executable} -m pip install '{wanted.name}{wanted.specifier}'"
        yield Finding("packages", "wrong", said, fix)
    if not wrong:
        yield Finding("packages", "ok", f"all {count} packages have the versions that are needed")


def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def extension(enabled: Mapping[str, bool], labextensions: list[Path]) -> Iterator[Finding]:
    """Whether the server loads us, and the browser has our part of the page.

    `enabled` is Jupyter's own table of server extensions, `labextensions` the folders it looks in.
    """
    if enabled.get(DISTRIBUTION):
        yield Finding("server extension", "ok", "enabled")
    else:
        yield Finding(
            "server extension",
            "wrong",
            "it is disabled" if DISTRIBUTION in enabled else "it is not known to Jupyter here",
            f"jupyter server extension enable {DISTRIBUTION}",
        )
    found = [f for f in labextensions if (f / "notebookos-ext" / "package.json").is_file()]
    if found:
        yield Finding("front end", "ok", f"installed in {found[0]}")
    else:
        yield Finding(
            "front end",
            "wrong",
            "JupyterLab has no extension notebookos-ext",
            f"{sys.executable} -m pip install --force-reinstall --no-deps {DISTRIBUTION}",
        )


def kernelspecs(specs: Mapping[str, Mapping[str, object]]) -> Iterator[Finding]:
    """The replicated kernelspecs, and whether their interpreters can run replicas."""
    replicated = {
        name: spec
        for name, spec in specs.items()
        if PROVISIONER in json.dumps(_inner(spec.get("metadata")).get("kernel_provisioner", {}))
    }
    if not replicated:
        yield Finding(
            "kernelspec",
            "wrong",
            "no kernelspec is replicated",
            f"{sys.executable} -m pip install --force-reinstall --no-deps {DISTRIBUTION}, "
            "or jupyter notebookos install --kernel python3",
        )
    for name, spec in replicated.items():
        argv = spec.get("argv")
        try:
            command = [str(word) for word in argv] if isinstance(argv, list) else []
            check_interpreter(interpreter(command, name=name))
        except NotebookOSError as error:
            yield Finding("kernelspec", "wrong", f"{name}: {error.message}", error.hint)
        else:
            yield Finding("kernelspec", "ok", f"{name} can run replicas")


def _inner(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def gpus(command: list[str] | None = None) -> Iterator[Finding]:
    """The devices that host agents would bind, asked in a process of its own."""
    command = command or [sys.executable, "-m", "notebookos_ext.agent.devices_told"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=ASK_S, check=True)
        devices = json.loads(done.stdout)["devices"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        yield Finding(
            "gpus",
            "wrong",
            f"the NVIDIA driver could not be asked ({type(error).__name__})",
            "look at what nvidia-smi says; until it works set NotebookOSApp.gpus to simulated",
        )
        return
    for device in devices:
        gigabytes = device["memory_bytes"] / 1e9
        yield Finding("gpus", "ok", f"{device['index']}: {device['name']}, {gigabytes:.0f} GB")
    if not devices:
        yield Finding("gpus", "note", "no NVIDIA device or driver; GPUs are simulated")


def limits() -> Iterator[Finding]:
    """Loopback ports, and how many files a process may have open."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=ASK_S).close()
    except OSError as error:
        yield Finding(
            "ports",
            "wrong",
            f"no port of 127.0.0.1 can be used: {error.strerror}",
            "let processes of yours listen on the loopback interface",
        )
    else:
        yield Finding("ports", "ok", "ports of 127.0.0.1 can be used")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < LEAST_DESCRIPTORS:
        yield Finding(
            "open files",
            "wrong",
            f"a process may have {hard} files open; a kernel takes about sixty",
            f"raise the hard limit (ulimit -Hn) to {LEAST_DESCRIPTORS} or more",
        )
    else:
        yield Finding("open files", "ok", f"{soft} may be open, {hard} at most")


def socket_folder() -> Iterator[Finding]:
    """The folder of unix sockets is ours and nobody else's."""
    folder = Path(tempfile.gettempdir()) / f"nbos-{os.getuid()}"
    if not folder.is_symlink() and not folder.exists():
        yield Finding("sockets", "ok", f"{folder} will be made")
        return
    yield from _owned("sockets", folder, folder=True)


def state_folder(path: Path) -> Iterator[Finding]:
    """Whether it is private, can be written, has room, is local, and can be read."""
    if not path.exists():
        parent = next(p for p in path.parents if p.exists())
        if os.access(parent, os.W_OK):
            yield Finding("state folder", "ok", f"{path} will be made")
        else:
            yield Finding(
                "state folder",
                "wrong",
                f"{path} cannot be made: {parent} is not writable",
                "make it writable or set NotebookOSApp.state_folder to a folder of yours",
            )
        return
    yield from _owned("state folder", path, folder=True)
    for name in PRIVATE_FILES:
        if (path / name).exists():
            yield from _owned("state folder", path / name, folder=False)
    for record in sorted((path / "kernels").glob("*.json")):
        yield from (f for f in _owned("kernel record", record, folder=False) if f.level != "ok")
    found = os.statvfs(path)
    free = found.f_bavail * found.f_frsize
    if free < LEAST_FREE_BYTES:
        yield Finding(
            "disk",
            "wrong",
            f"{free / 1e9:.2f} GB are free for {path}",
            "free some, or set NotebookOSApp.state_folder to a folder on another disk",
        )
    else:
        yield Finding("disk", "ok", f"{free / 1e9:.0f} GB are free for the state folder")
    if kind := network_file_system(path):
        yield Finding(
            "disk",
            "wrong",
            f"{path} is on a network file system ({kind}), where logs are slow and may be lost",
            "set NotebookOSApp.state_folder to a local folder",
        )
    kept, problems = KeptKernels(path / "kernels").all()
    yield Finding("kept kernels", "ok", f"{len(kept)} can be brought back")
    for problem in problems:
        yield Finding("kept kernels", "wrong", problem, "remove it if the kernel is not needed")


def _owned(subject: str, path: Path, *, folder: bool) -> Iterator[Finding]:
    """Ours, and for nobody else."""
    status = path.lstat()
    wanted = "700" if folder else "600"
    if status.st_uid != os.getuid():
        yield Finding(
            subject, "wrong", f"{path} belongs to somebody else", f"remove or rename {path}"
        )
    elif status.st_mode & 0o077:
        mode = f"{status.st_mode & 0o777:o}"
        yield Finding(
            subject,
            "wrong",
            f"others can read {path} (mode {mode})",
            f"chmod {wanted} '{path}'; if others may have read a token, delete it and restart",
        )
    elif folder and not os.access(path, os.W_OK | os.X_OK):
        yield Finding(subject, "wrong", f"{path} cannot be written", f"chmod {wanted} '{path}'")
    else:
        yield Finding(subject, "ok", f"{path} is private")


def checkpoint_store(address: str, *, clock: Clock) -> Iterator[Finding]:
    """Whether the store answers. A folder that is not there yet is made when it is needed."""
    if "://" not in address and not Path(address).exists():
        yield Finding("checkpoint store", "ok", f"{address} will be made")
        return
    try:
        store = open_store(address, clock=clock)
        store.check()
    except NotebookOSError as error:
        yield Finding("checkpoint store", "wrong", error.message, error.hint)
    else:
        yield Finding("checkpoint store", "ok", f"{store.name} answers")
