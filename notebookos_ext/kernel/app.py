"""Wires a replica: ipykernel's application on private sockets, our kernel, the agent's side.

It keeps ipykernel's handling of the user's IPython configuration, start-up files and extensions.
"""

# mypy: disable-error-code="no-untyped-call"
# ipykernel's methods carry no annotations.

from __future__ import annotations

import asyncio
import faulthandler
import hashlib
import os
import shutil
import socket
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
from ipykernel.kernelapp import IPKernelApp
from tornado.ioloop import IOLoop
from traitlets import Instance, Type

from notebookos_ext.cluster.entries import Delta
from notebookos_ext.cluster.messages.control import LaunchReplica
from notebookos_ext.cluster.messages.replica import ReplicaHello, ReplicaServing
from notebookos_ext.errors import InvalidSettings, LaunchFailed
from notebookos_ext.kernel import finalizers, gpu_magic
from notebookos_ext.kernel.agent_link import AgentLink
from notebookos_ext.kernel.agent_requests import AgentRequests
from notebookos_ext.kernel.cell_sources import CellSources, share_code_names
from notebookos_ext.kernel.devices import HIDDEN_AT_START, REPLICA, Devices
from notebookos_ext.kernel.parking import TorchParking
from notebookos_ext.kernel.replica import ReplicaKernel
from notebookos_ext.kernel.replicator import Replicator, ReplyRule
from notebookos_ext.kernel.synchronizer import Synchronizer, SyncOptions

CHANNELS = ("shell", "iopub", "stdin", "hb", "control")
MAX_IPC_PATH_BYTES = 107
"""What fits into a unix socket address on Linux, its final zero excluded."""


def private_folder(socket_folder: str, launch: LaunchReplica) -> Path:
    """Make the folder of this launch's sockets; older launches of the replica left nothing alive.

    Raises LaunchFailed when its paths would be too long for unix sockets.
    """
    name = hashlib.blake2b(launch.replica.encode(), digest_size=5).hexdigest()
    folder = Path(socket_folder) / f"{name}-{launch.launch}"
    longest = f"{folder}/s-{len(CHANNELS)}"
    if len(os.fsencode(longest)) > MAX_IPC_PATH_BYTES:
        raise LaunchFailed(
            f"the socket path {longest} is longer than {MAX_IPC_PATH_BYTES} bytes; "
            "choose a shorter folder for sockets"
        )
    for older in Path(socket_folder).glob(f"{name}-*"):
        shutil.rmtree(older, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    return folder


class ReplicaApp(IPKernelApp):
    """IPKernelApp on unix sockets in `folder`, with the session key it was launched with."""

    kernel_class: Any = Type(ReplicaKernel, klass="ipykernel.kernelbase.Kernel")
    launch = Instance(LaunchReplica)
    folder = Instance(Path)

    def init_connection_file(self) -> None:
        """Take the connection from the launch instead of from a file."""
        self.connection_file = str(self.folder / f"kernel-{self.launch.kernel}.json")
        self.transport = "ipc"
        self.ip = str(self.folder / "s")
        for port, channel in enumerate(CHANNELS, start=1):
            setattr(self, f"{channel}_port", port)
        self.session.key = self.launch.session_key

    def init_sockets(self) -> None:
        """Bind; the socket files are the user's alone, as their folder is."""
        before = os.umask(0o077)
        try:
            super().init_sockets()
        finally:
            os.umask(before)

    def init_poller(self) -> None:
        """No poller: the system kills this process with its agent (see `template.die_with`)."""

    def log_connection_info(self) -> None:
        """Keep the ports for connect_request; there is no terminal to tell them to."""
        self._ports = {c: getattr(self, f"{c}_port") for c in CHANNELS}

    def endpoints(self) -> dict[str, str]:
        """The ZMQ address of each channel."""
        return {c: f"ipc://{self.ip}-{getattr(self, f'{c}_port')}" for c in CHANNELS}

    def close(self) -> None:
        """Close the sockets and remove their folder."""
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)


def connect(app: ReplicaApp, link: AgentLink) -> AgentRequests:
    """Give the initialised kernel its namespace, its devices and its agent."""
    kernel: ReplicaKernel = app.kernel
    options = app.launch.options
    namespace = Synchronizer(
        kernel.shell,
        options=sync_options(options),
        put_chunk=link.put_chunk,
        fetch_chunks=link.fetch_chunks,
    )
    replicator = Replicator(
        namespace,
        link,
        ReplyRule(
            sync=str(options.get("sync", ReplyRule().sync)),
            budget_ms=float(options.get("reply_budget_ms", ReplyRule().budget_ms)),
        ),
        call_on_main=kernel.call_on_main,
        held_here=kernel.held_here,
        log=app.log,
    )
    sources = CellSources(kernel.shell)

    def apply(delta: Delta) -> tuple[str, ...]:
        with finalizers.asleep():
            problems = namespace.apply(delta)
        sources.learn()
        return problems

    ending: list[Future[None] | asyncio.Task[None]] = []
    requests = AgentRequests(
        link,
        Devices(os.environ, TorchParking(sys.modules)),
        apply=apply,
        on_lead=lambda lead: replicator.leads(lead.attempt),
        on_store_back=kernel.commit_again,
        on_stop=lambda: ending.append(asyncio.ensure_future(kernel.stop())),
        log=app.log,
    )
    gpu_magic.install(kernel.shell)
    kernel.attach(requests, replicator, sources)

    def begin() -> None:
        link.send(ReplicaServing(app.endpoints()))
        link.start(wake=lambda: kernel.call_on_main(requests.run_pending))

    # Not before the loop runs: until then the kernel has none to be called on, and the agent of a
    # relaunched replica sends what is in the log at once.
    IOLoop.current().add_callback(begin)
    return requests


def sync_options(options: dict[str, str | int | float | bool]) -> SyncOptions:
    """The synchronizer's options out of a launch's; others are left to whom they concern.

    Raises InvalidSettings when one is no whole number.
    """
    known = {name: options[name] for name in SyncOptions.__struct_fields__ if name in options}
    try:
        return msgspec.convert(known, SyncOptions)
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"an option of the replica is wrong: {error}") from error


def run_replica(launch: LaunchReplica, socket_folder: str, link_descriptor: int) -> None:
    """Be a replica until the agent stops it; called in a fork of the template."""
    link = AgentLink(socket.socket(fileno=link_descriptor))
    link.send(ReplicaHello(os.getpid(), sys.executable, cloudpickle.__version__))
    # The log: ipykernel is about to put pipes into descriptors 1 and 2.
    faulthandler.enable(os.dup(2))
    os.environ.pop("JPY_PARENT_PID", None)
    os.environ |= {**HIDDEN_AT_START, REPLICA: launch.replica}
    share_code_names(launch.kernel)
    app: Any = ReplicaApp.instance(launch=launch, folder=private_folder(socket_folder, launch))
    app.initialize([])
    requests = connect(app, link)
    app.start()
    if not requests.is_executor:
        # A standby's copies must not clean up after themselves: no `__del__`, no `atexit`.
        app.close()
        os._exit(0)
