"""The scheduler thread: events in, `Scheduler.handle`, actions carried out. The only writer.

One thread with an event loop of its own, so that no kernel waits for the server's loop and the same
works where loops come and go (nbclient, blocking managers). Whoever is elsewhere posts events,
submits requests and gets futures, or reads values that are made on this thread.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import dataclasses
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TypeVar

from notebookos_ext.clock import Clock
from notebookos_ext.cluster import events
from notebookos_ext.cluster.consensus.replicated_log import MemberStatus
from notebookos_ext.cluster.messages import control as messages
from notebookos_ext.cluster.model import (
    DeviceId,
    HostId,
    HostSpec,
    KernelId,
    KernelSpec,
    ReplicaId,
)
from notebookos_ext.cluster.routing import RouterEvent
from notebookos_ext.cluster.scheduler import Scheduler
from notebookos_ext.cluster.snapshots import StoredState
from notebookos_ext.cluster.state import ClusterView
from notebookos_ext.errors import Unavailable
from notebookos_ext.live.attempts import Attempts
from notebookos_ext.live.backends.base import Backend
from notebookos_ext.live.chains import Chains
from notebookos_ext.live.fleet import Fleet
from notebookos_ext.live.keeping import Keeper
from notebookos_ext.live.kernel_lives import KernelLives
from notebookos_ext.live.kernel_records import KernelRecord, LaunchPlan
from notebookos_ext.live.lifecycle import Lifecycle
from notebookos_ext.live.moves import Moves
from notebookos_ext.live.parts import Shared
from notebookos_ext.live.performer import Performer
from notebookos_ext.live.ports import Observer, RouterCommands
from notebookos_ext.live.prewarming import Prewarming
from notebookos_ext.live.stored_kernels import StoredKernels, named_chunks
from notebookos_ext.live.sweeping import Sweeper
from notebookos_ext.live.translation import Translation
from notebookos_ext.live.unprotected import Unprotected
from notebookos_ext.notebook_settings import NotebookSettings
from notebookos_ext.storage.addresses import StoreAddress
from notebookos_ext.storage.kept_kernels import KeptKernel, KeptSession

DEFECT = "NotebookOS hit a defect; the server's log has the details"
WARNINGS_KEPT = 50
TICK_S = 1.0
READ_RECENTLY_S = 20.0
"""Devices are read only while somebody looks at the readings."""

Value = TypeVar("Value")
MembersTold = Mapping[HostId, Mapping[KernelId, MemberStatus]]
"""What each host said of its members of the kernels' Raft groups."""

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Warned:
    """Something the user should know."""

    kernel: KernelId | None
    message: str
    at: float


@dataclasses.dataclass(frozen=True, slots=True)
class Insight:
    """What a reader may look at, on the controller's thread only; it keeps values, not this."""

    at: float
    backend: str
    policy: str
    consensus_engine: str
    view: ClusterView
    records: dict[KernelId, KernelRecord]
    use: dict[HostId, dict[DeviceId, messages.DeviceUse]]
    members: dict[HostId, dict[KernelId, MemberStatus]]
    store_bytes: dict[HostId, dict[KernelId, int]]
    store: StoreAddress
    stores: dict[HostId, messages.StoreReport]
    warnings: tuple[Warned, ...]


