"""Host agents that do as they are told, and a router that writes down what it is told.

They speak the real control protocol over real sockets, on a loop of their own; no process, no log.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from notebookos_ext.clock import SystemClock
from notebookos_ext.cluster.frames import FrameDecoder, encode_frame
from notebookos_ext.cluster.messages import control as messages
from notebookos_ext.cluster.model import (
    CellId,
    DeviceId,
    DeviceKind,
    DeviceSpec,
    HostId,
    HostSpec,
    KernelId,
    KernelSpec,
    ReplicaId,
)
from notebookos_ext.cluster.routing import CellArrived
from notebookos_ext.cluster.scheduler import Scheduler
from notebookos_ext.live.backends.base import BackendListener
from notebookos_ext.live.controller import Controller
from notebookos_ext.live.keeping import Keeper
from notebookos_ext.live.kernel_records import LaunchPlan
from notebookos_ext.notebook_settings import NotebookSettings
from notebookos_ext.storage.addresses import FolderAddress
from notebookos_ext.storage.kept_kernels import KeptKernels

TOKEN = b"t" * 32
KERNEL = KernelId("k")
PLAN = LaunchPlan(name="n", python="python", env={}, cwd="/", session_key=b"key")
HOLD = object()
"""As an answer: none, until the test gives one."""

Script = dict[type, Callable[[Any], Any]]


class ScriptedAgent:
    """One host; `script` has an answer per kind of request, Done for all others."""

    def __init__(self, host: str, folder: Path, *, gpus: int = 1, script: Script | None = None):
        self.host = HostId(host)
        self.path = str(folder / f"{host}.control")
        self.script: Script = dict(script or {})
        self.asked: list[Any] = []
        self.held: dict[type, int] = {}
        self.attached = 0
        self._gpus = gpus
        self._incarnation = 0
        self._writer: asyncio.StreamWriter | None = None
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._thread.start()
        self._ready.wait()

    def notice(self, body: messages.AgentNotice) -> None:
        self._loop.call_soon_threadsafe(self._send, 0, body)

    def answer(self, kind: type, body: messages.AgentAnswer) -> None:
        """Answer a request that was held."""
        self._loop.call_soon_threadsafe(self._send, self.held.pop(kind), body)

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._loop.call_soon_threadsafe(lambda: self._writer and self._writer.write(data))

    def drop(self) -> None:
        """Break the connection, as a crash would."""
        self._loop.call_soon_threadsafe(self._break)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def of(self, kind: type) -> list[Any]:
        """The requests of one kind so far."""
        return [request for request in list(self.asked) if isinstance(request, kind)]

    def spec(self) -> HostSpec:
        devices = tuple(
            DeviceSpec(DeviceId(f"{self.host}-{n}"), n, DeviceKind.SIMULATED, "Simulated GPU", 1)
            for n in range(self._gpus)
        )
        return HostSpec(self.host, f"i{self._incarnation}", "machine", devices, pid=1)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._server = self._loop.run_until_complete(
            asyncio.start_unix_server(self._serve, self.path)
        )
        self._ready.set()
        self._loop.run_forever()
        self._break()
        self._server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    def _break(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        nonce = b"n" * 16
        self._send(0, messages.Challenge(nonce=nonce))
        decoder: FrameDecoder[messages.ToAgent] = FrameDecoder(messages.ToAgent)
        while data := await reader.read(65536):
            for message in decoder.feed(data):
                self._take(message, nonce)
        writer.close()

    def _take(self, message: messages.ToAgent, nonce: bytes) -> None:
        body = message.body
        self.asked.append(body)
        scripted = self.script[type(body)](body) if type(body) in self.script else None
        if isinstance(body, messages.Attach) and scripted is None:
            assert body.proof == hmac.digest(TOKEN, nonce, hashlib.sha256)
            self.attached += 1
            self._incarnation += 1
            answer: Any = messages.Attached(self.spec(), "peer", (), ())
        else:
            answer = messages.Done() if scripted is None else scripted
        if answer is HOLD:
            self.held[type(body)] = message.sequence
        else:
            self._send(message.sequence, answer)

    def _send(self, sequence: int, body: Any) -> None:
        if self._writer is not None:
            self._writer.write(encode_frame(messages.FromAgent(sequence=sequence, body=body)))


class WrittenRouter:
    """Every command, in order, as a tuple of its name and arguments."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        def command(*arguments: Any, **named: Any) -> None:
            self.said.append((name, *arguments, *named.values()))

        return command

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [said for said in list(self.said) if said[0] == name]


