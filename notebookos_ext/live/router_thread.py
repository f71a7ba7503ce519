"""The thread that carries every kernel's Jupyter messages, so that no event loop is in their way.

It owns all ZMQ sockets of the router. Other threads speak to it through a queue and a socket pair;
it speaks to the controller through `on_event`. What happens to a message is decided in
`cluster/router.py`.
"""

from __future__ import annotations

import datetime as dt
import logging
import resource
import socket
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

import zmq

from notebookos_ext.clock import Clock
from notebookos_ext.cluster.channels import SHELL, Made, Message, Signer, build, parse
from notebookos_ext.cluster.model import CellId, KernelId, ReplicaId
from notebookos_ext.cluster.router import KernelRouter, RouterEvent
from notebookos_ext.cluster.routing import (
    Announce,
    Answer,
    Output,
    PrepareReplica,
    Probe,
    Publish,
    ToClient,
    ToReplica,
)
from notebookos_ext.errors import ProtocolError, Unavailable
from notebookos_ext.live.router_sockets import MAX_SOCKETS, Context, KernelSockets
from notebookos_ext.live.socket_poller import SocketPoller

log = logging.getLogger(__name__)

SWEEP_S = 5.0
"""How often idle connections are looked for."""
PROBE_IDENTITY = b"notebookos-router"
DESCRIPTORS_WANTED = 16_384

T = TypeVar("T")
ConnectionInfo = dict[str, int | str | bytes]


class _Kernel:
    """One kernel: its decisions, sockets and key, and the way between them."""

    def __init__(
        self,
        kernel: KernelId,
        *,
        context: Context,
        poller: SocketPoller,
        clock: Clock,
        emit: Callable[[RouterEvent], None],
        session_key: bytes,
        signature_scheme: str,
        ip: str,
        transport: str,
        ipc_folder: str | None,
    ) -> None:
        self._clock = clock
        self._emit = emit
        self._signer = Signer(session_key, signature_scheme)
        self._session = uuid.uuid4().hex
        self._made = 0
        self.router = KernelRouter(kernel)
        self.sockets = KernelSockets(
            kernel,
            context=context,
            poller=poller,
            receiver=self,
            ip=ip,
            transport=transport,
            ipc_folder=ipc_folder,
        )
        self.info: ConnectionInfo = {
            **self.sockets.info,
            "key": session_key,
            "signature_scheme": signature_scheme,
        }

    def client_said(self, channel: str, frames: list[bytes]) -> None:
        try:
            message = parse(frames)
            if not self._signer.check(message):
                log.warning(
                    "kernel %s: a message on %s without the kernel's signature was dropped",
                    self.router.kernel,
                    channel,
                )
                return
            self.apply(self.router.from_client(channel, message))
        except ProtocolError as error:
            log.warning("kernel %s: %s", self.router.kernel, error)

    def replica_said(
        self, replica: ReplicaId, channel: str, identity: bytes, frames: list[bytes]
    ) -> None:
        message = self._parsed(replica, frames)
        if message is not None:
            self.apply(self.router.from_replica(replica, channel, identity, message))

    def _parsed(self, replica: ReplicaId, frames: list[bytes]) -> Message | None:
        """A replica's message; user code can send anything there, which is dropped."""
        try:
            return parse(frames)
        except ProtocolError as error:
            log.warning("replica %s: %s", replica, error)
            return None

    def replica_published(self, replica: ReplicaId, frames: list[bytes]) -> None:
        message = self._parsed(replica, frames)
        if message is None:
            return
        if message.header.msg_type == "iopub_welcome":
            # From here on nothing that it publishes can be missed.
            self.apply(self.router.replica_ready(replica))
        else:
            self.apply(self.router.from_iopub(replica, message))

    def client_subscribed(self, topic: bytes) -> None:
        text = topic.decode(errors="replace")
        self.sockets.publish([topic, *self._build(Made("iopub_welcome", {"subscription": text}))])

    def replica_gone(self, replica: ReplicaId) -> None:
        self.sockets.hear_out(replica)
        self.sockets.disconnect_replica(replica)
        self.apply(self.router.replica_gone(replica))

    def restart(self) -> None:
        for replica in self.sockets.replicas():
            self.sockets.disconnect_replica(replica)
        self.apply(self.router.restart())

    def sweep(self, now: float) -> None:
        if self.sockets.connections:
            self.sockets.close_idle(now, self.router.busy_connections())

    def apply(self, outputs: Iterable[Output | RouterEvent]) -> None:
        """Carry out what the router decided, in order."""
        sockets, now = self.sockets, self._clock.monotonic()
        for output in outputs:
            match output:
                case Publish(frames):
                    sockets.publish(frames)
                case ToClient(channel, frames):
                    sockets.to_client(channel, frames, now)
                case ToReplica(replica, channel, identity, frames):
                    sockets.to_replica(replica, channel, identity, frames, now)
                case PrepareReplica(replica, identity):
                    sockets.prepare(replica, identity, now)
                case Announce(made):
                    topic = f"kernel.{self._session}.{made.msg_type}".encode()
                    sockets.publish([topic, *self._build(made)])
                case Answer(channel, identities, made):
                    sockets.to_client(channel, [*identities, *self._build(made)], now)
                case Probe(replica, msg_id):
                    frames = tuple(self._build(Made("kernel_info_request", {}), msg_id))
                    sockets.to_replica(replica, SHELL, PROBE_IDENTITY, frames, now)
                case event:
                    self._emit(event)

    def _build(self, made: Made, msg_id: str = "") -> list[bytes]:
        self._made += 1
        stamp = dt.datetime.fromtimestamp(self._clock.now(), dt.UTC)
        return build(
            made,
            signer=self._signer,
            msg_id=msg_id or f"{self._session}_{self._made}",
            session=self._session,
            date=stamp.isoformat(),
        )


