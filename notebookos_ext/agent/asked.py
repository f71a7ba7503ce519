"""What callers asked of one member of a Raft group, asked again until something came of it.

Identities make it harmless to ask twice: a proposal is committed once, a read is a read, and a
membership that is already as it was wished stays as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from notebookos_ext.cluster.consensus.membership import Change, Changed, Membership, host_of
from notebookos_ext.cluster.consensus.messages import Entry
from notebookos_ext.cluster.consensus.node import Node
from notebookos_ext.cluster.consensus.ready import Proposed, Ready
from notebookos_ext.cluster.model import HostId, KernelId
from notebookos_ext.errors import (
    InvalidRequest,
    NoMajority,
    NotebookOSError,
    OutcomeUnknown,
    Refused,
    Unavailable,
)

T = TypeVar("T")


class _Waiter(Generic[T]):
    """Somebody who waits; several may wait for the same."""

    def __init__(self) -> None:
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.count = 0

    @property
    def is_open(self) -> bool:
        """Whether nothing came of it yet."""
        return not self.future.done()

    def finish(self, value: T) -> None:
        """It happened."""
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: NotebookOSError) -> None:
        """It will not happen."""
        if not self.future.done():
            self.future.set_exception(error)
            # Whoever waited may have gone meanwhile.
            self.future.exception()

    async def result(self, timeout_s: float) -> T:
        """What came of it. Raises TimeoutError, and what it failed with."""
        self.count += 1
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self.future)
        finally:
            self.count -= 1


class _Proposal(_Waiter[int]):
    """A payload on its way to being committed."""

    def __init__(self, payload: bytes) -> None:
        super().__init__()
        self.payload = payload
        self.handed_on = False


class _Read(_Waiter[int]):
    """A read that must see everything acknowledged before it."""

    def __init__(self) -> None:
        super().__init__()
        self.index: int | None = None


class _Wish(_Waiter[None]):
    """A change of the membership."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change
        self.outcome = Changed.REFUSED
        """What the last try came to."""


