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
from typing import Generic, Protocol, TypeVar

from notebookos_ext.cluster.consensus.messages import Entry, Envelope, Message
from notebookos_ext.cluster.consensus.node import Node
from notebookos_ext.cluster.consensus.ready import Proposed, Ready
from notebookos_ext.cluster.consensus.replicated_log import MemberStatus
from notebookos_ext.cluster.model import HostId, KernelId
from notebookos_ext.errors import (
    InvalidRequest,
    NoMajority,
    NotebookOSError,
    OutcomeUnknown,
    StorageError,
    StorageFull,
    Unavailable,
)
from notebookos_ext.storage.wal import WriteAheadLog

INLINE_SAVE_BYTES_MAX = 64_000
"""A thread costs more than a small save; a large save would hold up the loop."""
RETRY_TICKS = 5
"""What is still unanswered is asked again this often; identities make that harmless."""
FULL_DISK_RETRY_TICKS = 10
RECONCILE_TICKS = 50

_log = logging.getLogger(__name__)

T = TypeVar("T")


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


class _Waiter(Generic[T]):
    """Somebody who waits; several may wait for the same."""

    def __init__(self) -> None:
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.count = 0

    def finish(self, value: T) -> None:
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: NotebookOSError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            # Whoever waited may have gone meanwhile.
            self.future.exception()


class _Proposal(_Waiter[int]):
    def __init__(self, payload: bytes) -> None:
        super().__init__()
        self.payload = payload
        self.handed_on = False


class _Read(_Waiter[int]):
    def __init__(self) -> None:
        super().__init__()
        self.index: int | None = None


