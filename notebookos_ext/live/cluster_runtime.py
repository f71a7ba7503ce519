"""One cluster of this process: state folder, router, backend and controller as one thing.

A Jupyter server installs its cluster here when it starts; provisioners of the same process find it.
Where there is none (nbclient, papermill, a console), the first kernel starts a private cluster that
the process shares and that ends with its last kernel, with the process, or, should that be killed,
when the agents' short lease runs out.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from notebookos_ext.clock import Clock, SystemClock
from notebookos_ext.cluster.model import KernelId
from notebookos_ext.cluster.routing import RouterEvent
from notebookos_ext.cluster.scheduler import Scheduler
from notebookos_ext.errors import NotebookOSError, Unavailable
from notebookos_ext.live.backends.local import LocalBackend
from notebookos_ext.live.controller import Controller
from notebookos_ext.live.file_systems import network_file_system
from notebookos_ext.live.identity import whoever
from notebookos_ext.live.keeping import Keeper
from notebookos_ext.live.observers import Observers
from notebookos_ext.live.router_thread import RouterThread
from notebookos_ext.live.scheduling import scheduler_options
from notebookos_ext.live.state_exchange import StateExchange
from notebookos_ext.live.state_folder import StateFolder, open_private, open_shared
from notebookos_ext.settings import PRIVATE_LEASE_S, Settings
from notebookos_ext.storage.addresses import parse_address
from notebookos_ext.storage.base import CheckpointStore
from notebookos_ext.storage.kept_kernels import KeptKernels
from notebookos_ext.storage.opening import check_store, open_store

ALL_S = 3600.0
"""Chunks that are younger than so long from now, whatever the store's clock says: all of them."""
LINGER_S = 5.0
"""A private cluster outlives its last kernel by this, for the next notebook of the same process."""

log = logging.getLogger(__name__)


class ClusterRuntime:
    """A cluster that can be started once and stopped once, from any thread."""

    def __init__(
        self,
        settings: Settings,
        *,
        private: bool = False,
        clock: Clock | None = None,
        on_change: Callable[[KernelId | None, str], None] = lambda _kernel, _kind: None,
    ) -> None:
        """Open the state folder. Raises InvalidSettings and StorageError; nothing runs yet."""
        self.settings = settings.validate()
        self.user = settings.user or whoever()
        """Whose kernels are that nobody asks for by name."""
        options = scheduler_options(settings, boot_s=LocalBackend.boot_s)
        if settings.checkpoint_store:
            check_store(settings.checkpoint_store)
        self.private = private
        self._pid = os.getpid()
        self.folder = _open_folder(settings, private=private)
        self._clock = clock = clock or SystemClock()
        self.router = RouterThread(clock=clock, on_event=self._from_router)
        self._store = settings.checkpoint_store or str(self.folder.store)
        # A store that was named may have other clusters' chunks in it, too.
        self._store_namespace = self.folder.cluster_id if settings.checkpoint_store else ""
        self.keeper = Keeper(
            KeptKernels(self.folder.kernels),
            self.folder,
            keep_days=0.0 if private else settings.keep_kernels_days,
        )
        self._problems = self.keeper.take_stock(clock.now())
        scheduler = Scheduler(settings.policy, max_hosts=settings.max_hosts, options=options)
        try:
            self.observers = Observers(
                settings,
                self.folder,
                scheduler,
                private=private,
                user=self.user,
                now=clock.now(),
                warn=self._warn,
            )
        except NotebookOSError:
            self.folder.close(delete=private)
            raise
        self.controller = Controller(
            scheduler=scheduler,
            policy=settings.policy,
            consensus_engine=settings.consensus_engine,
            backend=LocalBackend(
                folder=self.folder,
                settings=settings,
                store=self._store,
                store_namespace=self._store_namespace,
                private=private,
                needed=self.keeper.hosts,
            ),
            router=self.router,
            clock=clock,
            token=self.folder.token,
            name=f"process {os.getpid()}",
            lease_s=settings.lease_s,
            poll_s=settings.poll_s,
            options={"sync": settings.sync, "reply_budget_ms": settings.reply_budget_ms},
            on_change=on_change,
            keeper=self.keeper,
            store=parse_address(self._store),
            sweep_every_s=settings.sweep_hours * 3600.0,
            sweep_spared_s=settings.sweep_spared_hours * 3600.0,
            observers=self.observers.all,
            on_members=self.observers.note_members,
        )

        self.exchange = StateExchange(
            self.controller,
            self._open_store,
            secret=self.folder.token,
            replica_count=settings.replica_count,
            now=clock.now,
        )

    def _open_store(self) -> CheckpointStore:
        return open_store(self._store, namespace=self._store_namespace, clock=self._clock)

    def _warn(self, message: str) -> None:
        self.controller.warn_soon(message)

    def _from_router(self, said: RouterEvent) -> None:
        self.controller.from_router(said)

    def now(self) -> float:
        """The clock of the cluster's records, in seconds since the Unix epoch."""
        return self._clock.now()

    def start(self) -> None:
        """Start router, controller and hosts; returns before the hosts are there."""
        self.router.start()
        self.controller.start()
        for problem in self._problems:
            self.controller.warn_soon(problem)
        log.info("the cluster's state folder is %s", self.folder.path)
        kind = network_file_system(self.folder.path)
        if kind is not None:
            self.controller.warn_soon(
                f"the state folder {self.folder.path} is on a network file system ({kind}), where "
                "logs are slow and may be lost; set NotebookOSApp.state_folder to a local folder"
            )

    def stop(self) -> None:
        """End everything; with a private cluster nothing stays on disk either."""
        if os.getpid() != self._pid:
            # A forked child has no part in it, and must not take it from its parent.
            return
        with contextlib.ExitStack() as rest:
            # Each of them whatever becomes of the others.
            rest.callback(self.folder.close, delete=self.private)
            rest.callback(self._empty_store)
            rest.callback(self.router.stop)
            rest.callback(lambda: self.observers.close(self._clock.now()))
            self.controller.stop(delete_logs=self.private)

    def _empty_store(self) -> None:
        """Of a private cluster nothing stays, nor of one that keeps no kernel."""
        if self.folder.keeps_kernels() and not self.private:
            return
        if self.private and not self._store_namespace:
            # It goes with the folder.
            return
        try:
            store = self._open_store()
            store.sweep(frozenset(), -ALL_S)
        except NotebookOSError as error:
            log.warning("chunks that nobody needs stay: %s", error)


