"""One member of one kernel's Raft group at work: the step machine, its disk, and who waits for it.

Everything runs on the agent's loop, except that a large save is written by a thread. What is on its
way to other members leaves before this member's own disk is written: a commit costs one save and
one round trip, side by side.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Protocol

import msgspec

from notebookos_ext.agent.asked import Asked
from notebookos_ext.agent.compaction import Compaction, CompactionLimits
from notebookos_ext.cluster.consensus.membership import host_of
from notebookos_ext.cluster.consensus.messages import Entry, Envelope, Message
from notebookos_ext.cluster.consensus.node import Node
from notebookos_ext.cluster.consensus.ready import Ready
from notebookos_ext.cluster.consensus.replicated_log import MemberStatus, SnapshotHooks
from notebookos_ext.cluster.consensus.snapshot import Snapshot, SnapshotMeta
from notebookos_ext.cluster.model import HostId, KernelId
from notebookos_ext.errors import (
    NoMajority,
    NotebookOSError,
    StorageError,
    StorageFull,
    Unavailable,
)
from notebookos_ext.storage.wal import WriteAheadLog

INLINE_SAVE_BYTES_MAX = 64_000
"""A thread costs more than a small save; a large save would hold up the loop."""
RETRY_TICKS = 5
"""What is still unanswered is asked again this often."""
FULL_DISK_RETRY_TICKS = 10
RECONCILE_TICKS = 50

_log = logging.getLogger(__name__)


class Carrier(Protocol):
    """How messages reach other hosts: `PeerTransport`, or a test's own."""

    @property
    def up(self) -> frozenset[HostId]:
        """The hosts that can be reached now."""
        ...

    def send(self, host: HostId, messages: Sequence[Envelope]) -> None:
        """Send soon, or drop."""
        ...

    def flush(self) -> None:
        """Send now."""
        ...


class Sealed(msgspec.Struct, frozen=True):
    """What a member has of a group that it is done with."""

    meta: SnapshotMeta
    """What stands for its whole log in a group of its own."""
    tail: tuple[Entry, ...]
    """Proposals that it has not delivered: they may have been committed, or not."""
    term: int