class Controller:
    """Commands a cluster. `start` and `stop` once; everything else from any thread."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        policy: str,
        consensus_engine: str,
        backend: Backend,
        router: RouterCommands,
        clock: Clock,
        token: bytes,
        name: str,
        lease_s: float,
        poll_s: float,
        options: dict[str, str | int | float | bool],
        on_change: Callable[[KernelId | None, str], None],
        keeper: Keeper,
        store: StoreAddress,
        sweep_every_s: float = 0.0,
        sweep_spared_s: float = 3600.0,
        observers: Sequence[Observer] = (),
        on_members: Callable[[MembersTold], None] = lambda _: None,
    ) -> None:
        self._scheduler = scheduler
        self._keeper = keeper
        self._store = store
        self._on_members = on_members
        self._policy = policy
        self._consensus_engine = consensus_engine
        self._backend = backend
        self._router = router
        self._clock = clock
        self._poll_s = poll_s
        self._on_change = on_change
        self._records: dict[KernelId, KernelRecord] = {}
        self._warnings: collections.deque[Warned] = collections.deque(maxlen=WARNINGS_KEPT)
        self._events: collections.deque[events.Event] = collections.deque()
        self._handling = False
        self._last_read = -READ_RECENTLY_S
        self._chains = Chains()
        self._fleet = Fleet(
            backend=backend, listener=self, token=token, controller=name, lease_s=lease_s
        )
        shared = Shared(
            fleet=self._fleet,
            router=router,
            records=self._records,
            chains=self._chains,
            view=scheduler.view,
            clock=clock,
            outlet=self,
            keeper=keeper,
        )
        attempts = Attempts(shared)
        prewarming = Prewarming(fleet=self._fleet, chains=self._chains, clock=clock, outlet=self)
        self._lives = KernelLives(shared)
        lifecycle = Lifecycle(shared, lives=self._lives, options=options)
        self._moves = Moves(shared)
        self._unprotected = Unprotected(shared, lifecycle=lifecycle)
        self._stored = StoredKernels(shared, lifecycle=lifecycle, lives=self._lives)
        self._performer = Performer(
            shared,
            attempts=attempts,
            lifecycle=lifecycle,
            moves=self._moves,
            prewarming=prewarming,
            stored=self._stored,
            unprotected=self._unprotected,
        )
        self._translation = Translation(
            shared, attempts=attempts, lives=self._lives, prewarming=prewarming
        )
        self._sweeper = Sweeper(
            fleet=self._fleet,
            records=self._records,
            unknown=keeper.unknown,
            named=lambda: named_chunks(keeper, self._records),
            clock=clock,
            every_s=sweep_every_s,
            spared_s=sweep_spared_s,
        )
        self._observers = (*observers, self._sweeper)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="notebookos-scheduler", daemon=True)

    # ---- from any thread --------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread and, on it, the hosts; returns at once."""
        self._thread.start()
        self._submit(self._begin())

    def stop(self, *, delete_logs: bool) -> None:
        """End every host agent and the thread. Nothing runs afterwards."""
        if not self._thread.is_alive():
            return
        try:
            self._submit(self._end(delete_logs=delete_logs)).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    @property
    def running(self) -> bool:
        """Whether it takes requests."""
        return self._thread.is_alive()

    def from_router(self, said: RouterEvent) -> None:
        """What the router says; called on its thread, only enqueues."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._translation.from_router, said)

    def read(self, look: Callable[[Insight], Value]) -> concurrent.futures.Future[Value]:
        """Run `look` on this thread and hand out what it makes, which must not keep the insight."""

        async def looking() -> Value:
            self._last_read = self._clock.monotonic()
            return look(
                Insight(
                    at=self._clock.now(),
                    backend=self._backend.name,
                    policy=self._policy,
                    consensus_engine=self._consensus_engine,
                    view=self._scheduler.view,
                    records=self._records,
                    use=self._fleet.use,
                    members=self._fleet.members,
                    store_bytes=self._fleet.store_bytes,
                    store=self._store,
                    stores=self._fleet.stores,
                    warnings=tuple(self._warnings),
                )
            )

        return self._submit(looking())

    def start_kernel(
        self, spec: KernelSpec, plan: LaunchPlan, changes: NotebookSettings
    ) -> concurrent.futures.Future[None]:
        """Ask for a kernel, or restart the one of that id with an empty namespace and `changes`.

        Done when it is accepted. Raises LaunchFailed when no host can be had, Infeasible when the
        scheduler rejects it; nothing of it is left then.
        """
        return self._submit(self._lives.start(spec, plan, changes))

    def stop_kernel(self, kernel: KernelId) -> concurrent.futures.Future[None]:
        """End a kernel; done when nothing of it runs. An unknown one is ended already."""
        return self._submit(self._lives.stop(kernel))

    def shutdown(self, kernel: KernelId, *, restart: bool) -> concurrent.futures.Future[None]:
        """The owner shuts the kernel down, having sent the shutdown_request that comes by itself.

        With `restart` its replicas stay until `start_kernel` begins the new epoch.
        """
        return self._submit(self._lives.shutdown(kernel, restart=restart))

    def interrupt_soon(self, kernel: KernelId) -> concurrent.futures.Future[None]:
        """Interrupt what the kernel does, whether it waits or runs."""

        async def interrupting() -> None:
            self._lives.interrupt(kernel)

        return self._submit(interrupting())

    def kill(self, kernel: KernelId, code: int) -> None:
        """The owner wants it dead: from now on `exit_code` says so."""
        self._lives.exit_codes.setdefault(kernel, code)

    def exit_code(self, kernel: KernelId) -> int | None:
        """None while the kernel lives or can be brought back, else what its process would say."""
        if not self.running:
            return 0
        return self._lives.exit_codes.get(kernel)

    def warn_soon(self, message: str) -> None:
        """Something that the user should know of the whole cluster."""
        self._loop.call_soon_threadsafe(self.warn, message)

    def capture(
        self, kernel: KernelId
    ) -> concurrent.futures.Future[tuple[StoredState, KeptKernel]]:
        """Have the store keep the kernel's namespace as it is now, and say what the kernel is.

        Without what cannot travel. Raises NotFound, Refused while a cell runs, StorageError.
        """

        async def capturing() -> tuple[StoredState, KeptKernel]:
            state = await self._stored.capture(kernel)
            return state, self._records[kernel].kept()

        return self._submit(capturing())

    def adopt(self, kept: KeptKernel) -> concurrent.futures.Future[None]:
        """A kernel that is in the store, to be started like one of an earlier server.

        Raises StorageError.
        """

        async def adopting() -> None:
            self._keeper.adopt(kept)

        return self._submit(adopting())

    def disown(self, kernel: KernelId) -> concurrent.futures.Future[None]:
        """It was adopted, and could not be started."""

        async def disowning() -> None:
            if self._keeper.find(kernel) is not None:
                self._keeper.forget(kernel)

        return self._submit(disowning())

    def change_settings(
        self, kernel: KernelId, changes: NotebookSettings
    ) -> concurrent.futures.Future[None]:
        """Change what `changes` says; `handlers/kernels.py` tells when each takes effect.

        The values are valid in themselves. Raises NotFound, and Infeasible when no host could
        ever satisfy them; nothing is changed then.
        """
        return self._submit(self._lives.change_settings(kernel, changes))

    def migrate(
        self, kernel: KernelId, *, replica: ReplicaId | None, target: HostId | None
    ) -> concurrent.futures.Future[None]:
        """Begin to move a replica; None leaves the choice to the scheduler.

        Done when the move has begun. Raises NotFound, and Infeasible with why it cannot.
        """
        return self._submit(self._moves.migrate(kernel, replica, target))

    def continue_unprotected(self, kernel: KernelId) -> concurrent.futures.Future[None]:
        """Begin to go on without a majority, with what is left of the kernel's group.

        Done when it has begun. Raises NotFound, and Infeasible with why it cannot.
        """
        return self._submit(self._unprotected.request(kernel))

    def prefer_executor(
        self, kernel: KernelId, replica: int | None
    ) -> concurrent.futures.Future[None]:
        """Have the next cell that it can run begin on that replica; None takes that back.

        Raises NotFound, and Infeasible with why it cannot.
        """
        return self._submit(self._moves.prefer(kernel, replica))

    def add_host(self) -> concurrent.futures.Future[None]:
        """Ask for one more host, which joins when it is up. Raises Infeasible at `max_hosts`."""
        return self._submit(self._moves.add_host())

    def drain_host(self, host: HostId, *, release: bool) -> concurrent.futures.Future[None]:
        """Empty a host, and with `release` give it back then. Raises NotFound."""
        return self._submit(self._moves.drain(host, release=release))

    def cancel_drain(self, host: HostId) -> concurrent.futures.Future[None]:
        """Use the host like any other again. Raises NotFound."""
        return self._submit(self._moves.cancel_drain(host))

    def sweep_store(self, *, dry_run: bool) -> concurrent.futures.Future[messages.StoreSwept]:
        """Delete what nothing names from the checkpoint store. Raises Unavailable, StorageError."""
        return self._submit(self._sweeper.sweep(dry_run=dry_run))

    def note_session(
        self, kernel: KernelId, session: KeptSession
    ) -> concurrent.futures.Future[None]:
        """Tell which session of Jupyter a kernel has; for the server that may come after this."""

        async def noting() -> None:
            self._lives.note_session(kernel, session)

        return self._submit(noting())

    # ---- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _submit(self, work: Coroutine[object, object, Value]) -> concurrent.futures.Future[Value]:
        if not self.running:
            work.close()
            gone: concurrent.futures.Future[Value] = concurrent.futures.Future()
            gone.set_exception(Unavailable("the cluster was stopped; restart the server"))
            return gone
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _begin(self) -> None:
        self._chains.spawn(self._fleet.start())
        self._chains.spawn(self._tick())
        self._chains.spawn(self._read_devices())
        self._chains.spawn(self._sweeper.run())

    async def _end(self, *, delete_logs: bool) -> None:
        if self._keeper.keeps:
            self._lives.leave_all()
        elif not delete_logs:
            # What goes on to exist on disk must not hold the logs of kernels that are gone.
            await self._lives.stop_all()
        await self._chains.cancel()
        await self._fleet.stop(delete_logs=delete_logs)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.post(events.Ticked(at=self._clock.now()))

    async def _read_devices(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            looked_at = self._clock.monotonic() - self._last_read < READ_RECENTLY_S
            if looked_at:
                await self._fleet.read_use()
            # Metrics are read by others, whether somebody looks at the sidebar or not.
            await self._fleet.read_members(with_store=looked_at)
            await self._fleet.read_stores()
            self._on_members(self._fleet.members)

    # ---- `Outlet` ---------------------------------------------------------------------------

    def post(self, event: events.Event) -> None:
        """Have an event handled, after those that are being handled now."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._handling = False

    def _handle(self, event: events.Event) -> None:
        # One event that breaks a rule must not end everybody's kernels, nor one action keep the
        # others (GPUs given back, replicas stopped) from being carried out.
        try:
            actions = self._scheduler.handle(event)
        except Exception:
            log.exception("the scheduler failed on %r", event)
            self.warn(DEFECT)
            return
        for observer in self._observers:
            try:
                observer.observe(event, actions)
            except Exception:
                log.exception("%s could not be told of %r", type(observer).__name__, event)
                self.warn(DEFECT)
        for action in actions:
            try:
                self._performer.perform(action)
            except Exception:
                log.exception("%s could not be carried out", type(action).__name__)
                self.warn(DEFECT)

    def warn(self, message: str, kernel: KernelId | None = None) -> None:
        """Remember a warning; one that is said again moves to the end."""
        same = next((w for w in self._warnings if (w.message, w.kernel) == (message, kernel)), None)
        if same is not None:
            self._warnings.remove(same)
        else:
            log.warning("%s", message)
        self._warnings.append(Warned(kernel, message, self._clock.now()))
        self.changed(kernel, "warning")

    def changed(self, kernel: KernelId | None, kind: str) -> None:
        """Pass it on to whoever tells the browsers."""
        self._on_change(kernel, kind)

    # ---- `FleetListener` --------------------------------------------------------------------

    def host_joined(self, spec: HostSpec) -> None:
        """An agent is attached."""
        self.post(events.HostJoined(spec=spec, at=self._clock.now()))
        self.changed(None, "host")

    def host_lost(self, spec: HostSpec, reason: str) -> None:
        """An agent is gone."""
        self._translation.host_lost(spec, reason)

    def no_more_hosts(self, reason: str) -> None:
        """The backend has none to give for now."""
        self.post(events.HostsUnavailable(reason=reason, at=self._clock.now()))
        self.changed(None, "host")

    def notice(self, host: HostId, notice: messages.AgentNotice) -> None:
        """An agent says something unasked."""
        self._translation.from_agent(host, notice)
