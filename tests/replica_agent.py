"""The other end of replicas for tests: forks them from a real template, answers what they ask.

It keeps chunks in a dictionary and commits everything at once, in memory; a test can hold its
answers back, refuse commits, and read all that a replica said.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from jupyter_client.blocking import BlockingKernelClient

from notebookos_ext.cluster.entries import Delta
from notebookos_ext.cluster.frames import FrameDecoder, encode_frame
from notebookos_ext.cluster.messages.control import LaunchReplica
from notebookos_ext.cluster.messages.replica import (
    AgentFailure,
    AgentMessage,
    Applied,
    Apply,
    Chunk,
    CommitAttempt,
    CommitState,
    Committed,
    FetchChunk,
    FromReplica,
    Lead,
    LeadAnswer,
    Prepare,
    ReplicaHello,
    ReplicaServing,
    StoreChunk,
    ToReplica,
)
from notebookos_ext.cluster.messages.startup import ForkReplica
from notebookos_ext.cluster.model import CellId, DeviceId, KernelId, ReplicaId

TIMEOUT_S = 60
"""Only ends hangs."""
PR_SET_CHILD_SUBREAPER = 36
KEY = b"0123456789abcdef"
M = TypeVar("M")


def set_subreaper(on: bool) -> None:
    """Let orphaned descendants become children of this process, as the host agent does."""
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) == 0


class Replica:
    """One replica process and the agent's end of its socket pair."""

    def __init__(self, agent: Agent, launch: LaunchReplica, connection: socket.socket) -> None:
        self.agent = agent
        self.launch = launch
        self.connection = connection
        self.said: queue.Queue[FromReplica | None] = queue.Queue()
        self.commits: queue.Queue[CommitAttempt | CommitState | None] = queue.Queue()
        self.index = 0
        self.commit_answer: Callable[[Any], AgentMessage | None] = self.committed
        self.ended = threading.Event()
        self.last_commit_sequence = 0
        self._may_read = threading.Event()
        self._may_read.set()
        self._sequence = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        hello = self.expect(ReplicaHello)
        self.pid = hello.pid
        self.endpoints = self.expect(ReplicaServing).endpoints

    def committed(self, _message: Any) -> AgentMessage:
        self.index += 1
        return Committed(self.index)

    # ---- what the replica says ------------------------------------------------------------------

    def _read(self) -> None:
        decoder: FrameDecoder[FromReplica] = FrameDecoder(FromReplica)
        poller = select.poll()
        poller.register(self.connection, select.POLLIN)
        while True:
            poller.poll()
            self._may_read.wait()
            try:
                data = self.connection.recv(1 << 20)
            except OSError:
                data = b""
            if not data:
                self.ended.set()
                self.said.put(None)
                self.commits.put(None)
                return
            for message in decoder.feed(data):
                self._receive(message)

    def _receive(self, message: FromReplica) -> None:
        body = message.body
        if isinstance(body, StoreChunk):
            self.agent.chunks[body.digest] = body.data
        elif isinstance(body, FetchChunk):
            data = self.agent.chunks.get(body.digest)
            self.send(
                message.sequence,
                Chunk(body.digest, data)
                if data is not None
                else AgentFailure("NotFound", f"there is no chunk {body.digest}"),
            )
        elif isinstance(body, CommitAttempt | CommitState):
            self.last_commit_sequence = message.sequence
            answer = self.commit_answer(body)
            if answer is not None:
                self.send(message.sequence, answer)
            self.commits.put(body)
        else:
            self.said.put(message)

    def pause_reading(self) -> None:
        """Leave what it says in the socket, as a busy agent would."""
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def expect(self, kind: type[M]) -> M:
        """The next thing it says that is no commit and no chunk; it must be a `kind`."""
        message = self.said.get(timeout=TIMEOUT_S)
        assert message is not None, f"the replica ended:\n{self.agent.log.read_text()}"
        body = message.body
        assert isinstance(body, kind), body
        return body

    def commit(self) -> CommitAttempt | CommitState:
        """The next commit it asked for."""
        commit = self.commits.get(timeout=TIMEOUT_S)
        assert commit is not None, f"the replica ended:\n{self.agent.log.read_text()}"
        return commit

    def delta(self) -> Delta:
        return self.commit().delta

    # ---- what the agent asks --------------------------------------------------------------------

    def send(self, sequence: int, body: AgentMessage) -> None:
        # A replica that has died is told nothing more; what it wrote is still read.
        with self._lock, contextlib.suppress(OSError):
            self.connection.sendall(encode_frame(ToReplica(sequence, body)))

    def ask(self, body: AgentMessage) -> None:
        self._sequence += 1
        self.send(self._sequence, body)

    def prepare(
        self, devices: tuple[str, ...] = (), visible: str = "", simulated: bool = True
    ) -> LeadAnswer:
        self.ask_prepare(devices, visible, simulated)
        return self.expect(LeadAnswer)

    def ask_prepare(
        self, devices: tuple[str, ...] = (), visible: str = "", simulated: bool = True
    ) -> None:
        self.ask(Prepare(tuple(map(DeviceId, devices)), visible, simulated))

    def lead(self, cell: str) -> int:
        attempt = self.agent.next_attempt()
        self.ask(Lead(CellId(cell), attempt))
        return attempt

    def ask_apply(self, delta: Delta | None, index: int, executor: ReplicaId | None = None) -> None:
        self.ask(Apply(index, delta, 0, executor, own=False))

    def acknowledge_own(self, index: int) -> None:
        self.ask(Apply(index, None, 0, self.launch.replica, own=True))
        assert self.expect(Applied).index == index

    def apply(self, delta: Delta | None, index: int, executor: ReplicaId | None = None) -> None:
        self.ask_apply(delta, index, executor)
        assert self.expect(Applied).index == index

    def client(self) -> BlockingKernelClient:
        address = self.endpoints["shell"].removeprefix("ipc://")
        client = BlockingKernelClient()
        client.load_connection_info(
            {
                "transport": "ipc",
                "ip": address.rpartition("-")[0],
                "key": KEY,
                "signature_scheme": "hmac-sha256",
                **{f"{c}_port": int(e.rpartition("-")[2]) for c, e in self.endpoints.items()},
            }
        )
        client.start_channels()
        client.wait_for_ready(timeout=TIMEOUT_S)
        return client

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def hang_up(self) -> None:
        """Close the agent's end, as its death would."""
        self.connection.shutdown(socket.SHUT_RDWR)

    def wait(self, *, close: bool = True) -> int:
        """Reap it; its wait status."""
        status = os.waitpid(self.pid, 0)[1]
        if close:
            self._may_read.set()
            self._thread.join()
            self.connection.close()
        self.agent.replicas.discard(self)
        return status