class RouterThread:
    """The router of this process. Every method may be called from any thread but its own.

    `on_event` is called on the router thread and must only hand the event on. Methods other than
    `open_kernel` and `close_kernel` return at once and take effect in the order of the calls; about
    a kernel that is not open they do nothing.
    """

    def __init__(self, *, clock: Clock, on_event: Callable[[RouterEvent], None]) -> None:
        self._clock = clock
        self._on_event = on_event
        self._kernels: dict[KernelId, _Kernel] = {}
        self._commands: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False

    # ---- from any thread -------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        _raise_descriptor_limit()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="notebookos-router", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close every kernel and end the thread; idempotent."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._commands.append(self._stop)
            self._wake()
            thread.join()
            self._wake_in.close()
            self._wake_out.close()

    def open_kernel(
        self,
        kernel: KernelId,
        *,
        session_key: bytes,
        signature_scheme: str = "hmac-sha256",
        ip: str = "127.0.0.1",
        transport: str = "tcp",
        ipc_folder: str | None = None,
    ) -> ConnectionInfo:
        """Bind the kernel's five ports and return Jupyter's connection info; idempotent.

        Raises Unavailable when no port can be bound or the router does not run, InvalidRequest for
        an unknown transport or signature scheme.
        """

        def open_it() -> ConnectionInfo:
            if kernel not in self._kernels:
                self._kernels[kernel] = _Kernel(
                    kernel,
                    context=self._context,
                    poller=self._poller,
                    clock=self._clock,
                    emit=self._emit,
                    session_key=session_key,
                    signature_scheme=signature_scheme,
                    ip=ip,
                    transport=transport,
                    ipc_folder=ipc_folder,
                )
            return dict(self._kernels[kernel].info)

        return self._call(open_it)

    def close_kernel(self, kernel: KernelId) -> None:
        """Give the kernel's ports back and forget it; idempotent."""

        def close_it() -> None:
            entry = self._kernels.pop(kernel, None)
            if entry is not None:
                entry.sockets.close()

        self._call(close_it)

    def replica_ready(
        self, kernel: KernelId, replica: ReplicaId, endpoints: dict[str, str]
    ) -> None:
        """A replica answers on `endpoints` (channel to ZMQ address)."""
        self._post(kernel, lambda entry: entry.sockets.connect_replica(replica, endpoints))

    def replica_gone(self, kernel: KernelId, replica: ReplicaId) -> None:
        """A replica's process is gone."""
        self._post(kernel, lambda entry: entry.replica_gone(replica))

    def set_executor(self, kernel: KernelId, replica: ReplicaId | None) -> None:
        """Where requests that are not cells go; None: they wait."""
        self._post(kernel, lambda entry: entry.apply(entry.router.set_executor(replica)))

    def hold_back(self, kernel: KernelId) -> None:
        """Requests that are no cells wait until an executor is set, or the kernel rests."""
        self._post(kernel, lambda entry: entry.apply(entry.router.hold_back()))

    def is_quiet(self, kernel: KernelId) -> Future[bool]:
        """Whether no replica works for a client when all that was asked before has been done."""
        quiet: Future[bool] = Future()

        def look() -> None:
            entry = self._kernels.get(kernel)
            quiet.set_result(entry is None or entry.router.is_quiet)

        self._commands.append(look)
        self._wake()
        return quiet

    def rest(self, kernel: KernelId, description: dict[str, Any] | None) -> None:
        """No replica runs until one is needed; who asks is told `description`, if it is known."""
        self._post(kernel, lambda entry: entry.apply(entry.router.rest(description)))

    def cell_waits(self, kernel: KernelId, cell: CellId) -> None:
        """The cell waits for GPUs or a host: completions and widgets behind it need not."""
        self._post(kernel, lambda entry: entry.apply(entry.router.cell_waits(cell)))

    def start_cell(self, kernel: KernelId, cell: CellId, attempt: int, replica: ReplicaId) -> None:
        """The replica is the executor of the cell: forward it."""
        self._post(
            kernel, lambda entry: entry.apply(entry.router.start_cell(cell, attempt, replica))
        )

    def tell_cell(self, kernel: KernelId, cell: CellId, text: str) -> None:
        """Say something in the cell's output before it starts."""
        self._post(kernel, lambda entry: entry.apply(entry.router.tell_cell(cell, text)))

    def fail_cell(
        self, kernel: KernelId, cell: CellId, *, ename: str, evalue: str, hint: str = ""
    ) -> None:
        """End a running or waiting cell with an error that names `ename` and `evalue`."""
        self._post(
            kernel,
            lambda entry: entry.apply(
                entry.router.fail_cell(cell, ename=ename, evalue=evalue, hint=hint)
            ),
        )

    def abort_cell(self, kernel: KernelId, cell: CellId, reason: str) -> None:
        """End a waiting cell as an interrupt would."""
        self.fail_cell(kernel, cell, ename="KeyboardInterrupt", evalue=reason)

    def restart_kernel(self, kernel: KernelId) -> None:
        """The user's restart: abort what is open, forget the replicas, keep the ports."""
        self._post(kernel, lambda entry: entry.restart())

    def _post(self, kernel: KernelId, command: Callable[[_Kernel], None]) -> None:
        def run() -> None:
            entry = self._kernels.get(kernel)
            if entry is not None:
                command(entry)

        self._commands.append(run)
        self._wake()

    def _call(self, command: Callable[[], T]) -> T:
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(command())
            except Exception as error:  # noqa: BLE001  (it is the caller's)
                result.set_exception(error)

        with self._lock:
            if self._thread is None:
                raise Unavailable("the router is not running; start it, or restart the server")
            self._commands.append(run)
        self._wake()
        return result.result()

    def _wake(self) -> None:
        try:
            self._wake_out.send(b"\0")
        except (BlockingIOError, OSError):
            # Full: it is awake already. Closed: it has stopped, and so has every kernel.
            return

    # ---- on the router thread --------------------------------------------------------------------

    def _run(self) -> None:
        self._context: Context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self._poller = SocketPoller()
        self._poller.register_waker(self._wake_in.fileno(), self._woken)
        swept_at = self._clock.monotonic()
        while not self._stopping:
            connected = any(entry.sockets.connections for entry in self._kernels.values())
            self._poller.poll(SWEEP_S if connected else None)
            now = self._clock.monotonic()
            if now - swept_at >= SWEEP_S:
                swept_at = now
                for entry in self._kernels.values():
                    entry.sweep(now)
        self._poller.close()
        self._context.term()

    def _stop(self) -> None:
        self._stopping = True
        for entry in self._kernels.values():
            entry.sockets.close()
        self._kernels.clear()

    def _woken(self) -> None:
        while True:
            try:
                if len(self._wake_in.recv(4096)) < 4096:
                    break
            except BlockingIOError:
                break
        while self._commands:
            command = self._commands.popleft()
            try:
                command()
            except Exception:  # (one kernel's trouble must not end the others)
                log.exception("a command to the router failed")

    def _emit(self, event: RouterEvent) -> None:
        try:
            self._on_event(event)
        except Exception:  # (the controller's trouble must not stop messages)
            log.exception("the controller did not take %s", type(event).__name__)


def _raise_descriptor_limit() -> None:
    """Many kernels need many descriptors: take what the system allows, up to what we can use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
