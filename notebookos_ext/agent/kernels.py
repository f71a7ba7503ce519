"""One kernel on one host: its member of the Raft group, what the log says, its local replica."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from notebookos_ext.agent.binding import DeviceBindings
from notebookos_ext.agent.chunks import Chunks
from notebookos_ext.agent.history import Frozen, History, Verdict
from notebookos_ext.agent.leftovers import SessionBook
from notebookos_ext.agent.prewarmed import Prewarmed
from notebookos_ext.agent.processes import start_replica
from notebookos_ext.agent.reaper import Reaper
from notebookos_ext.agent.sessions import ReplicaSession
from notebookos_ext.agent.templates import Templates, explain_failure, tail
from notebookos_ext.cluster.consensus.messages import Entry
from notebookos_ext.cluster.entries import EpochEntry, LogEntry, encode_entry
from notebookos_ext.cluster.messages.control import (
    AgentNotice,
    AgentWarning,
    BallotCommitted,
    LaunchReplica,
    ReplicaExited,
    ReplicaProgress,
    ReplicaReady,
    RunningReplica,
)
from notebookos_ext.cluster.model import HostId, KernelId, ReplicaId
from notebookos_ext.cluster.snapshots import KernelSnapshot
from notebookos_ext.errors import (
    NoMajority,
    NotebookOSError,
    NotFound,
    OutcomeUnknown,
    Refused,
    StorageError,
    StorageFull,
    Unavailable,
)

log = logging.getLogger(__name__)

RETRY_S = 0.2
PROGRESS_S = 0.5
"""Progress of a replica is told at most this often."""
SETTLE_S = 15.0
"""How long the commits of a dead replica are waited for before its end is told."""
CLOSE_SETTLE_S = 2.0
"""The same when the kernel is closed here, perhaps together with the other hosts."""
STUCK_S = 30.0
"""A replica that applies nothing for so long is named in a warning."""


def group_of(log_key: bytes) -> str:
    """The name of the Raft group that has this key."""
    return hashlib.blake2b(log_key, digest_size=8, person=b"nbos-group").hexdigest()


class ReplicatedLogs(Protocol):
    """The part of `members.Members` that a kernel uses."""

    async def propose(  # noqa: D102
        self, kernel: KernelId, payload: bytes, proposal_id: str, timeout_s: float = ...
    ) -> int: ...
    def committed_from(self, kernel: KernelId, index: int) -> Sequence[Entry]: ...  # noqa: D102
    async def read_barrier(self, kernel: KernelId) -> int: ...  # noqa: D102
    async def transfer_leadership(self, kernel: KernelId, to: HostId) -> None: ...  # noqa: D102


class HostTools(msgspec.Struct, frozen=True):
    """What every kernel of a host shares."""

    host: HostId
    incarnation: str
    members: ReplicatedLogs
    bindings: DeviceBindings
    chunks: Chunks
    templates: Templates
    reaper: Reaper
    socket_folder: Path
    log_folder: Path
    sessions: SessionBook
    notify: Callable[[AgentNotice], None]


class HostedKernel:
    """A kernel that has a member here. Its replica, if any, is replaced by a later launch."""

    def __init__(self, kernel: KernelId, log_key: bytes, tools: HostTools) -> None:
        self.kernel = kernel
        self.log_key = log_key
        self.tools = tools
        self.history = History(kernel, log_key, on_change=self._changed)
        self.session: ReplicaSession | None = None
        self._launching = asyncio.Lock()
        # The same agent may open the same kernel again, for another server: no id comes twice.
        self._mark = f"{tools.incarnation}.{secrets.token_hex(4)}"
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._progress_timer: asyncio.TimerHandle | None = None
        self._told_progress = (0, 0, 0)
        self._closed = False
        self._told_lead: tuple[ReplicaSession, ReplicaId] | None = None
        """The last process here that knows of a leader, and that leader."""
        self._led_attempt = 0
        """The last one with which the replica here became the executor."""
        self._told_ballots = (0, 0)
        """Of which attempt how many ballots were told."""

    # ---- the log ---------------------------------------------------------------------------------

    @property
    def group(self) -> str:
        """The name of its Raft group: a new group has a new key."""
        return group_of(self.log_key)

    def catch_up(self) -> None:
        """Fold everything that this host knows to be committed."""
        first = self.history.folded_index + 1
        self.history.fold(self.tools.members.committed_from(self.kernel, first))

    async def barrier(self) -> None:
        """Fold everything that was committed before this call. Raises NoMajority."""
        await self.tools.members.read_barrier(self.kernel)
        self.catch_up()

    def proposal_id(self) -> str:
        """An id that nobody else uses, for a proposal of the agent's own."""
        return f"{self._mark}.a{next(self._numbers)}"

    async def propose(self, entry: LogEntry, proposal_id: str, timeout_s: float) -> Verdict:
        """One try to commit. Raises NoMajority, OutcomeUnknown, StorageError, InvalidRequest."""
        payload = encode_entry(self.kernel, entry, self.log_key)
        await self.tools.members.propose(self.kernel, payload, proposal_id, timeout_s)
        self.catch_up()
        verdict = self.history.verdict(proposal_id)
        if verdict is None:
            raise OutcomeUnknown(f"an entry of kernel {self.kernel} is committed but not yet here")
        return verdict

    async def commit(
        self, entry: LogEntry, proposal_id: str, wanted: Callable[[], bool]
    ) -> Verdict:
        """Commit under one id, again and again while `wanted`. Raises Refused when it is not.

        A full disk is waited for like a majority: what runs here is nowhere else yet, and ends with
        its process.
        """
        warned = False
        while not self._closed:
            try:
                return await self.propose(entry, proposal_id, timeout_s=10.0)
            except (NoMajority, OutcomeUnknown, StorageFull) as error:
                self.catch_up()
                verdict = self.history.verdict(proposal_id)
                if verdict is not None:
                    return verdict
                if not wanted():
                    raise Refused("meanwhile the attempt was closed") from error
                if not warned:
                    warned = True
                    self.warn(f"a commit waits: {error.message}")
            await asyncio.sleep(RETRY_S)
        raise Refused(f"kernel {self.kernel} is closed on this host")

    def needed(self) -> list[Frozen]:
        """What the log amounts to, and what of former states the replica here is busy with."""
        session = self.session
        busy_with = session.busy_with if session is not None and session.is_alive else ()
        return [self.history.freeze(), *map(self.history.freeze, busy_with)]

    def uncommitted_chunks(self) -> set[str]:
        """Digests of the chunks that commits on their way to the log name."""
        return self.session.uncommitted_chunks() if self.session is not None else set()

    async def begin_epoch(self, epoch: int) -> None:
        """Commit the epoch, unless it (or a later one) has begun. Raises what `propose` raises."""
        if self.history.ledger.epoch < epoch:
            await self.propose(EpochEntry(epoch=epoch), self.proposal_id(), timeout_s=10.0)

    def restore(self, index: int, snapshot: KernelSnapshot) -> None:
        """Go on from a snapshot of the log up to `index`, unless all of it is known here."""
        if not self.history.restore(index, snapshot):
            return
        session = self.session
        if session is not None and session.is_alive and session.feed.is_stranded:
            session.give_up(
                StorageError(
                    f"{self.tools.host} was away for so long that the log of kernel {self.kernel} "
                    "no longer has what its replica missed; the replica begins anew"
                )
            )

    def regroup(
        self, log_key: bytes, tail: Sequence[Entry], snapshot: KernelSnapshot, index: int
    ) -> None:
        """Take `tail` for committed and go on under another key; what runs here runs on."""
        self.history.fold(tail)
        self.history.regroup(log_key, snapshot, index)
        self.log_key = log_key

    def _changed(self) -> None:
        self._tell_ballots()
        session = self.session
        if session is None or not session.is_alive:
            return
        session.feed.pump()
        self._progress_soon()
        lead = self.history.ledger.lead
        if lead is not None and lead.replica == session.launch.replica:
            self._lead_soon(lead.attempt)
        if lead is not None and (session, lead.replica) != self._told_lead:
            # Once per leader, not per cell.
            mine = lead.replica == session.launch.replica
            if mine or session.feed.stand_down(lead, self.history.folded_index):
                self._told_lead = (session, lead.replica)

    def _lead_soon(self, attempt: int) -> None:
        """The group's leader follows the executor, whose entries then cost one round trip."""
        if attempt > self._led_attempt:
            self._led_attempt = attempt
            self.spawn(self._lead_here())

    async def _lead_here(self) -> None:
        try:
            await self.tools.members.transfer_leadership(self.kernel, self.tools.host)
        except NotebookOSError as error:
            # Slower, not worse: the executor's entries go by way of another host.
            log.info("kernel %s is not led from its executor's host: %s", self.kernel, error)

    def _tell_ballots(self) -> None:
        """Each once, in log order; every host tells all of them, so that none waits for another."""
        ballots = self.history.ballots
        attempt, told = self._told_ballots
        if not ballots:
            return
        if ballots[0].attempt != attempt:
            attempt, told = ballots[0].attempt, 0
        for ballot in ballots[told:]:
            self.tools.notify(
                BallotCommitted(
                    kernel=self.kernel,
                    cell=ballot.cell,
                    attempt=ballot.attempt,
                    replica=ballot.replica,
                    lead=ballot.lead,
                    devices=ballot.devices,
                    reason=ballot.reason,
                )
            )
        self._told_ballots = (attempt, len(ballots))

    # ---- the replica -----------------------------------------------------------------------------

    def running(self) -> RunningReplica | None:
        """The replica for a controller that adopts this agent."""
        session = self.session
        if session is None or not session.is_alive:
            return None
        return RunningReplica(
            kernel=self.kernel,
            replica=session.launch.replica,
            epoch=session.launch.epoch,
            launch=session.launch.launch,
            pid=session.process.pid,
            endpoints=session.endpoints if session.is_ready else {},
        )

    def living(self, replica: ReplicaId) -> ReplicaSession:
        """The session of a replica that runs here. Raises NotFound."""
        session = self.session
        if session is None or session.launch.replica != replica or not session.is_alive:
            raise NotFound(f"replica {replica} does not run on {self.tools.host}")
        return session

    async def launch(self, request: LaunchReplica, prewarmed: Prewarmed | None = None) -> None:
        """Start the replica; the same launch twice starts it once. Raises Refused, LaunchFailed.

        `prewarmed` becomes the replica, or ends if there is none to start.
        """
        try:
            await self._launch(request, prewarmed)
        finally:
            if prewarmed is not None and not (
                self.session is not None and self.session.pid == prewarmed.pid
            ):
                prewarmed.end()

    async def _launch(self, request: LaunchReplica, prewarmed: Prewarmed | None) -> None:
        async with self._launching:
            old = self.session
            if old is not None and old.launch.replica == request.replica:
                if old.launch.launch == request.launch and old.is_alive:
                    return
                if request.launch < old.launch.launch:
                    raise Refused(
                        f"launch {request.launch} of {request.replica} is over; "
                        f"launch {old.launch.launch} came after it"
                    )
            if request.epoch < self.history.ledger.epoch:
                raise Refused(f"epoch {request.epoch} of kernel {self.kernel} is over")
            if old is not None and old.is_alive:
                await old.process.stop(grace_s=0.0)
            await self._start(request, prewarmed)

    async def stop_replica(self, grace_s: float) -> None:
        """End the replica, if one runs."""
        async with self._launching:
            if self.session is not None and self.session.is_alive:
                await self.session.process.stop(grace_s)

    async def close(self, grace_s: float) -> None:
        """End the replica and whatever is under way; the member is closed by the caller."""
        await self.stop_replica(grace_s)
        if self.session is not None:
            # A reply may have promised what the replica sent last.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.session.settled(), CLOSE_SETTLE_S)
        self._closed = True
        if self._progress_timer is not None:
            self._progress_timer.cancel()
        if self.session is not None:
            self.session.close()
        for task in self._tasks:
            task.cancel()

    def warn(self, message: str) -> None:
        """Say something that the user should know."""
        log.warning("kernel %s: %s", self.kernel, message)
        self.tools.notify(AgentWarning(kernel=self.kernel, message=message))

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run something in the background until the kernel is closed here."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def log_path(self, replica: ReplicaId) -> Path:
        """Where the replica's own output goes (what its kernel does not send to clients)."""
        return self.tools.log_folder / f"{replica.replace(':', '-')}.log"

    async def _start(self, request: LaunchReplica, prewarmed: Prewarmed | None) -> None:
        tools = self.tools
        session = ReplicaSession(
            request,
            self.history,
            mark=f"{self._mark}.r{request.launch}.",
            chunks=tools.chunks,
            commit=self.commit,
            notify=tools.notify,
            on_progress=self._progress_soon,
        )
        process = await start_replica(
            request,
            templates=tools.templates,
            reaper=tools.reaper,
            socket_folder=tools.socket_folder,
            log_path=self.log_path(request.replica),
            on_message=session.receive,
            on_room=session.room,
            prewarmed=prewarmed,
        )
        tools.sessions.add(process.pid)
        session.begin(process)
        self.session = session
        log.info("replica %s (launch %d) is %d", request.replica, request.launch, process.pid)
        process.ended.add_done_callback(lambda ended: self._ended(session, ended.result()))
        announcing = self.spawn(self._announce(session))
        process.ended.add_done_callback(lambda _: announcing.cancel())

    async def _announce(self, session: ReplicaSession) -> None:
        """Say ReplicaReady when it serves and has everything that was committed before."""
        while True:
            try:
                await self.barrier()
                break
            except Unavailable as error:
                log.info("kernel %s: %s", self.kernel, error)
            except StorageError as error:
                session.give_up(error)
                return
            await asyncio.sleep(RETRY_S)
        await self.history.epoch_reached(session.launch.epoch)
        session.feed.pump()
        await session.serving.wait()
        while not await session.feed.caught_up(STUCK_S):
            self.warn(f"replica {session.launch.replica} cannot load the kernel's variables")
        session.is_ready = True
        self.tools.notify(
            ReplicaReady(
                kernel=self.kernel,
                replica=session.launch.replica,
                launch=session.launch.launch,
                pid=session.process.pid,
                endpoints=session.endpoints,
            )
        )

    def _ended(self, session: ReplicaSession, words: str) -> None:
        process = session.process
        self.tools.bindings.release_all(process.pid)
        self.tools.bindings.forget(session.launch.replica)
        log.info("replica %s (process %d) %s", session.launch.replica, process.pid, words)
        reason = session.end_reason or words
        if not (session.is_ready or process.stop_requested):
            # It never worked: its own last words say more than its exit status.
            said = tail(self.log_path(session.launch.replica), process.log_start)
            reason = explain_failure(session.launch.python, said, words)
        self.spawn(self._tell_end(session, reason))

    async def _tell_end(self, session: ReplicaSession, reason: str) -> None:
        # What it sent before it died may close its attempt: only then is the attempt not lost.
        try:
            await asyncio.wait_for(session.settled(), SETTLE_S)
        except TimeoutError:
            self.warn(f"what {session.launch.replica} sent before its end is not committed yet")
        session.close()
        self.tools.notify(
            ReplicaExited(
                kernel=self.kernel,
                replica=session.launch.replica,
                launch=session.launch.launch,
                pid=session.process.pid,
                reason=reason,
                requested=session.process.stop_requested,
            )
        )

    # ---- progress --------------------------------------------------------------------------------

    def _progress_soon(self) -> None:
        if self._progress_timer is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._progress_timer = loop.call_later(PROGRESS_S, self._tell_progress)

    def _tell_progress(self) -> None:
        self._progress_timer = None
        session = self.session
        if session is None or not session.is_alive:
            return
        fetched_bytes = session.fetched_bytes
        progress = (session.feed.applied_index, self.history.last_delta_index, fetched_bytes)
        if progress != self._told_progress:
            self._told_progress = progress
            self.tools.notify(
                ReplicaProgress(
                    kernel=self.kernel,
                    replica=session.launch.replica,
                    applied=progress[0],
                    committed=progress[1],
                    fetched_bytes=fetched_bytes,
                )
            )