class Agent:
    """Forks replicas of one kernel from a template of its own."""

    def __init__(self, folder: Path, *preload: str) -> None:
        self.folder = folder
        self.chunks: dict[str, bytes] = {}
        self.replicas: set[Replica] = set()
        self.kernel = KernelId(str(uuid.uuid4()))
        self._attempt = 0
        self._launch = 0
        self.connection, end = socket.socketpair()
        environment = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
        environment["PYTHONHASHSEED"] = "1234"
        self.template = subprocess.Popen(
            [
                sys.executable,
                "-Xfrozen_modules=off",
                "-m",
                "notebookos_ext.kernel.template",
                str(end.fileno()),
                *preload,
            ],
            pass_fds=(end.fileno(),),
            env=environment,
        )
        end.close()

    def next_attempt(self) -> int:
        self._attempt += 1
        return self._attempt

    def launch(
        self,
        number: int = 1,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> Replica:
        """Fork a replica and wait until it serves."""
        self._launch += 1
        environment = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
        environment["IPYTHONDIR"] = str(self.folder / "ipython")
        launch = LaunchReplica(
            kernel=self.kernel,
            replica=ReplicaId(f"{self.kernel}:{number}"),
            epoch=1,
            launch=self._launch,
            python=sys.executable,
            env=environment | (env or {}),
            cwd=cwd if cwd is not None else str(self.folder),
            session_key=KEY,
            options=options,
        )
        ours, theirs = socket.socketpair()
        with self.log.open("ab") as log:
            socket.send_fds(
                self.connection,
                [encode_frame(ForkReplica(launch, str(self.folder), os.getpid()))],
                [theirs.fileno(), log.fileno()],
            )
        theirs.close()
        replica = Replica(self, launch, ours)
        self.replicas.add(replica)
        return replica

    @property
    def log(self) -> Path:
        return self.folder / "replica.log"

    def close(self) -> None:
        """End every replica, then the template."""
        for replica in tuple(self.replicas):
            with contextlib.suppress(ProcessLookupError):
                replica.kill()
            replica.wait()
        self.connection.close()
        assert self.template.wait(TIMEOUT_S) == 0


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A private folder whose path leaves room for socket names, which pytest's do not."""
    with tempfile.TemporaryDirectory(prefix="nos-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def running_agent(*preload: str) -> Iterator[Agent]:
    """An agent in a folder of its own."""
    with short_folder() as folder:
        set_subreaper(True)
        agent = Agent(folder, *preload)
        try:
            yield agent
        finally:
            agent.close()
            set_subreaper(False)


class Notebook:
    """A client that runs cells on one replica after making it the executor."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.client = replica.client()

    def message(self, code: str, **content: Any) -> dict[str, Any]:
        """An execute_request."""
        message: dict[str, Any] = self.client.session.msg(
            "execute_request",
            {
                "code": code,
                "silent": False,
                "store_history": True,
                "user_expressions": {},
                "allow_stdin": False,
                "stop_on_error": True,
                **content,
            },
        )
        return message

    def lead(self, message: dict[str, Any]) -> str:
        """Make the replica the executor of this cell; its msg_id."""
        cell = str(message["header"]["msg_id"])
        assert self.replica.prepare().accepted
        self.replica.lead(cell)
        return cell

    def start(self, code: str, *, lead: bool = True, **content: Any) -> str:
        """Send a cell; its msg_id."""
        message = self.message(code, **content)
        if lead:
            self.lead(message)
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def output(self, cell: str) -> list[dict[str, Any]]:
        """Everything published for a cell up to its idle."""
        found = []
        while True:
            message = self.client.get_iopub_msg(timeout=TIMEOUT_S)
            if message["parent_header"].get("msg_id") != cell:
                continue
            found.append(message)
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return found

    def reply(self, cell: str) -> dict[str, Any]:
        while True:
            message: dict[str, Any] = self.client.get_shell_msg(timeout=TIMEOUT_S)
            if message["parent_header"].get("msg_id") == cell:
                return message["content"]  # type: ignore[no-any-return]

    def replies(self, count: int) -> list[dict[str, Any]]:
        """The next replies on the shell channel, whosesoever."""
        return [self.client.get_shell_msg(timeout=TIMEOUT_S) for _ in range(count)]

    def comms(self) -> dict[str, Any]:
        """The open comms as comm_info tells them."""
        reply = self.client.comm_info(reply=True, timeout=TIMEOUT_S)
        comms: dict[str, Any] = reply["content"]["comms"]
        return comms

    def run(self, code: str, **content: Any) -> tuple[dict[str, Any], str]:
        """Run a cell to its end: the reply's content and the text it printed and returned."""
        cell = self.start(code, **content)
        reply = self.reply(cell)
        return reply, text(self.output(cell))

    def close(self) -> None:
        self.client.stop_channels()


def text(messages: list[dict[str, Any]]) -> str:
    """Streams and results as one string."""
    parts = []
    for message in messages:
        content = message["content"]
        if message["msg_type"] == "stream":
            parts.append(content["text"])
        elif message["msg_type"] in ("execute_result", "display_data"):
            parts.append(content["data"]["text/plain"])
    return "".join(parts)


@contextlib.contextmanager
def notebook(replica: Replica) -> Iterator[Notebook]:
    book = Notebook(replica)
    try:
        yield book
    finally:
        book.close()