class Asked:
    """Proposals, reads, handovers and wishes of one member; everything on its loop.

    Args:
        check_working: raises what keeps the member from taking part.
        pump_soon: has the member do what its step machine wants, in one go with what else happens.
    """

    def __init__(
        self,
        *,
        kernel: KernelId,
        node: Node,
        read_nonce: str,
        check_working: Callable[[], None],
        pump_soon: Callable[[], None],
    ) -> None:
        self.kernel = kernel
        self.node = node
        self._check_working = check_working
        self._pump_soon = pump_soon
        self._proposals: dict[str, _Proposal] = {}
        self._first_proposed: dict[str, int] = {}
        """Where the log was when an id was first handed on, until it is delivered."""
        self._reads: dict[str, _Read] = {}
        self._read_nonce = read_nonce
        self._read_count = 0
        self._handovers: dict[HostId, _Waiter[None]] = {}
        self._wishes: dict[Change, _Wish] = {}
        self._done_index = node.log.delivered_index
        """Up to here the application has everything; the step machine is ahead of it."""

    @property
    def is_waiting(self) -> bool:
        """Whether anybody waits."""
        return bool(self._proposals or self._reads or self._handovers or self._wishes)

    async def propose(self, payload: bytes, proposal_id: str, timeout_s: float) -> int:
        """See `ReplicatedLog.propose`."""
        self._check_working()
        outcome = self._hand_on(proposal_id, payload)
        if outcome is Proposed.COMMITTED and (index := self._known_at(proposal_id)):
            return index
        if outcome is Proposed.EXPIRED:
            raise self._expired()
        proposal = self._proposals.setdefault(proposal_id, _Proposal(payload))
        proposal.handed_on |= outcome is not Proposed.REFUSED
        self._pump_soon()
        try:
            return await proposal.result(timeout_s)
        except TimeoutError:
            if proposal.handed_on:
                raise OutcomeUnknown(
                    f"kernel {self.kernel}: nobody confirmed a log entry within {timeout_s:g} s; "
                    "it may still be committed, so repeat it with the same id"
                ) from None
            raise self._no_majority(timeout_s) from None
        finally:
            if proposal.count == 0:
                self._proposals.pop(proposal_id, None)

    async def read_barrier(self, timeout_s: float) -> int:
        """See `ReplicatedLog.read_barrier`."""
        self._check_working()
        self._read_count += 1
        read_id = f"{self._read_nonce}-{self._read_count}"
        read = self._reads[read_id] = _Read()
        self.node.read(read_id)
        self._pump_soon()
        try:
            return await read.result(timeout_s)
        except TimeoutError:
            raise self._no_majority(timeout_s) from None
        finally:
            del self._reads[read_id]

    async def transfer(self, to: HostId, timeout_s: float) -> None:
        """See `ReplicatedLog.transfer_leadership`."""
        self._check_working()
        if self._voter_on(to) is None:
            raise InvalidRequest(f"kernel {self.kernel} has no voting member on host {to}")
        if self.node.leader is not None and host_of(self.node.leader) == to:
            return
        handover = self._handovers.setdefault(to, _Waiter[None]())
        self._ask_for_handover(to)
        self._pump_soon()
        try:
            await handover.result(timeout_s)
        except TimeoutError:
            raise NoMajority(
                f"kernel {self.kernel}: host {to} did not become its leader within {timeout_s:g} s"
            ) from None
        finally:
            if handover.count == 0:
                self._handovers.pop(to, None)

    async def change_membership(self, change: Change, timeout_s: float) -> Membership:
        """See `ReplicatedLog.change_membership`."""
        self._check_working()
        if change.is_done_in(self.node.log.committed_membership):
            return self.node.log.committed_membership
        wish = self._wishes.setdefault(change, _Wish(change))
        try:
            self._ask_for_change(wish)
            self._pump_soon()
            await wish.result(timeout_s)
        except TimeoutError:
            if wish.outcome is Changed.NOT_CAUGHT_UP:
                raise Unavailable(
                    f"kernel {self.kernel}: {change.member} has not caught up with the log within "
                    f"{timeout_s:g} s; try again"
                ) from None
            raise self._no_majority(timeout_s) from None
        finally:
            if wish.count == 0:
                self._wishes.pop(change, None)
        return self.node.log.committed_membership

    # -- what came of it ---------------------------------------------------------------------

    def finished(self, ready: Ready) -> None:
        """The member has done all of `ready`."""
        if ready.snapshot is not None:
            self._done_index = ready.snapshot.meta.index
        if ready.committed:
            self._done_index = ready.committed[-1].index
        for proposal_id in ready.expired:
            if proposal := self._proposals.get(proposal_id):
                proposal.fail(self._expired())
        for wish in self._wishes.values():
            if wish.change.is_done_in(self.node.log.committed_membership):
                wish.finish(None)
        for result in ready.reads:
            if read := self._reads.get(result.read_id):
                read.index = result.index
        for read in self._reads.values():
            if read.index is not None and read.index <= self._done_index:
                read.finish(read.index)

    def delivered(self, entries: Iterable[Entry]) -> None:
        """These proposals are committed and known here."""
        for entry in entries:
            self._first_proposed.pop(entry.proposal_id, None)
            if proposal := self._proposals.get(entry.proposal_id):
                proposal.finish(entry.index)

    def leader_seen(self, leader: str) -> None:
        """Another member leads."""
        if handover := self._handovers.get(HostId(host_of(leader))):
            handover.finish(None)
        self.ask_again()

    def fail(self, error: NotebookOSError) -> None:
        """Nothing will come of anything."""
        waiters: list[_Waiter[int] | _Waiter[None]] = [
            *self._proposals.values(),
            *self._reads.values(),
            *self._handovers.values(),
            *self._wishes.values(),
        ]
        for waiter in waiters:
            waiter.fail(type(error)(error.message))

    def ask_again(self) -> None:
        """Ask for whatever is still open."""
        for proposal_id, proposal in self._proposals.items():
            if proposal.is_open:
                outcome = self._hand_on(proposal_id, proposal.payload)
                proposal.handed_on |= outcome is not Proposed.REFUSED
                if outcome is Proposed.EXPIRED:
                    proposal.fail(self._expired())
                elif outcome is Proposed.COMMITTED and (index := self._known_at(proposal_id)):
                    # It came back in a snapshot.
                    proposal.finish(index)
        for read_id, read in self._reads.items():
            if read.index is None:
                self.node.read(read_id)
        for to, handover in self._handovers.items():
            if handover.is_open:
                self._ask_for_handover(to)
        for wish in self._wishes.values():
            if wish.is_open:
                self._ask_for_change(wish)

    def _hand_on(self, proposal_id: str, payload: bytes) -> Proposed:
        """Propose it, as new unless this member has handed it on before.

        What nobody was given yet can be in no log. A member that has just started knows of nothing
        that was committed while it was away: to date the id then would make it look too old.
        """
        since = self._first_proposed.get(proposal_id, self.node.heard_commit_index)
        outcome = self.node.propose(proposal_id, payload, since)
        if outcome in {Proposed.APPENDED, Proposed.FORWARDED}:
            self._first_proposed[proposal_id] = since
        return outcome

    def _known_at(self, proposal_id: str) -> int:
        """Where the application got it; 0 if it has not."""
        index = self.node.log.index_of(proposal_id) or 0
        return index if index <= self._done_index else 0

    def _ask_for_handover(self, to: HostId) -> None:
        member = self._voter_on(to)
        if member == self.node.me:
            self.node.campaign()
        elif member is not None:
            self.node.transfer(member)

    def _ask_for_change(self, wish: _Wish) -> None:
        try:
            wish.outcome = self.node.change_membership(wish.change)
        except InvalidRequest as error:
            wish.fail(error)

    def _voter_on(self, host: HostId) -> str | None:
        voters = self.node.log.membership.voters
        return next((member for member in voters if host_of(member) == host), None)

    def _expired(self) -> Refused:
        return Refused(
            f"kernel {self.kernel}: a log entry was proposed so long ago that nobody can tell any "
            "more whether it is committed; look at what is"
        )

    def _no_majority(self, timeout_s: float) -> NoMajority:
        leader = self.node.leader
        reason = "no member leads"
        if leader is not None:
            reason = f"{host_of(leader)} did not confirm it"
        return NoMajority(
            f"kernel {self.kernel}: {reason} within {timeout_s:g} s, because too few of its "
            f"{len(self.node.log.membership.voters)} members can be reached"
        )
