"""A Jupyter server in a process of its own, its REST API, and WebSockets as browsers open them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import websocket
from live_rig import HANG_S, MARK, until

LOOK_S = 5
Message = dict[str, Any]


class Server:
    """A running server, as a browser with its token sees it."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], found: Message) -> None:
        self.folder = folder
        self.process = process
        self.url = str(found["url"])
        self.token = str(found["token"])

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One REST request; its JSON, None where there is none. Raises HTTPError."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {self.token}"},
        )
        with urllib.request.urlopen(request, timeout=HANG_S) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def answers(self) -> bool:
        """Whether it answers yet: it describes itself in a file before it does."""
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            self.ask("GET", "api/status")
        except urllib.error.URLError:
            return False
        return True

    def status_of(self, path: str) -> int:
        """The HTTP status of a GET."""
        try:
            self.ask("GET", path)
        except urllib.error.HTTPError as error:
            return error.code
        return 200

    def start_kernel(self, name: str = "notebookos") -> str:
        """A kernel without a notebook; its id."""
        return str(self.ask("POST", "api/kernels", {"name": name})["id"])

    def replicas(self, kernel: str) -> list[Message]:
        """What the sidebar shows of a kernel's replicas."""
        found: list[Message] = self.ask("GET", f"notebookos/api/kernels/{kernel}")["replicas"]
        return found

    def wait_for_replicas(self, kernel: str, count: int = 3) -> list[int]:
        """Until all answer; their process ids."""

        def whole() -> list[int]:
            found = self.replicas(kernel)
            ready = [int(r["pid"]) for r in found if r["state"] == "idle" and r["pid"]]
            return ready if len(ready) == count else []

        return list(until(whole, f"{count} replicas of {kernel}"))

    def executor(self, kernel: str) -> int:
        """The process that ran the last cell."""
        return next(int(r["pid"]) for r in self.replicas(kernel) if r["executor"])

    def shown_cluster_kernel(self, kernel: str) -> Message:
        """What `notebookos/api/kernels` says of it."""
        found: Message = self.ask("GET", f"notebookos/api/kernels/{kernel}")
        return found

    def shown(self, kernel: str) -> Message:
        """What `api/kernels` says of it."""
        found: Message = self.ask("GET", f"api/kernels/{kernel}")
        return found


@contextmanager
def running_server(
    folder: Path,
    *options: str,
    mark: str = "server",
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """`jupyter server` with folders of its own, until the block ends."""
    env = {
        **os.environ,
        **(environment or {}),
        MARK: mark,
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
    }
    command = [
        sys.executable, "-m", "jupyter_server", "--no-browser", f"--ServerApp.port={_free_port()}",
        # The port may be taken in the moment before the server has it.
        "--ServerApp.port_retries=50",
        "--ServerApp.allow_root=True", f"--ServerApp.root_dir={folder}", *options,
    ]  # fmt: skip
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, env=env, stdout=log, stderr=log) as process,
    ):

        def listening() -> Message | None:
            assert process.poll() is None, (folder / "log").read_text()
            # One that was killed leaves its own behind.
            path = folder / "runtime" / f"jpserver-{process.pid}.json"
            try:
                return dict(json.loads(path.read_text()))
            except (FileNotFoundError, ValueError):  # not there yet, or half written
                return None

        try:
            server = Server(folder, process, until(listening, "the server listens"))
            until(server.answers, "the server answers")
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