class ScriptedBackend:
    """Hosts that are there from the beginning; writes down which of them were given up."""

    name = "scripted"
    boot_s = 1.0

    def __init__(self, agents: list[ScriptedAgent]) -> None:
        self.max_hosts = len(agents)
        self.agents = agents
        self.given_up: list[HostId] = []
        self.requested: list[int] = []
        self._listener: BackendListener | None = None

    async def start(self, listener: BackendListener) -> None:
        self._listener = listener
        for agent in self.agents:
            listener.host_up(agent.host, agent.path, adopted=False)

    @property
    def host_count(self) -> int:
        return len(self.agents)

    async def request_hosts(self, count: int) -> None:
        self.requested.append(count)

    def attached(self, host: HostId) -> None:
        return None

    def failed(self, host: HostId) -> None:
        """Its replacement listens at once."""
        self.given_up.append(host)
        agent = next(a for a in self.agents if a.host == host)
        assert self._listener is not None
        self._listener.host_up(host, agent.path, adopted=False)

    async def release_host(self, host: HostId, *, grace_s: float) -> None:
        return None

    async def stop(self, *, grace_s: float) -> None:
        return None


class NoLogs:
    """Scripted agents keep nothing on disk."""

    def logs(self) -> dict[KernelId, float]:
        return {}

    def delete_logs(self, kernel: KernelId) -> None:
        return None

    def require_space(self) -> None:
        return None


class ScriptedCluster:
    """A controller over scripted agents."""

    def __init__(
        self,
        folder: Path,
        hosts: int = 3,
        *,
        gpus: int = 1,
        lease_s: float = 60.0,
        script: Script | None = None,
    ) -> None:
        self.agents = [
            ScriptedAgent(f"host-{n}", folder, gpus=gpus, script=script)
            for n in range(1, hosts + 1)
        ]
        self.backend = ScriptedBackend(self.agents)
        self.router = WrittenRouter()
        self.changes: list[tuple[KernelId | None, str]] = []
        self.scheduler = Scheduler(max_hosts=hosts)
        self.controller = Controller(
            scheduler=self.scheduler,
            policy="replicated",
            consensus_engine="raft",
            backend=self.backend,
            router=self.router,
            clock=SystemClock(),
            token=TOKEN,
            name="test",
            lease_s=lease_s,
            poll_s=60.0,
            options={},
            store=FolderAddress("/nowhere"),
            keeper=Keeper(KeptKernels(folder / "kernels"), NoLogs(), keep_days=0),
            on_change=lambda kernel, kind: self.changes.append((kernel, kind)),
        )
        self.controller.start()

    def agent(self, host: str) -> ScriptedAgent:
        return next(agent for agent in self.agents if agent.host == host)

    def host_of(self, replica: int) -> ScriptedAgent:
        """The agent on which a replica of the kernel lives."""
        found = self.read(lambda i: i.view.kernels[KERNEL].replicas[replica - 1].host)
        return self.agent(found)

    def read(self, look: Callable[[Any], Any]) -> Any:
        return self.controller.read(look).result(30)

    def start_kernel(self, replicas: int = 3, gpus: int = 0) -> None:
        spec = KernelSpec(kernel=KERNEL, replica_count=replicas, gpus_per_cell=gpus)
        self.controller.start_kernel(spec, PLAN, NotebookSettings()).result(30)

    def ready(self, replica: int, launch: int = 1) -> None:
        self.host_of(replica).notice(
            messages.ReplicaReady(
                kernel=KERNEL,
                replica=ReplicaId(f"{KERNEL}:{replica}"),
                launch=launch,
                pid=1000 + replica,
                endpoints={"shell": "x"},
            )
        )

    def exited(self, replica: int, launch: int = 1, *, requested: bool = False) -> None:
        self.host_of(replica).notice(
            messages.ReplicaExited(
                kernel=KERNEL,
                replica=ReplicaId(f"{KERNEL}:{replica}"),
                launch=launch,
                pid=1000 + replica,
                reason="killed by signal 9",
                requested=requested,
            )
        )

    def cell(self, cell: str, code: str = "x = 1", metadata: dict[str, Any] | None = None) -> None:
        """The router has a cell at the head of the queue."""
        arrived = CellArrived(
            kernel=KERNEL, cell=CellId(cell), code=code, metadata=metadata or {}, silent=False
        )
        self.controller.from_router(arrived)

    def view(self) -> Any:
        """State of the kernel and of each replica, as plain words."""
        return self.read(
            lambda i: (
                i.view.kernels[KERNEL].state.value,
                [r.state.value for r in i.view.kernels[KERNEL].replicas],
            )
        )

    def close(self) -> None:
        self.controller.stop(delete_logs=True)
        for agent in self.agents:
            agent.close()


def plain(value: msgspec.Struct) -> dict[str, Any]:
    """A message as a dict, for comparisons of some of its fields."""
    return dict(msgspec.structs.asdict(value))
