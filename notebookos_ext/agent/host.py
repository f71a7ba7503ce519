"""One host's agent: builds its parts, carries out what the controller asks, ends without a trace.

It ends when it is told to (StopAgent, SIGTERM) or when its lease runs out; in each case its
replicas end first, then its members (whose logs stay unless they are to be deleted), then its
sockets and its templates.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from notebookos_ext.agent import attempts, ballots
from notebookos_ext.agent.binding import DeviceBindings
from notebookos_ext.agent.chunks import Chunks
from notebookos_ext.agent.compaction import CompactionLimits
from notebookos_ext.agent.config import control_path, make_folder, peer_path
from notebookos_ext.agent.control import ControlServer
from notebookos_ext.agent.inventory import HostInventory
from notebookos_ext.agent.kernel_states import KernelStates
from notebookos_ext.agent.kernels import HostedKernel, HostTools
from notebookos_ext.agent.leases import Lease
from notebookos_ext.agent.leftovers import SessionBook
from notebookos_ext.agent.log_requests import LogRequests
from notebookos_ext.agent.members import Members
from notebookos_ext.agent.membership import MembershipRequests
from notebookos_ext.agent.prewarmed import PrewarmedPool
from notebookos_ext.agent.procfs import descendants, kill, machine_memory_bytes
from notebookos_ext.agent.raftos_members import NOT_DURABLE, RaftosMembers
from notebookos_ext.agent.reaper import Reaper
from notebookos_ext.agent.regrouping import Regrouping
from notebookos_ext.agent.sessions import ReplicaSession
from notebookos_ext.agent.stored_states import StoredStates
from notebookos_ext.agent.templates import Templates
from notebookos_ext.agent.transport import PeerTransport
from notebookos_ext.agent.watchdog import Watchdog
from notebookos_ext.clock import Clock
from notebookos_ext.cluster.consensus.messages import Entry, Envelope
from notebookos_ext.cluster.messages.control import (
    AddLearner,
    AgentAnswer,
    AgentRequest,
    AgentWarning,
    Attach,
    Attached,
    AttemptBegun,
    AttemptNotBegun,
    BeginAttempt,
    CastBallot,
    ChangeMembers,
    CloseMember,
    DevicesReleased,
    Done,
    ForgetLearner,
    InterruptReplica,
    Inventory,
    Joined,
    JoinGroup,
    KeepState,
    LaunchReplica,
    LoseAttempt,
    NewEpoch,
    OpenKernel,
    PrepareGroup,
    ReadChunks,
    ReadInventory,
    ReadMembers,
    ReadStore,
    ReleaseDevices,
    RenewLease,
    RestoreState,
    SetPeers,
    StartPrewarmed,
    StopAgent,
    StopPrewarmed,
    StopReplica,
    StoreReport,
    SweepStore,
    SwitchGroup,
)
from notebookos_ext.cluster.messages.startup import AgentConfig
from notebookos_ext.cluster.model import HostId, HostSpec, KernelId, ReplicaId
from notebookos_ext.errors import InvalidRequest, NotebookOSError, NotFound
from notebookos_ext.storage.base import CheckpointStore

log = logging.getLogger(__name__)

STORE_THREADS = 4
CLOSE_GRACE_S = 2.0
"""What a replica gets when its kernel or its host ends."""
END_S = 10.0
"""How long the last descendants may take to be gone after SIGKILL."""

Handler = Callable[[Any], Awaitable[AgentAnswer]]


class HostAgent:
    """The composition of one host; `run` is its whole life."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        token: bytes,
        inventory: HostInventory,
        store: CheckpointStore,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.config = config
        self.incarnation = secrets.token_hex(8)
        self._folder = Path(config.folder)
        self._inventory = inventory
        self._lease = Lease(clock, config.lease_s)
        self._reaper = Reaper()
        self._kernels: dict[KernelId, HostedKernel] = {}
        self._members_of: dict[KernelId, tuple[HostId, ...]] = {}
        self._ending = asyncio.Event()
        self._ended = asyncio.Event()
        self._delete_logs = False
        self._store_threads = ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="store")
        self._control = ControlServer(
            control_path(config), token, attach=self._attach, handle=self._handle
        )
        self._transport = PeerTransport(
            config.host,
            str(peer_path(config)),
            token,
            on_messages=self._received,
            on_peer_change=self._peer_changed,
            rng=random.Random(rng.getrandbits(64)),
        )
        self._chunks = Chunks(
            store,
            self._store_threads,
            clock=clock,
            rng=random.Random(rng.getrandbits(64)),
            on_change=self._control.notify,
            on_back=self._store_back,
        )
        states = KernelStates(self._kernels, self._chunks)
        self._members = self._engine(clock, rng, states)
        self._regrouping = Regrouping(
            self._kernels,
            self._members,
            states,
            reopen=self._reopen,
            switched=self._switched,
        )
        self._logs = LogRequests(self._members, self._kernels, self._chunks)
        self._stored = StoredStates(self._kernels, self._chunks)
        self._membership = MembershipRequests(self._members)
        self._sessions = SessionBook(self._folder / "sessions")
        self._templates = Templates(
            self._folder, reaper=self._reaper, hash_seed=config.hash_seed, preload=config.preload
        )
        self._prewarmed = PrewarmedPool(
            templates=self._templates,
            reaper=self._reaper,
            socket_folder=Path(config.socket_folder),
            log_path=self._folder / "prewarmed.log",
            python=config.templates[0] if config.templates else sys.executable,
            notify=self._control.notify,
        )
        self._tools = HostTools(
            host=config.host,
            incarnation=self.incarnation,
            members=self._members,
            bindings=DeviceBindings(inventory, Path(config.lock_folder)),
            chunks=self._chunks,
            templates=self._templates,
            reaper=self._reaper,
            socket_folder=Path(config.socket_folder),
            log_folder=self._folder / "replicas",
            sessions=self._sessions,
            notify=self._control.notify,
        )
        self._watchdog = Watchdog(
            config.stopped_replica_s, pids=self._replicas, end=self._end_replica
        )
        self._handlers: dict[type, Handler] = {
            RenewLease: self._renew,
            SetPeers: self._set_peers,
            OpenKernel: self._open,
            JoinGroup: self._join,
            AddLearner: self._membership.add_learner,
            ChangeMembers: self._membership.change_voters,
            ForgetLearner: self._membership.forget_learner,
            PrepareGroup: self._regrouping.prepare,
            SwitchGroup: self._regrouping.switch,
            NewEpoch: self._new_epoch,
            LaunchReplica: self._launch,
            StartPrewarmed: self._start_prewarmed,
            StopPrewarmed: self._stop_prewarmed,
            StopReplica: self._stop_replica,
            InterruptReplica: self._interrupt,
            CastBallot: self._cast,
            BeginAttempt: self._begin,
            LoseAttempt: self._lose,
            ReleaseDevices: self._release,
            CloseMember: self._close_member,
            ReadMembers: self._logs.read_members,
            ReadChunks: self._logs.read_chunks,
            SweepStore: self._logs.sweep_store,
            KeepState: self._stored.keep,
            RestoreState: self._stored.restore,
            ReadStore: self._read_store,
            ReadInventory: self._read_inventory,
            StopAgent: self._stop,
        }

    def _engine(
        self, clock: Clock, rng: random.Random, states: KernelStates
    ) -> Members | RaftosMembers:
        folder = self._folder / "kernels"
        if self.config.consensus_engine == "raftos":
            return RaftosMembers(
                host=self.config.host,
                folder=folder,
                transport=self._transport,
                rng=rng,
                on_committed=self._committed,
            )
        return Members(
            host=self.config.host,
            folder=folder,
            transport=self._transport,
            clock=clock,
            rng=rng,
            on_committed=self._committed,
            hooks=states,
            limits=CompactionLimits(
                entries=self.config.compact_entries, size_bytes=self.config.compact_bytes
            ),
        )

    # ---- life ---------------------------------------------------------------------------------

    async def run(self, on_listening: Callable[[], None]) -> None:
        """Serve until the end. Raises NotebookOSError when it cannot even begin."""
        loop = asyncio.get_running_loop()
        self._reaper.start()
        await asyncio.to_thread(self._sessions.end_all)
        try:
            await self._control.start()
            await self._transport.start()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._ending.set)
            on_listening()
            log.info("host %s listens, incarnation %s", self.config.host, self.incarnation)
            self._warm_up()
            self._chunks.check_soon()
            await self._until_the_end()
        finally:
            await self._tear_down()

    async def _until_the_end(self) -> None:
        told = asyncio.create_task(self._ending.wait())
        expired = asyncio.create_task(self._lease.expired())
        watched = asyncio.create_task(self._watchdog.watch())
        done, pending = await asyncio.wait({told, expired}, return_when=asyncio.FIRST_COMPLETED)
        for task in (*pending, watched):
            task.cancel()
        log.info("ending: %s", "told to" if told in done else "no controller renewed the lease")

    def _replicas(self) -> dict[int, ReplicaSession]:
        """The replicas that live here, by process."""
        sessions = [kernel.session for kernel in self._kernels.values() if kernel.session]
        return {session.process.pid: session for session in sessions if session.is_alive}

    def _end_replica(self, pid: int, reason: str) -> None:
        session = self._replicas().get(pid)
        if session is not None:
            session.end_for(reason)

    def _warm_up(self) -> None:
        if self.config.consensus_engine == "raftos":
            self._control.notify(AgentWarning(kernel=None, message=NOT_DURABLE))
        for python in self.config.templates:
            try:
                self._templates.get(python)
            except NotebookOSError as error:
                log.warning("no template: %s", error)
                self._control.notify(AgentWarning(kernel=None, message=error.message))

    async def _tear_down(self) -> None:
        closing = [self._close_kernel(k, delete=self._delete_logs) for k in list(self._kernels)]
        await asyncio.gather(*(_logged(work) for work in closing))
        self._chunks.close()
        await _logged(self._members.shut_down())
        await _logged(self._transport.close())
        self._prewarmed.clear()
        self._templates.close()
        await self._end_descendants()
        await asyncio.to_thread(self._sessions.end_all)
        self._store_threads.shutdown(wait=True, cancel_futures=True)
        if self._delete_logs:
            for name in ("kernels", "replicas", "importable"):
                await asyncio.to_thread(shutil.rmtree, self._folder / name, ignore_errors=True)
        self._ended.set()
        await self._control.close()
        self._reaper.stop()

    async def _end_descendants(self) -> None:
        """Nothing that was started from here survives, however far it detached itself."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + END_S
        while loop.time() < deadline:
            self._reaper.reap()
            left = await asyncio.to_thread(descendants, os.getpid())
            if not left:
                return
            for pid in left:
                kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.02)
        log.error("these processes did not end: %s", left)

    # ---- the controller -----------------------------------------------------------------------

    def _attach(self, request: Attach) -> Attached:
        self._lease.renew(request.lease_s)
        # This controller has counted none yet.
        self._prewarmed.clear()
        log.info("controller %s attached, lease %g s", request.controller, request.lease_s)
        return Attached(
            spec=HostSpec(
                host=self.config.host,
                incarnation=self.incarnation,
                machine=self.config.machine,
                devices=self._inventory.devices,
                pid=os.getpid(),
                memory_bytes=machine_memory_bytes(),
                gpu_type=self._inventory.gpu_type,
            ),
            peer_address=self._transport.address,
            replicas=tuple(
                running for k in self._kernels.values() if (running := k.running()) is not None
            ),
            kernels=tuple(self._kernels),
        )

    async def _handle(self, request: AgentRequest) -> AgentAnswer:
        return await self._handlers[type(request)](request)

    async def _renew(self, request: RenewLease) -> Done:
        self._lease.renew(request.lease_s)
        return Done()

    async def _set_peers(self, request: SetPeers) -> Done:
        self._transport.set_peers({HostId(h): a for h, a in request.addresses.items()})
        # The controller may know of a loss before the connection does; that a host is back shows
        # when its connection is.
        for host in request.lost:
            self._members.peer_lost(host)
        return Done()

    def _received(self, host: HostId, envelopes: Sequence[Envelope]) -> None:
        self._members.receive(host, envelopes)

    def _peer_changed(self, host: HostId, up: bool) -> None:
        if up:
            self._members.peer_back(host)
        else:
            self._members.peer_lost(host)

    async def _read_inventory(self, _request: ReadInventory) -> Inventory:
        return Inventory(devices=await asyncio.to_thread(self._inventory.use))

    async def _read_store(self, _request: ReadStore) -> StoreReport:
        return self._chunks.report()

    def _store_back(self) -> bool:
        """Tell every replica; whether any has something for the store."""
        sessions = self._replicas().values()
        return sum(session.store_back() for session in sessions) > 0

    async def _stop(self, request: StopAgent) -> Done:
        self._delete_logs |= request.delete_logs
        self._ending.set()
        await self._ended.wait()
        return Done()

    # ---- kernels ------------------------------------------------------------------------------

    async def _open(self, request: OpenKernel) -> Done:
        kernel = self._hosted(request.kernel, request.log_key)
        known = self._kernels.get(request.kernel)
        # Entries may be committed while it opens.
        self._kernels[request.kernel] = kernel
        try:
            await self._heal(kernel)
            await self._members.open(
                request.kernel,
                request.members,
                campaign=request.campaign,
                group=kernel.group,
                is_new=request.is_new,
            )
            if known is None:
                await asyncio.to_thread(self._delete_other_groups, kernel)
        except BaseException:
            if known is None:
                self._kernels.pop(request.kernel, None)
            raise
        self._members_of[request.kernel] = request.members
        kernel.catch_up()
        return Done()

    async def _heal(self, kernel: HostedKernel) -> None:
        """A member that gave up on its disk gets another chance. Raises StorageError."""
        name = kernel.kernel
        if name not in self._members.kernels or not self._members.status(name).failure:
            return
        # Who opens the old group again has given up the one that was prepared here, if any was.
        self._regrouping.forget(name)
        await self._reopen(kernel)

    async def _reopen(self, kernel: HostedKernel) -> None:
        name = kernel.kernel
        log.info("the member of kernel %s is opened again", name)
        await self._members.close(name, delete=False)
        await self._members.open(
            name, self._members_of.get(name, ()), campaign=False, group=kernel.group, is_new=False
        )

    async def _join(self, request: JoinGroup) -> Joined:
        kernel = self._hosted(request.kernel, request.log_key)
        known = request.kernel in self._kernels
        self._kernels[request.kernel] = kernel
        try:
            member = await self._members.join(request.kernel, group=kernel.group)
            if not known:
                await asyncio.to_thread(self._delete_other_groups, kernel)
        except BaseException:
            if not known:
                self._kernels.pop(request.kernel, None)
            raise
        self._members_of.setdefault(request.kernel, ())
        kernel.catch_up()
        return Joined(member=member)

    def _hosted(self, name: KernelId, log_key: bytes) -> HostedKernel:
        """The kernel as it is open here, or a new one. Raises InvalidRequest for another key."""
        _check_name(name)
        known = self._kernels.get(name)
        if known is not None and known.log_key != log_key:
            raise InvalidRequest(f"kernel {name} is open with another log key")
        return known or HostedKernel(name, log_key, self._tools)

    async def _switched(self, kernel: HostedKernel) -> None:
        self._members_of[kernel.kernel] = (self.config.host,)
        await asyncio.to_thread(self._delete_other_groups, kernel)

    async def _new_epoch(self, request: NewEpoch) -> Done:
        await self._kernel(request.kernel).begin_epoch(request.epoch)
        return Done()

    async def _launch(self, request: LaunchReplica) -> Done:
        kernel = self._kernel(request.kernel)
        await self._heal(kernel)
        spare = self._prewarmed.take(request.python) if request.prewarmed else None
        await kernel.launch(request, spare)
        return Done()

    async def _start_prewarmed(self, request: StartPrewarmed) -> Done:
        self._prewarmed.start(request.count)
        return Done()

    async def _stop_prewarmed(self, request: StopPrewarmed) -> Done:
        self._prewarmed.stop(request.count)
        return Done()

    async def _stop_replica(self, request: StopReplica) -> Done:
        kernel = self._kernel_of(request.replica)
        if kernel is not None:
            await kernel.stop_replica(request.grace_s)
        return Done()

    async def _interrupt(self, request: InterruptReplica) -> Done:
        kernel = self._kernel_of(request.replica)
        if kernel is None:
            raise NotFound(f"replica {request.replica} does not run on {self.config.host}")
        kernel.living(request.replica).process.interrupt(request.cell)
        return Done()

    async def _cast(self, request: CastBallot) -> Done:
        await ballots.cast(self._kernel(request.kernel), request)
        return Done()

    async def _begin(self, request: BeginAttempt) -> AttemptBegun | AttemptNotBegun:
        return await attempts.begin(self._kernel(request.kernel), request)

    async def _lose(self, request: LoseAttempt) -> Done:
        await attempts.lose(self._kernel(request.kernel), request)
        return Done()

    async def _release(self, request: ReleaseDevices) -> DevicesReleased:
        kernel = self._kernels.get(request.kernel)
        session = kernel.session if kernel is not None else None
        return await attempts.release(self._tools.bindings, session, request)

    async def _close_member(self, request: CloseMember) -> Done:
        _check_name(request.kernel)
        await self._close_kernel(request.kernel, delete=request.delete)
        return Done()

    async def _close_kernel(self, name: KernelId, *, delete: bool) -> None:
        kernel = self._kernels.get(name)
        if kernel is not None:
            await kernel.close(CLOSE_GRACE_S)
            self._kernels.pop(name, None)
            self._members_of.pop(name, None)
        self._regrouping.forget(name)
        await self._members.close(name, delete=delete)
        if delete:
            # Also what an earlier agent left of a kernel that was never opened here.
            await asyncio.to_thread(self._delete_files, name)

    def _delete_other_groups(self, kernel: HostedKernel) -> None:
        """What this host missed the end of, because it was lost then."""
        for former in (self._folder / "kernels" / kernel.kernel).glob("*"):
            if former.name != kernel.group:
                shutil.rmtree(former, ignore_errors=True)

    def _delete_files(self, name: KernelId) -> None:
        shutil.rmtree(self._folder / "kernels" / name, ignore_errors=True)
        for path in self._tools.log_folder.glob(f"{name}-*.log"):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def _kernel(self, name: KernelId) -> HostedKernel:
        kernel = self._kernels.get(name)
        if kernel is None:
            raise NotFound(f"kernel {name} is not open on {self.config.host}")
        return kernel

    def _kernel_of(self, replica: ReplicaId) -> HostedKernel | None:
        for kernel in self._kernels.values():
            if kernel.session is not None and kernel.session.launch.replica == replica:
                return kernel
        return None

    def _committed(self, name: KernelId, entries: Sequence[Entry]) -> None:
        kernel = self._kernels.get(name)
        if kernel is not None:
            kernel.history.fold(entries)


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    """One part that cannot be closed must not keep the others open."""
    try:
        await work
    except Exception:
        log.exception("a part of the agent could not be closed")


def _check_name(kernel: KernelId) -> None:
    """Kernel ids become names of files."""
    if not kernel or "/" in kernel or "\0" in kernel or kernel.startswith(".") or len(kernel) > 100:
        raise InvalidRequest(f"{kernel[:80]!r} is not a kernel id")


def prepare_folders(config: AgentConfig) -> None:
    """Make the folders that an agent needs. Raises StorageError."""
    for name in (config.folder, config.socket_folder, config.lock_folder):
        make_folder(Path(name))
