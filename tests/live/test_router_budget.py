"""Fifty kernels with three replicas and a browser tab each: sockets and descriptors stay in budget.

The replicas are bare sockets that speak just enough of the protocol: the router's are counted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from jupyter_client.session import Session
from router_rig import HANG_S, KEY

from notebookos_ext.clock import SystemClock
from notebookos_ext.cluster.model import KernelId, ReplicaId, replica_id
from notebookos_ext.cluster.router import CellArrived, RouterEvent
from notebookos_ext.live.router_thread import RouterThread

KERNELS = 50
REPLICAS = 3
ASKED = ("shell", "control", "stdin")
Socket = zmq.Socket[bytes]


class FakeReplicas:
    """Every replica of every kernel, on one thread: welcomes subscribers and answers requests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 4096)
        self._poller = zmq.Poller()
        self._iopub: dict[Socket, Socket] = {}
        """The iopub that goes with each socket."""
        self._session = Session(key=KEY)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def add(self, replica: ReplicaId) -> dict[str, str]:
        """Bind one replica."""
        endpoints = {}
        iopub = None
        for channel in ("iopub", *ASKED):
            endpoints[channel] = f"ipc://{self.folder}/{replica}-{channel[:2]}"
            sock = self._context.socket(zmq.XPUB if channel == "iopub" else zmq.ROUTER)
            sock.bind(endpoints[channel])
            iopub = iopub or sock
            self._iopub[sock] = iopub
            self._poller.register(sock, zmq.POLLIN)
        return endpoints

    def start(self) -> None:
        self._thread.start()

    def _serve(self) -> None:
        while not self._stop.is_set():
            for sock, _ in self._poller.poll(100):
                if self._iopub[sock] is sock:
                    sock.recv_multipart()
                    self._session.send(sock, "iopub_welcome", {"subscription": ""}, ident=b"")
                else:
                    self._answer(sock)

    def _answer(self, sock: Socket) -> None:
        identities, request = self._session.recv(sock)
        assert request is not None
        kind = request["msg_type"].replace("request", "reply")
        self._session.send(sock, kind, {"status": "ok"}, parent=request, ident=identities)
        idle = {"execution_state": "idle"}
        self._session.send(self._iopub[sock], "status", idle, request, ident=b"status")

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._context.destroy(linger=0)


class Tabs:
    """One client per kernel, on shell and control as a browser tab is."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 4096)
        self._session = Session(key=KEY)
        self._sockets: list[tuple[Socket, Socket]] = []

    def add(self, kernel: KernelId, info: dict[str, int | str | bytes]) -> None:
        shell, control = (self._context.socket(zmq.DEALER) for _ in range(2))
        for sock, channel in ((shell, "shell"), (control, "control")):
            sock.setsockopt(zmq.ROUTING_ID, kernel.encode())
            sock.connect(f"tcp://127.0.0.1:{info[f'{channel}_port']}")
        self._sockets.append((shell, control))

    def ask(self, kind: str, content: dict[str, str]) -> None:
        """On shell, every kernel; on control too where no cell is meant."""
        for pair in self._sockets:
            for sock in pair[:1] if kind == "execute_request" else pair:
                self._session.send(sock, kind, content)

    def answers(self, kind: str) -> list[str]:
        """The kinds of the answers to `ask`, when all are there."""
        kinds = []
        for pair in self._sockets:
            for sock in pair[:1] if kind == "execute_reply" else pair:
                assert sock.poll(HANG_S * 1000)
                _, reply = self._session.recv(sock)
                assert reply is not None
                kinds.append(reply["msg_type"])
        return kinds

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def fakes(tmp_path: Path) -> Iterator[FakeReplicas]:
    it = FakeReplicas(tmp_path)
    yield it
    it.close()


@pytest.fixture
def tabs() -> Iterator[Tabs]:
    it = Tabs()
    yield it
    it.close()


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_fifty_kernels_with_a_tab_each(fakes: FakeReplicas, tabs: Tabs) -> None:
    def start(event: RouterEvent) -> None:
        if isinstance(event, CellArrived):
            router.start_cell(event.kernel, event.cell, 1, replica_id(event.kernel, 1))

    router = RouterThread(clock=SystemClock(), on_event=start)
    kernels = [KernelId(f"k{number}") for number in range(KERNELS)]
    replicas = [(k, replica_id(k, n)) for k in kernels for n in range(1, REPLICAS + 1)]
    endpoints = {replica: fakes.add(replica) for _, replica in replicas}
    fakes.start()
    router.start()
    try:
        for kernel in kernels:
            tabs.add(kernel, router.open_kernel(kernel, session_key=KEY))
        for kernel, replica in replicas:
            router.replica_ready(kernel, replica, endpoints[replica])
            router.set_executor(kernel, replica_id(kernel, 1))
        # Until the executor is connected another replica answers, which costs sockets there.
        while any(len(k.router._replicas) < REPLICAS for k in list(router._kernels.values())):
            threading.Event().wait(0.01)
        tabs.ask("kernel_info_request", {})
        assert tabs.answers("kernel_info_reply") == ["kernel_info_reply"] * 2 * KERNELS
        tabs.ask("execute_request", {"code": "pass"})
        assert tabs.answers("execute_reply") == ["execute_reply"] * KERNELS
        # Five front sockets, an iopub for each replica, a tab's shell, stdin and control.
        assert len(router._poller) == KERNELS * (5 + REPLICAS + 3)
        running = descriptors()
    finally:
        router.stop()
    # Both ends of each connection are in this process; iopub and heartbeat have none here.
    assert KERNELS * 20 < running - descriptors() <= KERNELS * 40