class Member:
    """A running member. `entries` are the committed proposals delivered so far, in order.

    `entries` begins after the snapshot that the log begins with. A full disk stops it until there
    is room, a broken disk or a broken promise for good; in between it is as if its process were
    stopped, which the others survive.
    """

    def __init__(
        self,
        *,
        kernel: KernelId,
        group: str,
        node: Node,
        wal: WriteAheadLog,
        carrier: Carrier,
        executor: Executor,
        read_nonce: str,
        on_committed: Callable[[KernelId, Sequence[Entry]], None],
        on_leader_change: Callable[[KernelId, HostId | None], None],
        hooks: SnapshotHooks | None,
        limits: CompactionLimits,
    ) -> None:
        self.kernel = kernel
        self.group = group
        self.node = node
        self.entries: list[Entry] = []
        self._wal = wal
        self._carrier = carrier
        self._executor = executor
        self._on_committed = on_committed
        self._on_leader_change = on_leader_change
        self._hooks = hooks
        self._compaction = None
        if hooks is not None:
            self._compaction = Compaction(
                kernel=kernel,
                node=node,
                wal=wal,
                executor=executor,
                limits=limits,
                hooks=hooks,
                on_ready=self.pump,
            )
        self.asked = Asked(
            kernel=kernel,
            node=node,
            read_nonce=read_nonce,
            check_working=self._require_working,
            pump_soon=self._pump_soon,
        )
        self._seen_leader = node.leader
        self._leader_changes = 0
        self._pump_due = False
        self._saving: asyncio.Future[None] | None = None
        self._replacing: asyncio.Future[None] | None = None
        self._fetching: asyncio.Future[Snapshot | None] | None = None
        self._unsaved: Ready | None = None
        self._failure: NotebookOSError | None = None
        self._failed_for_good = False
        self._ticks = 0

    # -- what others see ---------------------------------------------------------------------

    @property
    def status(self) -> MemberStatus:
        """As of now."""
        node = self.node
        return MemberStatus(
            kernel=self.kernel,
            role=node.role,
            term=node.term,
            leader=None if node.leader is None else HostId(host_of(node.leader)),
            last_index=node.log.last_index,
            commit_index=node.log.commit_index,
            delivered_index=node.log.delivered_index,
            resting=node.resting,
            failure="" if self._failure is None else self._failure.message,
            member=node.me,
            membership=node.log.committed_membership,
            snapshot_index=0 if self._wal.snapshot is None else self._wal.snapshot.index,
            log_bytes=self._wal.size_bytes,
            leader_changes=self._leader_changes,
            last_term=node.log.last_term,
        )

    @property
    def founders(self) -> tuple[str, ...]:
        """Who founded the group; empty if this member joined later."""
        return self._wal.identity.members

    @property
    def failure(self) -> NotebookOSError | None:
        """Why it does not take part at present."""
        return self._failure

    def entries_from(self, index: int) -> Sequence[Entry]:
        """The delivered proposals from log index `index` on."""
        start = bisect.bisect_left(self.entries, index, key=lambda entry: entry.index)
        return self.entries[start:]

    # -- what happens ------------------------------------------------------------------------

    @property
    def needs_ticks(self) -> bool:
        """Whether time means anything to it now."""
        return not self.node.resting or self._unsaved is not None or self.asked.is_waiting

    def tick(self) -> None:
        """One tick of time."""
        if self._failed_for_good:
            return
        self._ticks += 1
        if self._unsaved is not None and self._saving is None:
            if self._ticks % FULL_DISK_RETRY_TICKS == 0:
                self._save(self._unsaved)
                self.pump()
            return
        self.node.tick()
        if self.node.lost and self._ticks % RECONCILE_TICKS == 0:
            # Somebody else reported a loss that the connection has not confirmed since.
            for member in self.node.lost:
                if HostId(host_of(member)) in self._carrier.up:
                    self.node.member_back(member)
        if self._ticks % RETRY_TICKS == 0:
            self.asked.ask_again()
        self.pump()

    def step(self, message: Message) -> None:
        """A message arrived; `pump` must follow."""
        if self._failure is not None:
            return
        try:
            self.node.step(message)
        except StorageError as error:
            self._fail(error, for_good=True)

    def campaign(self) -> None:
        """Try to lead."""
        if self._failure is None:
            self.node.campaign()
            self.pump()

    def host_lost(self, host: HostId) -> None:
        """A host cannot be reached any more."""
        for member in self._members_on(host):
            self.node.member_lost(member)
        self.pump()

    def host_back(self, host: HostId) -> None:
        """A host can be reached again."""
        for member in self._members_on(host):
            self.node.member_back(member)
        self.pump()

    def pump(self) -> None:
        """Do all that the step machine wants done."""
        self._pump_due = False
        if self._failure is not None:
            return
        while self._unsaved is None and self._replacing is None:
            if self._compaction is not None and self._compaction.ready_ref is not None:
                self._replace_log(self._compaction)
                break
            ready = self.node.ready()
            if ready is None:
                break
            self._send(ready.early)
            if ready.must_save:
                if ready.early:
                    self._carrier.flush()
                self._save(ready)
            else:
                self._finish(ready)
        if self._saving is not None or self._replacing is not None:
            self._send(self.node.take_early())
        self._watch_leader()

    async def seal(self) -> Sealed:
        """Stop for good in this group, and tell what this member has of it.

        Who waits here, and who asks from now on, is told that there is no majority. Raises what
        keeps the member from taking part already, and StorageError when a snapshot that just
        arrived cannot be used.
        """
        self._require_working()
        self._fail(
            NoMajority(f"kernel {self.kernel}: its group is being left behind"), for_good=True
        )
        await self._settled()
        self._hand_on_unsaved()
        log = self.node.log
        beyond = log.entries(log.delivered_index + 1, log.last_index)
        return Sealed(
            meta=log.founding(HostId(host_of(self.node.me))),
            tail=tuple(entry for entry in beyond if entry.is_proposal),
            term=self.node.term,
        )

    def _hand_on_unsaved(self) -> None:
        """Deliver what came with a save that was under way when this member was stopped.

        It is committed, whatever became of that save, and the log counts it as delivered.
        """
        ready, self._unsaved = self._unsaved, None
        if ready is None:
            return
        if ready.snapshot is not None and self._hooks is not None:
            self.entries = []
            self._hooks.restore(self.kernel, ready.snapshot.meta.index, ready.snapshot.state)
        self._deliver([entry for entry in ready.committed if entry.is_proposal])

    async def close(self, *, delete: bool) -> None:
        """End it; whoever waits is told so."""
        self._fail(
            Unavailable(f"kernel {self.kernel}: its member on this host was closed"), for_good=True
        )
        await self._settled()
        if delete:
            self._wal.delete()
        else:
            self._wal.close()

    async def _settled(self) -> None:
        """Until nothing is being written or read any more."""
        if self._compaction is not None:
            await self._compaction.close()
        writing = [w for w in (self._saving, self._replacing, self._fetching) if w is not None]
        if writing:
            await asyncio.wait(writing)

    def restore(self, snapshot: Snapshot) -> None:
        """Hand the state that the log begins with to the application."""
        if self._hooks is None:
            self._fail(
                StorageError(f"kernel {self.kernel}: nobody here can use a snapshot"), for_good=True
            )
            return
        self.entries = []
        try:
            self._hooks.restore(self.kernel, snapshot.meta.index, snapshot.state)
        except StorageError as error:
            self._fail(error, for_good=True)

    # -- forgetting ----------------------------------------------------------------------------

    def _replace_log(self, compaction: Compaction) -> None:
        self._replacing = compaction.replace()

        def replaced(replacing: asyncio.Future[None]) -> None:
            self._replacing = None
            error = replacing.exception()
            compaction.replaced(error)
            if error is None and self._wal.snapshot is not None:
                self.entries = [*self.entries_from(self._wal.snapshot.index + 1)]
            self.pump()

        self._replacing.add_done_callback(replaced)

    def _fetch_snapshot(self) -> None:
        """The leader's core wants the state of its snapshot, for a follower."""
        if self._fetching is not None:
            return
        if self._compaction is not None:
            # Only the newest is on disk.
            self._compaction.forget_now()
        loop = asyncio.get_running_loop()
        self._fetching = loop.run_in_executor(self._executor, self._wal.read_snapshot)

        def fetched(fetching: asyncio.Future[Snapshot | None]) -> None:
            self._fetching = None
            error = fetching.exception()
            if isinstance(error, StorageError):
                self._fail(error, for_good=True)
            elif error is None and (snapshot := fetching.result()) is not None:
                self.node.provide_snapshot(snapshot.meta.index, snapshot.state)
            self.pump()

        self._fetching.add_done_callback(fetched)

    # -- saving and sending ------------------------------------------------------------------

    def _save(self, ready: Ready) -> None:
        self._unsaved = ready
        size_bytes = sum(len(entry.payload) for entry in ready.entries)
        if size_bytes <= INLINE_SAVE_BYTES_MAX and ready.snapshot is None:
            self._saved(ready, self._written(ready))
            return
        self._saving = asyncio.get_running_loop().run_in_executor(
            self._executor, self._wal.save, ready.hard_state, ready.entries, ready.snapshot
        )
        self._saving.add_done_callback(self._saved_by_thread)

    def _written(self, ready: Ready) -> BaseException | None:
        try:
            self._wal.save(ready.hard_state, ready.entries)
        except StorageError as error:
            return error
        return None

    def _saved_by_thread(self, saving: asyncio.Future[None]) -> None:
        self._saving = None
        ready = self._unsaved
        if ready is not None and not saving.cancelled():
            self._saved(ready, saving.exception())
            self.pump()

    def _saved(self, ready: Ready, error: BaseException | None) -> None:
        if isinstance(error, StorageFull):
            # The file is as before; `tick` tries again, and until then nothing happens here.
            self._fail(error, for_good=False)
        elif isinstance(error, StorageError):
            self._fail(error, for_good=True)
        elif error is not None:
            self._fail(StorageError(f"the log of {self.kernel} failed: {error}"), for_good=True)
        elif not self._failed_for_good:
            self._failure = None
            self._unsaved = None
            self._finish(ready)

    def _finish(self, ready: Ready) -> None:
        self._send(ready.messages)
        self.node.saved(ready)
        if ready.snapshot is not None:
            self.restore(ready.snapshot)
            if self._compaction is not None:
                self._compaction.installed()
        if ready.committed:
            self._deliver([entry for entry in ready.committed if entry.is_proposal])
        if ready.snapshot_wanted:
            self._fetch_snapshot()
        self.asked.finished(ready)
        if self._compaction is not None and self._failure is None:
            self._compaction.look()

    def _deliver(self, entries: list[Entry]) -> None:
        if not entries:
            return
        self.entries += entries
        try:
            self._on_committed(self.kernel, entries)
        except Exception:  # noqa: BLE001
            # The log goes on, whatever its reader makes of it.
            _log.exception("kernel %s: a committed entry could not be applied", self.kernel)
        self.asked.delivered(entries)

    def _send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._carrier.send(HostId(host_of(message.to)), [Envelope(self.group, message)])

    def _pump_soon(self) -> None:
        """In one go with whatever else happens in this turn of the loop: that batches proposals."""
        if not self._pump_due:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self.pump)

    def _watch_leader(self) -> None:
        leader = self.node.leader
        if leader == self._seen_leader:
            return
        self._leader_seen(leader)
        if leader is None:
            return
        _log.info("kernel %s: %s leads in term %d", self.kernel, leader, self.node.term)
        self.asked.leader_seen(leader)
        self._pump_soon()

    def _leader_seen(self, leader: str | None) -> None:
        if leader != self._seen_leader:
            self._seen_leader = leader
            self._leader_changes += leader is not None
            host = None if leader is None else HostId(host_of(leader))
            self._on_leader_change(self.kernel, host)

    def _members_on(self, host: HostId) -> list[str]:
        return [member for member in self.node.members if host_of(member) == host]

    # -- failing -----------------------------------------------------------------------------

    def _require_working(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(self._failure.message)

    def _fail(self, error: NotebookOSError, *, for_good: bool) -> None:
        if self._failed_for_good:
            return
        if isinstance(error, StorageError) and self._failure is None:
            _log.error("kernel %s: its member on this host stops: %s", self.kernel, error)
        self._failure = error
        self._failed_for_good = for_good
        self._leader_seen(None)
        self.asked.fail(error)