def _open_folder(settings: Settings, *, private: bool) -> StateFolder:
    # A seed that the user chose for the whole process holds for its kernels, as with ipykernel.
    chosen = os.environ.get("PYTHONHASHSEED", "")
    seed = int(chosen) if chosen.isdigit() else None
    if private:
        return open_private(hash_seed=seed)
    return open_shared(Path(settings.state_folder), hash_seed=seed)


class _Registry:
    """Who has a cluster in this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.server: ClusterRuntime | None = None
        self.failure: NotebookOSError | None = None
        self.private: ClusterRuntime | None = None
        self.users = 0
        self.timer: threading.Timer | None = None


_registry = _Registry()


def install(runtime: ClusterRuntime | None, failure: NotebookOSError | None = None) -> None:
    """The server's cluster, or why it has none; kernels started in this process belong to it."""
    with _registry.lock:
        _registry.server = runtime
        _registry.failure = failure


def in_server() -> bool:
    """Whether a Jupyter server in this process has loaded the extension."""
    return _registry.server is not None or _registry.failure is not None


def server_runtime() -> ClusterRuntime:
    """The cluster of the server in this process. Raises Unavailable with why it has none."""
    with _registry.lock:
        if _registry.server is not None:
            return _registry.server
        if _registry.failure is not None:
            raise Unavailable(_registry.failure.message, hint=_registry.failure.hint)
    raise Unavailable("NotebookOS does not run in this server; enable its server extension")


def acquire(private_settings: Settings) -> ClusterRuntime:
    """A running cluster for one more kernel; `release` it when the kernel has ended.

    The server's if there is one in this process, else the private one, started if need be. Raises
    Unavailable when the server's could not start, StorageError when a private one cannot.
    """
    with _registry.lock:
        if in_server():
            return server_runtime()
        if _registry.timer is not None:
            _registry.timer.cancel()
            _registry.timer = None
        if _registry.private is None:
            settings = dataclasses.replace(private_settings, lease_s=PRIVATE_LEASE_S)
            runtime = ClusterRuntime(settings, private=True)
            runtime.start()
            _registry.private = runtime
            atexit.register(stop_private)
        _registry.users += 1
        return _registry.private


def release(runtime: ClusterRuntime) -> None:
    """One kernel fewer; the private cluster ends some seconds after its last one."""
    with _registry.lock:
        if runtime is not _registry.private:
            return
        _registry.users -= 1
        if _registry.users == 0:
            _registry.timer = threading.Timer(LINGER_S, _stop_unused)
            _registry.timer.daemon = True
            _registry.timer.start()


def _stop_unused() -> None:
    with _registry.lock:
        if _registry.users == 0:
            stop_private()


def stop_private() -> None:
    """End the private cluster now, whatever uses it; none of its processes is left."""
    with _registry.lock:
        runtime, _registry.private = _registry.private, None
        _registry.users = 0
        if _registry.timer is not None:
            _registry.timer.cancel()
            _registry.timer = None
        if runtime is not None:
            try:
                runtime.stop()
            finally:
                # Not before: a process that ends meanwhile waits here for the timer's thread.
                atexit.unregister(stop_private)
