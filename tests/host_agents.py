"""Real host agent processes for tests, and a small controller that commands them.

async with Hosts(tmp_path, count=3) as hosts:
    await hosts.open_kernel(KERNEL)
    await hosts.launch(KERNEL, 1)
    begun = await hosts["host-1"].request(begin("commit x"), AttemptBegun)
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import psutil
from fake_interpreter import write_interpreter

from notebookos_ext.cluster.messages.control import (
    AgentNotice,
    AgentRequest,
    Attached,
    BeginAttempt,
    Done,
    LaunchReplica,
    OpenKernel,
    ReplicaReady,
    SetPeers,
)
from notebookos_ext.cluster.messages.startup import AgentConfig
from notebookos_ext.cluster.model import CellId, DeviceId, HostId, KernelId, replica_id
from notebookos_ext.live.agent_client import AgentClient, connect

ROOT = Path(__file__).resolve().parent.parent
KERNEL = KernelId("kernel-1")
LOG_KEY = b"k" * 32
HANG_S = 60.0
"""Only ends hangs."""

Answer = TypeVar("Answer")
Notice = TypeVar("Notice")


class Controller:
    """One attached control connection, with every notice that came over it."""

    def __init__(self) -> None:
        self.notices: list[AgentNotice] = []
        self.lost: str | None = None
        self.attached: Attached
        self.client: AgentClient
        self._changed = asyncio.Event()

    async def request(self, body: AgentRequest, expected: type[Answer]) -> Answer:
        return await self.client.request(body, expected, HANG_S)

    async def ask(self, body: AgentRequest) -> Any:
        """The answer whatever it is, failures included."""
        return await asyncio.wait_for(self.client.send(body), HANG_S)

    async def notice(
        self, kind: type[Notice], matches: Callable[[Notice], bool] = lambda _: True
    ) -> Notice:
        """Wait for a notice, which may have come already."""
        async with asyncio.timeout(HANG_S):
            while True:
                for notice in self.notices:
                    if isinstance(notice, kind) and matches(notice):
                        return notice
                self._changed.clear()
                await self._changed.wait()

    async def until_lost(self) -> None:
        async with asyncio.timeout(HANG_S):
            while self.lost is None:
                self._changed.clear()
                await self._changed.wait()

    def take(self, notice: AgentNotice) -> None:
        self.notices.append(notice)
        self._changed.set()

    def end(self, reason: str) -> None:
        self.lost = reason
        self._changed.set()


class Hosts:
    """`count` agents of one cluster below `root`; all of them are gone at the end."""

    def __init__(
        self,
        root: Path,
        *,
        count: int = 1,
        lease_s: float = 120.0,
        simulated_gpus: int = 2,
        python: str | None = None,
        environment: dict[str, str] | None = None,
        **overrides: Any,
    ) -> None:
        self.root = root
        self.names = [HostId(f"host-{n}") for n in range(1, count + 1)]
        self.sockets = Path(tempfile.mkdtemp(prefix="nb"))
        self.token = secrets.token_bytes(32)
        self.python = python or write_interpreter(root / "interpreter")
        self.lease_s = lease_s
        self.environment = environment or {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.controllers: dict[str, Controller] = {}
        self._launches = 0
        self._simulated_gpus = simulated_gpus
        self._overrides = overrides
        token_file = root / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(self.token.hex())

    def __getitem__(self, host: str) -> Controller:
        return self.controllers[host]

    async def __aenter__(self) -> Self:
        try:
            for host in self.names:
                self.start(host)
            for host in self.names:
                await self.attach(host)
            await self.tell_peers()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_exception: object) -> None:
        for controller in self.controllers.values():
            controller.client.close()
        for process in self.processes.values():
            process.terminate()
        try:
            for process in self.processes.values():
                await asyncio.to_thread(process.wait, HANG_S)
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()
            shutil.rmtree(self.sockets, ignore_errors=True)

    def config(self, host: str) -> AgentConfig:
        folder = self.root / host
        values: dict[str, Any] = {
            "host": HostId(host),
            "machine": socket.gethostname(),
            "folder": str(folder),
            "socket_folder": str(self.sockets),
            "token_file": str(self.root / "token"),
            "checkpoint_store": str(self.root / "store"),
            "lock_folder": str(self.root / "locks"),
            "gpus": "simulated",
            "simulated_gpus": self._simulated_gpus,
            "hash_seed": 7,
            "templates": (),
            "preload": (),
            "lease_s": self.lease_s,
        }
        return AgentConfig(**(values | self._overrides))

    def start(self, host: str) -> subprocess.Popen[bytes]:
        """Start the agent's process; its words on stderr are kept in `<root>/<host>.err`."""
        path = self.root / f"{host}.json"
        path.write_bytes(msgspec.json.encode(self.config(host)))
        with (self.root / f"{host}.err").open("wb") as output:
            self.processes[host] = subprocess.Popen(
                [sys.executable, "-m", "notebookos_ext.agent", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": str(ROOT), **self.environment},
                cwd=self.root,
                start_new_session=True,
            )
        return self.processes[host]

    def control_path(self, host: str) -> Path:
        return self.sockets / f"{host}.control"

    async def attach(self, host: str, *, lease_s: float | None = None) -> Controller:
        """Attach a (new) controller to the agent, as soon as it listens."""
        async with asyncio.timeout(HANG_S):
            while not self.control_path(host).exists():
                if self.processes[host].poll() is not None:
                    raise AssertionError((self.root / f"{host}.err").read_text())
                await asyncio.sleep(0.01)
            controller = Controller()
            controller.client, controller.attached = await connect(
                str(self.control_path(host)),
                token=self.token,
                controller="test",
                lease_s=lease_s or self.lease_s,
                on_notice=controller.take,
                on_lost=controller.end,
            )
        self.controllers[host] = controller
        return controller

    async def tell_peers(self, lost: tuple[str, ...] = ()) -> None:
        addresses = {str(h): self[h].attached.peer_address for h in self.names}
        for host in self.names:
            if host not in lost:
                await self[host].request(SetPeers(addresses, tuple(map(HostId, lost))), Done)

    async def open_kernel(self, kernel: KernelId = KERNEL) -> None:
        """Open the kernel's member on every host; the first one is to lead."""
        opening = [
            self[host].request(
                OpenKernel(kernel, tuple(self.names), LOG_KEY, campaign=host == self.names[0]), Done
            )
            for host in self.names
        ]
        await asyncio.gather(*opening)

    def launch_request(
        self, number: int, *, kernel: KernelId = KERNEL, epoch: int = 0, **plan: Any
    ) -> LaunchReplica:
        self._launches += 1
        return LaunchReplica(
            kernel=kernel,
            replica=replica_id(kernel, number),
            epoch=epoch,
            launch=self._launches,
            python=self.python,
            env={**os.environ, "PLAN": json.dumps(plan)},
            cwd=str(self.root),
            session_key=b"key",
            options={},
        )

    async def launch(
        self, number: int, *, kernel: KernelId = KERNEL, epoch: int = 0, **plan: Any
    ) -> ReplicaReady:
        """Start replica `number` on host `number` and wait until it is ready."""
        request = self.launch_request(number, kernel=kernel, epoch=epoch, **plan)
        controller = self[f"host-{number}"]
        await controller.request(request, Done)
        return await controller.notice(
            ReplicaReady, lambda n: (n.replica, n.launch) == (request.replica, request.launch)
        )

    def replica_log(self, number: int, kernel: KernelId = KERNEL) -> list[dict[str, Any]]:
        """What a fake replica said of itself."""
        path = self.root / f"host-{number}" / "replicas" / f"{kernel}-{number}.log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{")]

    def applied(self, number: int, kernel: KernelId = KERNEL) -> list[str]:
        """Names that a fake replica applied, in order."""
        return [n for fact in self.replica_log(number, kernel) for n in fact.get("names", ())]