class Tab:
    """One kernel WebSocket, in the binary format that JupyterLab speaks."""

    PROTOCOL = "v1.kernel.websocket.jupyter.org"

    def __init__(self, server: Server, kernel: str, session: str = "") -> None:
        """With an earlier tab's `session` the server gives what it kept for it meanwhile."""
        self.session = session or uuid.uuid4().hex
        self._numbers = itertools.count()
        self.inbox: list[tuple[str, Message]] = []
        address = server.url.replace("http", "ws", 1)
        self.socket = websocket.create_connection(
            f"{address}api/kernels/{kernel}/channels?session_id={self.session}",
            header=[f"Authorization: token {server.token}"],
            subprotocols=[self.PROTOCOL],
            timeout=HANG_S,
        )
        # Shorter than the time between the server's pings, which would hide a hang.
        self.socket.settimeout(LOOK_S)

    def close(self) -> None:
        """As when the browser's tab is closed or reloaded."""
        self.socket.close()

    def ask(self, kind: str, content: Message, channel: str = "shell") -> str:
        """Send a request; its id."""
        number = f"{self.session}_{uuid.uuid4().hex[:6]}_{next(self._numbers)}"
        header = {
            "msg_id": number,
            "msg_type": kind,
            "username": "test",
            "session": self.session,
            "date": "2026-01-01T00:00:00.000Z",
            "version": "5.4",
        }
        parts = [json.dumps(part).encode() for part in (header, {}, {}, content)]
        self.socket.send_binary(_packed([channel.encode(), *parts]))
        return number

    def execute(self, code: str, *, allow_stdin: bool = True) -> str:
        """Send a cell; its id."""
        return self.ask("execute_request", {"code": code, "allow_stdin": allow_stdin})

    def answer(self, value: str) -> None:
        """Answer a prompt."""
        self.ask("input_reply", {"status": "ok", "value": value}, "stdin")

    def until(self, matches: Callable[[str, Message], bool], what: str) -> Message:
        """The first message, past or coming, that matches (channel, message); the others stay."""
        for index, (channel, message) in enumerate(self.inbox):
            if matches(channel, message):
                return self.inbox.pop(index)[1]
        give_up = time.monotonic() + HANG_S
        while time.monotonic() < give_up:
            try:
                channel, message = _unpacked(self.socket.recv())
            except websocket.WebSocketTimeoutException:
                continue
            if matches(channel, message):
                return message
            self.inbox.append((channel, message))
        raise AssertionError(f"never came: {what}, but {self.inbox}")

    def output(self, cell: str, text: str) -> Message:
        """What a cell printed, with this text in it."""
        return self.until(
            lambda channel, m: (
                channel == "iopub"
                and m["parent_header"].get("msg_id") == cell
                and text in m["content"].get("text", "")
            ),
            f"{text!r} of {cell}",
        )

    def reply(self, cell: str) -> Message:
        """The content of a cell's reply."""
        content: Message = self.until(
            lambda channel, m: channel == "shell" and m["parent_header"].get("msg_id") == cell,
            f"the reply to {cell}",
        )["content"]
        return content

    def published(self, cell: str) -> list[Message]:
        """All that is published for a cell, its idle last."""
        found: list[Message] = []
        while not found or found[-1]["content"].get("execution_state") != "idle":
            found.append(
                self.until(
                    lambda channel, m: (
                        channel == "iopub" and m["parent_header"].get("msg_id") == cell
                    ),
                    f"the idle of {cell} after {found}",
                )
            )
        return found

    def run(self, code: str) -> str:
        """Run a cell that must succeed; what it printed."""
        cell = self.execute(code)
        text = "".join(
            m["content"]["text"]
            for m in self.published(cell)
            if m["header"]["msg_type"] == "stream"
        )
        reply = self.reply(cell)
        assert reply["status"] == "ok", (code, reply, text)
        return text


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _packed(parts: list[bytes]) -> bytes:
    """How many offsets, the offsets (each 8 bytes), then channel and message parts."""
    offsets = [8 * (len(parts) + 2)]
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    head = [len(offsets), *offsets]
    return b"".join([*(number.to_bytes(8, "little") for number in head), *parts])


def _unpacked(data: bytes) -> tuple[str, Message]:
    def number(index: int) -> int:
        return int.from_bytes(data[8 * index : 8 * index + 8], "little")

    offsets = [number(index) for index in range(1, number(0) + 1)]
    channel, *parts = (data[start:end] for start, end in itertools.pairwise(offsets))
    names = ("header", "parent_header", "metadata", "content")
    return channel.decode(), {
        name: json.loads(part) for name, part in zip(names, parts, strict=False)
    }
