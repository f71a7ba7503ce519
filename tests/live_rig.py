"""Kernels as a user of jupyter_client has them, on a cluster of this process, with its snapshot."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from notebookos_ext.clock import SystemClock
from notebookos_ext.cluster.model import HostId
from notebookos_ext.handlers import present
from notebookos_ext.handlers.models import ClusterView, KernelView, ReplicaView
from notebookos_ext.live import cluster_runtime
from notebookos_ext.live.cluster_runtime import ClusterRuntime
from notebookos_ext.live.controller import Insight
from notebookos_ext.settings import Settings

HANG_S = 60.0
"""Ends a test that hangs; nothing is measured by it."""


MARK = "NOTEBOOKOS_STARTED_BY"
"""In the environment of what a test starts, to find all that comes of it."""


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition and return what it gave."""
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"this did not come about: {what}")


@contextmanager
def private_cluster(**settings: Any) -> Iterator[ClusterRuntime]:
    """The private cluster of this process, with settings of its own."""
    cluster_runtime.stop_private()
    runtime = cluster_runtime.acquire(Settings(**settings))
    try:
        yield runtime
    finally:
        cluster_runtime.stop_private()


class MovedClock(SystemClock):
    """The machine's clock, set forward by a test: what takes hours is over at the next tick."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s


@contextmanager
def clocked_cluster(**settings: Any) -> Iterator[tuple[ClusterRuntime, MovedClock]]:
    """The cluster of this process, with a clock that the test can set forward."""
    cluster_runtime.stop_private()
    clock = MovedClock()
    runtime = ClusterRuntime(Settings(**settings), private=True, clock=clock)
    runtime.start()
    cluster_runtime.install(runtime)
    try:
        yield runtime, clock
    finally:
        cluster_runtime.install(None)
        runtime.stop()


def snapshot(runtime: ClusterRuntime) -> ClusterView:
    """What the REST API would answer."""
    look = runtime.controller.read(lambda insight: present.cluster(insight, version="test"))
    return look.result(HANG_S)


@dataclass
class Ran:
    """What one cell gave."""

    status: str
    text: str
    error: str
    content: dict[str, Any]


class Notebook:
    """One kernel and one client of it."""

    def __init__(self, runtime: ClusterRuntime, **environment: str) -> None:
        self.runtime = runtime
        self._submitted = ""
        self.manager = KernelManager(kernel_name="notebookos")
        self.manager.start_kernel(env={**os.environ, **environment})
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        try:
            self.client.wait_for_ready(timeout=HANG_S)
        except BaseException:
            self.close()
            raise

    @property
    def id(self) -> str:
        return str(self.manager.kernel_id)

    def view(self) -> KernelView:
        return next(k for k in snapshot(self.runtime).kernels if k.id == self.id)

    def executor(self) -> ReplicaView:
        return next(r for r in self.view().replicas if r.executor)

    def run(self, code: str, **options: Any) -> Ran:
        """Run a cell and collect what it printed and showed."""
        text: list[str] = []

        def hook(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                text.append(content["text"])
            elif message["msg_type"] in ("execute_result", "display_data"):
                text.append(content["data"]["text/plain"])

        reply = self.client.execute_interactive(code, output_hook=hook, timeout=HANG_S, **options)
        content = reply["content"]
        error = f"{content.get('ename', '')}: {content.get('evalue', '')}".strip(": ")
        return Ran(content["status"], "".join(text), error, content)

    def submit(self, code: str, **options: Any) -> None:
        """Send a cell without waiting for anything."""
        self._submitted = self.client.execute(code, **options)

    def reply(self) -> dict[str, Any]:
        """The reply to what was submitted last; answers of getting ready are read past."""
        while True:
            message = self.client.get_shell_msg(timeout=HANG_S)
            if message["parent_header"].get("msg_id") == self._submitted:
                return dict(message["content"])

    def wait_for_replicas(self, count: int = 3) -> KernelView:
        """Until `count` replicas answer and have applied everything."""

        def whole() -> KernelView | None:
            view = self.view()
            idle = [r for r in view.replicas if r.state == "idle" and r.pid and not r.lag]
            return view if len(idle) == count else None

        try:
            found = until(whole, f"{count} idle replicas of {self.id}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.view()} {snapshot(self.runtime)}") from None
        assert isinstance(found, KernelView)
        return found

    def kill_executor(self) -> int:
        """Kill -9 the executor's process."""
        pid = self.executor().pid
        assert pid
        os.kill(pid, signal.SIGKILL)
        return pid

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel()
        self.manager.cleanup_resources()


@contextmanager
def notebook(runtime: ClusterRuntime, **environment: str) -> Iterator[Notebook]:
    opened = Notebook(runtime, **environment)
    try:
        yield opened
    finally:
        opened.close()


def pool(cluster: ClusterRuntime, host: str) -> tuple[int, set[int]]:
    """How many the scheduler counts as ready on a host, and the processes that wait there."""

    def counted(insight: Insight) -> tuple[int, int]:
        found = insight.view.hosts.get(HostId(host))
        return (found.prewarmed, found.spec.pid) if found is not None else (0, 0)

    count, agent = cluster.controller.read(counted).result(HANG_S)
    if not agent:
        return 0, set()
    log = cluster.folder.host(HostId(host)) / "prewarmed.log"
    waiting = set()
    for child in psutil.Process(agent).children():
        try:
            if Path(f"/proc/{child.pid}/fd/1").readlink() == log:
                waiting.add(child.pid)
        except (OSError, psutil.Error):
            continue
    return count, waiting


def gone(pid: int) -> bool:
    """Whether no living process has this id."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def until_async(condition: Callable[[], Awaitable[Any]], what: str) -> Any:
    """`until` for coroutines."""
    async with asyncio.timeout(HANG_S):
        while not (found := await condition()):  # noqa: ASYNC110 - whatever the condition is
            await asyncio.sleep(0.02)
    assert found, what
    return found


def started_by(mark: str) -> list[int]:
    """Processes that the marked run started, however far they detached themselves."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return [pid for pid in found if not gone(pid)]