def begin(
    cell: str,
    attempt: int,
    *,
    replica: int = 1,
    devices: tuple[str, ...] = (),
    kernel: KernelId = KERNEL,
) -> BeginAttempt:
    return BeginAttempt(
        kernel=kernel,
        cell=CellId(cell),
        attempt=attempt,
        replica=replica_id(kernel, replica),
        devices=tuple(map(DeviceId, devices)),
    )


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition that nobody announces; the limit only ends hangs."""
    async with asyncio.timeout(HANG_S):
        while not condition():  # noqa: ASYNC110 - conditions of other processes
            await asyncio.sleep(0.01)


def on_hosts(
    *, count: int = 1, replicas: int = 0
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Make `async def test(hosts, …)` a test of so many agents.

    With `replicas`, the kernel is open on all of them and so many of its replicas are ready.
    """

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        wanted = list(inspect.signature(test).parameters.values())[1:]
        takes_path = any(parameter.name == "tmp_path" for parameter in wanted)

        async def story(tmp_path: Path, arguments: dict[str, Any]) -> None:
            async with Hosts(tmp_path, count=count) as hosts:
                if replicas:
                    await hosts.open_kernel()
                    await asyncio.gather(*(hosts.launch(n + 1) for n in range(replicas)))
                await test(hosts, **arguments)

        @functools.wraps(test)
        def run(*, tmp_path: Path, **arguments: Any) -> None:
            if takes_path:
                arguments["tmp_path"] = tmp_path
            asyncio.run(story(tmp_path, arguments))

        path = inspect.Parameter("tmp_path", inspect.Parameter.KEYWORD_ONLY)
        others = [p.replace(kind=path.kind) for p in wanted if p.name != path.name]
        # What pytest reads to know the fixtures.
        run.__signature__ = inspect.Signature([path, *others])  # type: ignore[attr-defined]
        return run

    return decorate


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