class Member:
    """A running member. `entries` are the committed proposals delivered so far, in order.

    A full disk stops it until there is room, a broken disk or a broken promise for good; in between
    it is as if its process were stopped, which the others survive.
    """

    def __init__(
        self,
        *,
        kernel: KernelId,
        node: Node,
        wal: WriteAheadLog,
        carrier: Carrier,
        executor: Executor,
        read_nonce: str,
        on_committed: Callable[[KernelId, Sequence[Entry]], None],
        on_leader_change: Callable[[KernelId, HostId | None], None],
    ) -> None:
        self.kernel = kernel
        self.node = node
        self.entries: list[Entry] = []
        self._wal = wal
        self._carrier = carrier
        self._executor = executor
        self._on_committed = on_committed
        self._on_leader_change = on_leader_change
        self._proposals: dict[str, _Proposal] = {}
        self._reads: dict[str, _Read] = {}
        self._read_nonce = read_nonce
        self._read_count = 0
        self._handovers: dict[HostId, _Waiter[None]] = {}
        self._seen_leader = node.leader
        self._pump_due = False
        self._saving: asyncio.Future[None] | None = None
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
            leader=None if node.leader is None else HostId(node.leader),
            last_index=node.log.last_index,
            commit_index=node.log.commit_index,
            delivered_index=node.log.delivered_index,
            resting=node.resting,
            failure="" if self._failure is None else self._failure.message,
        )

    def entries_from(self, index: int) -> Sequence[Entry]:
        """The delivered proposals from log index `index` on."""
        start = bisect.bisect_left(self.entries, index, key=lambda entry: entry.index)
        return self.entries[start:]

    async def propose(self, payload: bytes, proposal_id: str, timeout_s: float) -> int:
        """See `ReplicatedLog.propose`."""
        self._require_working()
        outcome = self.node.propose(proposal_id, payload)
        if outcome is Proposed.COMMITTED:
            return self.node.log.index_of(proposal_id) or 0
        proposal = self._proposals.setdefault(proposal_id, _Proposal(payload))
        proposal.handed_on |= outcome is not Proposed.REFUSED
        self._pump_soon()
        proposal.count += 1
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(proposal.future)
        except TimeoutError:
            if proposal.handed_on:
                raise OutcomeUnknown(
                    f"kernel {self.kernel}: nobody confirmed a log entry within {timeout_s:g} s; "
                    "it may still be committed, so repeat it with the same id"
                ) from None
            raise self._no_majority(timeout_s) from None
        finally:
            proposal.count -= 1
            if proposal.count == 0:
                self._proposals.pop(proposal_id, None)

    async def read_barrier(self, timeout_s: float) -> int:
        """See `ReplicatedLog.read_barrier`."""
        self._require_working()
        self._read_count += 1
        read_id = f"{self._read_nonce}-{self._read_count}"
        read = self._reads[read_id] = _Read()
        self.node.read(read_id)
        self._pump_soon()
        try:
            async with asyncio.timeout(timeout_s):
                return await read.future
        except TimeoutError:
            raise self._no_majority(timeout_s) from None
        finally:
            del self._reads[read_id]

    async def transfer(self, to: HostId, timeout_s: float) -> None:
        """See `ReplicatedLog.transfer_leadership`."""
        self._require_working()
        if to not in self.node.members:
            raise InvalidRequest(f"kernel {self.kernel} has no member on host {to}")
        if self.node.leader == to:
            return
        handover = self._handovers.setdefault(to, _Waiter[None]())
        self._ask_for_handover(to)
        self._pump_soon()
        handover.count += 1
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(handover.future)
        except TimeoutError:
            raise NoMajority(
                f"kernel {self.kernel}: host {to} did not become its leader within {timeout_s:g} s"
            ) from None
        finally:
            handover.count -= 1
            if handover.count == 0:
                self._handovers.pop(to, None)

    # -- what happens ------------------------------------------------------------------------

    @property
    def needs_ticks(self) -> bool:
        """Whether time means anything to it now."""
        return not self.node.resting or self._unsaved is not None or bool(self._waiters())

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
            for host in self.node.lost & self._carrier.up:
                self.node.member_back(host)
        if self._ticks % RETRY_TICKS == 0:
            self._ask_again()
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

    def member_lost(self, host: HostId) -> None:
        """A host cannot be reached any more."""
        self.node.member_lost(host)
        self.pump()

    def member_back(self, host: HostId) -> None:
        """A host can be reached again."""
        self.node.member_back(host)
        self.pump()

    def pump(self) -> None:
        """Do all that the step machine wants done."""
        self._pump_due = False
        if self._failure is not None:
            return
        while self._unsaved is None:
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
        if self._saving is not None:
            self._send(self.node.take_early())
        self._watch_leader()

    async def close(self, *, delete: bool) -> None:
        """End it; whoever waits is told so."""
        self._fail(
            Unavailable(f"kernel {self.kernel}: its member on this host was closed"), for_good=True
        )
        if self._saving is not None:
            await asyncio.wait([self._saving])
        if delete:
            self._wal.delete()
        else:
            self._wal.close()

    # -- saving and sending ------------------------------------------------------------------

    def _save(self, ready: Ready) -> None:
        self._unsaved = ready
        size_bytes = sum(len(entry.payload) for entry in ready.entries)
        if size_bytes <= INLINE_SAVE_BYTES_MAX:
            self._saved(ready, self._written(ready))
            return
        self._saving = asyncio.get_running_loop().run_in_executor(
            self._executor, self._wal.save, ready.hard_state, ready.entries
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
        if ready.committed:
            self._deliver([entry for entry in ready.committed if entry.is_proposal])
        for result in ready.reads:
            if read := self._reads.get(result.read_id):
                read.index = result.index
        for read in self._reads.values():
            if read.index is not None and read.index <= self.node.log.delivered_index:
                read.finish(read.index)

    def _deliver(self, entries: list[Entry]) -> None:
        if not entries:
            return
        self.entries += entries
        try:
            self._on_committed(self.kernel, entries)
        except Exception:  # noqa: BLE001
            # The log goes on, whatever its reader makes of it.
            _log.exception("kernel %s: a committed entry could not be applied", self.kernel)
        for entry in entries:
            if proposal := self._proposals.get(entry.proposal_id):
                proposal.finish(entry.index)

    def _send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._carrier.send(HostId(message.to), [Envelope(self.kernel, message)])

    def _pump_soon(self) -> None:
        """In one go with whatever else happens in this turn of the loop: that batches proposals."""
        if not self._pump_due:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self.pump)

    # -- asking again ------------------------------------------------------------------------

    def _watch_leader(self) -> None:
        leader = self.node.leader
        if leader == self._seen_leader:
            return
        self._leader_seen(leader)
        if leader is None:
            return
        _log.info("kernel %s: %s leads in term %d", self.kernel, leader, self.node.term)
        if handover := self._handovers.get(HostId(leader)):
            handover.finish(None)
        self._ask_again()
        self._pump_soon()

    def _leader_seen(self, leader: str | None) -> None:
        if leader != self._seen_leader:
            self._seen_leader = leader
            self._on_leader_change(self.kernel, None if leader is None else HostId(leader))

    def _ask_again(self) -> None:
        for proposal_id, proposal in self._proposals.items():
            if not proposal.future.done():
                outcome = self.node.propose(proposal_id, proposal.payload)
                proposal.handed_on |= outcome is not Proposed.REFUSED
        for read_id, read in self._reads.items():
            if read.index is None:
                self.node.read(read_id)
        for to, handover in self._handovers.items():
            if not handover.future.done():
                self._ask_for_handover(to)

    def _ask_for_handover(self, to: HostId) -> None:
        if to == self.node.me:
            self.node.campaign()
        else:
            self.node.transfer(to)

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
        for waiter in self._waiters():
            waiter.fail(type(error)(error.message))

    def _waiters(self) -> list[_Waiter[int] | _Waiter[None]]:
        return [*self._proposals.values(), *self._reads.values(), *self._handovers.values()]

    def _no_majority(self, timeout_s: float) -> NoMajority:
        leader = self.node.leader
        reason = "no member leads" if leader is None else f"{leader} did not confirm it"
        return NoMajority(
            f"kernel {self.kernel}: {reason} within {timeout_s:g} s, because too few of its "
            f"{len(self.node.members)} members can be reached"
        )
