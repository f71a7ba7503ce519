"""Templates: one process per interpreter that has imported everything and forks replicas.

The package itself is made importable in any interpreter through a folder that holds nothing but a
link to it, so that no library of ours shadows one of the user's.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import re
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from notebookos_ext.agent.procfs import kill
from notebookos_ext.agent.reaper import Reaper, exit_words
from notebookos_ext.cluster.frames import encode_frame
from notebookos_ext.cluster.messages.startup import ForkReplica
from notebookos_ext.errors import LaunchFailed

log = logging.getLogger(__name__)

PACKAGE = Path(__file__).resolve().parent.parent
TEMPLATE_MODULE = "notebookos_ext.kernel.template"
TEMPLATE_FD = 3
TAIL_BYTES = 64 * 1024
LOG_BYTES = 1 << 20
_MISSING = re.compile(r"(?:ModuleNotFoundError|ImportError): No module named '([\w.]+)'")


def make_importable(folder: Path) -> Path:
    """A folder for PYTHONPATH in which other interpreters find this package and nothing else."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    link = folder / PACKAGE.name
    if not link.is_symlink() or link.readlink() != PACKAGE:
        link.unlink(missing_ok=True)
        link.symlink_to(PACKAGE)
    return folder


def explain_failure(python: str, log_text: str, words: str) -> str:
    """One sentence about an interpreter that cannot run replicas, from what it printed."""
    missing = _MISSING.findall(log_text)
    if missing:
        name = missing[-1].split(".")[0]
        return (
            f"{python} cannot run a replica because it has no module {name}; "
            f"install it with: {python} -m pip install {name}"
        )
    lines = [line for line in log_text.splitlines() if line.strip()]
    return f"{python} cannot run a replica: it {words}" + (f" ({lines[-1]})" if lines else "")


def tail(path: Path, start: int = 0) -> str:
    """The end of a log file, at most from byte `start` on, for an explanation."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(start, path.stat().st_size - TAIL_BYTES))
        return file.read().decode(errors="replace")
    return ""


def open_log(path: Path) -> int:
    """Open a replica's log for appending; a long one starts anew. Raises LaunchFailed."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        if path.exists() and path.stat().st_size > LOG_BYTES:
            flags |= os.O_TRUNC
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise LaunchFailed(
            f"the replica's log {path} cannot be written: {error.strerror}"
        ) from error


async def send_first(connection: socket.socket, frame: bytes, descriptors: Sequence[int]) -> int:
    """Send the beginning of a frame with descriptors; returns how many bytes went. Raises OSError.

    The descriptors go with the first byte; the rest is sent like any other data.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            return socket.send_fds(connection, [frame], descriptors)
        except BlockingIOError:
            # It is still importing, and many replicas wait for it already.
            room = loop.create_future()
            loop.add_writer(connection, room.set_result, None)
            try:
                await room
            finally:
                loop.remove_writer(connection)


class Template:
    """One template process."""

    def __init__(self, python: str, pid: int, connection: socket.socket, log_path: Path) -> None:
        self.python = python
        self.pid = pid
        self.log_path = log_path
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when the process is gone, with a sentence about why."""
        self.forks = 0
        self._socket = connection
        self._sending = asyncio.Lock()

    async def fork(self, request: ForkReplica, link: int, log_file: int) -> None:
        """Ask for a replica; the two descriptors travel with the request. Raises LaunchFailed."""
        frame = encode_frame(request)
        async with self._sending:
            try:
                sent = await send_first(self._socket, frame, [link, log_file])
                await asyncio.get_running_loop().sock_sendall(self._socket, frame[sent:])
            except OSError as error:
                raise LaunchFailed(
                    f"the template of {self.python} has ended: {error.strerror}"
                ) from error
        self.forks += 1

    def close(self) -> None:
        """End it: it exits when its socket closes, and for certain by a signal."""
        self._socket.close()
        if not self.ended.done():
            kill(self.pid, signal.SIGTERM)


class Templates:
    """Starts templates when they are needed, and again when they died."""

    def __init__(
        self, folder: Path, *, reaper: Reaper, hash_seed: int, preload: Sequence[str]
    ) -> None:
        self._folder = folder
        self._reaper = reaper
        self._hash_seed = hash_seed
        self._preload = tuple(preload)
        self._importable = make_importable(folder / "importable")
        self._templates: dict[str, Template] = {}
        self._numbers = itertools.count(1)
        self._closed = False

    def get(self, python: str) -> Template:
        """The template of an interpreter, started if there is none. Raises LaunchFailed."""
        found = self._templates.get(python)
        if found is None:
            found = self._templates[python] = self._start(python)
        return found

    def close(self) -> None:
        """End every template."""
        self._closed = True
        for template in self._templates.values():
            template.close()
        self._templates.clear()

    def _start(self, python: str) -> Template:
        if self._closed:
            raise LaunchFailed("the host agent is ending and starts no more replicas")
        log_path = self._folder / f"template-{next(self._numbers)}.log"
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            try:
                pid = self._spawn(python, theirs.fileno(), log_path)
            except OSError as error:
                ours.close()
                raise LaunchFailed(
                    f"{python} cannot be started: {error.strerror}",
                    hint="Check the interpreter that the kernelspec names.",
                ) from error
        log.info("template of %s is process %d", python, pid)
        template = Template(python, pid, ours, log_path)
        self._reaper.watch(pid, lambda status: self._ended(template, status))
        return template

    def _spawn(self, python: str, connection: int, log_path: Path) -> int:
        environment = {
            **os.environ,
            "PYTHONHASHSEED": str(self._hash_seed),
            "PYTHONPATH": str(self._importable),
            # No device is visible before the first bind, to whatever is imported here either.
            "CUDA_VISIBLE_DEVICES": "",
        }
        log_flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        return os.posix_spawn(
            python,
            # As ipykernel's kernelspec does: the debugger cannot see frozen modules.
            [
                python,
                "-Xfrozen_modules=off",
                "-m",
                TEMPLATE_MODULE,
                str(TEMPLATE_FD),
                *self._preload,
            ],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, connection, TEMPLATE_FD),
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log_path), log_flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setpgroup=0,
        )

    def _ended(self, template: Template, status: int) -> None:
        words = exit_words(status)
        template.ended.set_result(explain_failure(template.python, tail(template.log_path), words))
        if self._templates.get(template.python) is not template:
            return
        log.warning("template of %s %s", template.python, words)
        del self._templates[template.python]
        template.close()
        # One that never worked is tried again only when somebody asks for it.
        if template.forks:
            with contextlib.suppress(LaunchFailed):
                self.get(template.python)
