"""A router with real ipykernels behind it and the smallest controller in front.

The controller starts each cell at once, on the replica that `choose` names; tests replace it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient

from notebookos_ext.clock import Clock, SystemClock
from notebookos_ext.cluster.model import KernelId, ReplicaId, replica_id
from notebookos_ext.cluster.router import CellArrived, RouterEvent
from notebookos_ext.live.router_thread import RouterThread

KEY = b"a key for tests"
KERNEL = KernelId("11111111-2222")
HANG_S = 120
"""Only ends hangs."""
CHANNELS = ("shell", "control", "stdin", "iopub", "hb")


class Process:
    """One ipykernel on ipc sockets, as an agent would start it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.prefix = folder / name
        self.file = folder / f"{name}.json"
        ports = {f"{channel}_port": number for number, channel in enumerate(CHANNELS, 1)}
        info = {
            **ports,
            "ip": str(self.prefix),
            "transport": "ipc",
            "key": KEY.decode(),
            "signature_scheme": "hmac-sha256",
        }
        self.file.write_text(json.dumps(info), encoding="utf-8")
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "ipykernel_launcher", "-f", str(self.file)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "JPY_PARENT_PID": str(os.getpid())},
            start_new_session=True,
        )

    @property
    def endpoints(self) -> dict[str, str]:
        return {c: f"ipc://{self.prefix}-{n}" for n, c in enumerate(CHANNELS, 1)}

    def interrupt(self) -> None:
        self.popen.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()


class Rig:
    """The router thread, its replicas, and the events it said."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self.folder = folder
        self.events: list[RouterEvent] = []
        self._changed = threading.Condition()
        self.replicas: dict[ReplicaId, Process] = {}
        self.choose: Callable[[CellArrived], ReplicaId | None] = lambda _: replica_id(KERNEL, 1)
        self.attempt = 0
        self.router = RouterThread(clock=clock or SystemClock(), on_event=self._on_event)
        self.router.start()
        self.info = self.router.open_kernel(KERNEL, session_key=KEY)
        self._clients: list[BlockingKernelClient] = []

    def _on_event(self, event: RouterEvent) -> None:
        if isinstance(event, CellArrived):
            replica = self.choose(event)
            if replica is not None:
                self.attempt += 1
                self.router.start_cell(KERNEL, event.cell, self.attempt, replica)
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait_event(self, matches: Callable[[RouterEvent], bool]) -> RouterEvent:
        """The first event that matches, past or coming."""

        def found() -> RouterEvent | None:
            return next((e for e in self.events if matches(e)), None)

        with self._changed:
            assert self._changed.wait_for(found, HANG_S), f"not among {self.events}"
            event = found()
            assert event is not None
            return event

    def add_replica(self, number: int) -> ReplicaId:
        """Start a replica process and tell the router."""
        replica = replica_id(KERNEL, number)
        process = Process(self.folder, f"r{number}-{len(self.replicas)}-{self.attempt}")
        self.replicas[replica] = process
        self.router.replica_ready(KERNEL, replica, process.endpoints)
        return replica

    def kill_replica(self, replica: ReplicaId) -> None:
        """Kill -9, as the agent would notice and the controller pass on."""
        self.replicas.pop(replica).kill()
        self.router.replica_gone(KERNEL, replica)

    def client(self) -> BlockingKernelClient:
        """A new client, connected and ready."""
        client = BlockingKernelClient()
        client.load_connection_info(dict(self.info))
        client.start_channels()
        self._clients.append(client)
        client.wait_for_ready(timeout=HANG_S)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.stop_channels()
            client.context.term() if client.context else None
        self.router.stop()
        for process in self.replicas.values():
            process.kill()


@contextmanager
def rig(folder: Path, replicas: int = 3, clock: Clock | None = None) -> Iterator[Rig]:
    it = Rig(folder, clock)
    try:
        for number in range(1, replicas + 1):
            it.add_replica(number)
        yield it
    finally:
        it.close()


Message = dict[str, Any]


def until_idle(client: BlockingKernelClient, msg_id: str) -> tuple[Message, list[Message]]:
    """The reply of a request and everything published for it, its idle last."""
    published = []
    while True:
        message = client.get_iopub_msg(timeout=HANG_S)
        if message["parent_header"].get("msg_id") == msg_id:
            published.append(message)
            if message["content"].get("execution_state") == "idle":
                break
    while True:
        reply = client.get_shell_msg(timeout=HANG_S)
        if reply["parent_header"].get("msg_id") == msg_id:
            return reply, published


def run(client: BlockingKernelClient, code: str, **options: Any) -> tuple[Message, list[Message]]:
    """Execute and wait for all of it."""
    return until_idle(client, client.execute(code, **options))


def text(published: list[Message]) -> str:
    """What was printed."""
    return "".join(m["content"]["text"] for m in published if m["msg_type"] == "stream")


def story(published: list[Message]) -> list[str]:
    """Types of what was published, states of the statuses."""
    return [m["content"].get("execution_state", m["msg_type"]) for m in published]
