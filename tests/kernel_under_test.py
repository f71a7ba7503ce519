"""A NotebookOS kernel as any client has it, and what its private cluster knows about it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from notebookos_ext.handlers import present
from notebookos_ext.handlers.models import KernelView, ReplicaView

HANG_S = 90
"""Ends a hang; no test measures time with it."""


class KernelUnderTest:
    """One running kernel with one client."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self.client = client

    def view(self) -> KernelView:
        """What the sidebar would show of this kernel now."""
        return kernel_view(self.manager)

    def run(self, code: str) -> str:
        """Run a cell that must succeed; its text: streams and results, without colours."""
        reply, text = self.try_run(code)
        assert reply["status"] == "ok", (code, reply, text)
        return text

    def try_run(self, code: str) -> tuple[dict[str, Any], str]:
        """Run a cell; the reply's content and all text that it printed or displayed."""
        pieces: list[str] = []

        def collect(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                pieces.append(content["text"])
            elif message["msg_type"] in {"execute_result", "display_data"}:
                pieces.append(content["data"].get("text/plain", "") + "\n")

        reply = self.client.execute_interactive(code, timeout=HANG_S, output_hook=collect)
        return reply["content"], "".join(pieces)

    def executor(self) -> ReplicaView:
        """The replica that ran the last cell."""
        return next(replica for replica in self.view().replicas if replica.executor)

    def kill(self, replica: ReplicaView) -> None:
        """End a replica's process as the kernel's out-of-memory killer would."""
        assert replica.pid
        os.kill(replica.pid, signal.SIGKILL)

    def wait_until_whole(self, *, without: int | None = None) -> None:
        """Until every replica is idle again and none of them is process `without`."""

        def whole() -> bool:
            replicas = self.view().replicas
            return all(r.state == "idle" and r.pid and r.pid != without for r in replicas)

        wait_until(whole, "the kernel has all its replicas again")


def kernel_view(manager: KernelManager) -> KernelView:
    """What the sidebar would show of a manager's kernel now."""
    runtime = manager.provisioner._runtime
    view = runtime.controller.read(lambda insight: present.cluster(insight, version="test")).result(
        timeout=HANG_S
    )
    return next(kernel for kernel in view.kernels if kernel.id == manager.kernel_id)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Look again and again until it is so; HANG_S only ends a hang."""
    give_up = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < give_up, f"never: {what}"
        time.sleep(0.02)


@contextmanager
def running_kernel(kernel_name: str = "notebookos") -> Iterator[KernelUnderTest]:
    """A started kernel and its client; gone afterwards."""
    manager = KernelManager(kernel_name=kernel_name)
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=HANG_S)
        yield KernelUnderTest(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
