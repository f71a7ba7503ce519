"""Terms, votes and elections: the part of a member that decides who leads (thesis 3.4, 4.2, 9.6).

`Node` adds what members do while somebody leads.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from notebookos_ext.cluster.consensus.answers import refuse_older_term
from notebookos_ext.cluster.consensus.election import Election
from notebookos_ext.cluster.consensus.leading import Leadership
from notebookos_ext.cluster.consensus.log import Log
from notebookos_ext.cluster.consensus.messages import (
    Append,
    HardState,
    Heartbeat,
    Message,
    SnapshotChunk,
    TermMessage,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
)
from notebookos_ext.cluster.consensus.ready import Role, Timing


class Voter:
    """A member as far as elections go. Members who may not vote are asked by nobody."""

    def __init__(
        self,
        *,
        me: str,
        log: Log,
        rng: random.Random,
        timing: Timing | None,
        hard_state: HardState | None,
    ) -> None:
        self.me = me
        self.log = log
        self.role = Role.FOLLOWER
        self.leader: str | None = None
        self.resting = False
        self._timing = timing or Timing()
        self._rng = rng
        self._hard_state = hard_state or HardState()
        self._saved_hard_state = self._hard_state
        self._leadership: Leadership | None = None
        self._election: Election | None = None
        self._put_off: VoteRequest | None = None
        self._lost: set[str] = set()
        self._silent_ticks = 0
        self._idle_ticks = 0
        self._timeout_ticks = 0
        self._messages: list[Message] = []
        self._early: list[Message] = []
        self._restart_timer()

    @property
    def term(self) -> int:
        """The newest term this member knows of."""
        return self._hard_state.term

    @property
    def vote(self) -> str:
        """Whom it voted for in that term; empty: nobody."""
        return self._hard_state.vote

    @property
    def lost(self) -> frozenset[str]:
        """The members whose hosts were reported lost and not yet back."""
        return frozenset(self._lost.intersection(self.log.membership.everybody))

    @property
    def may_stand(self) -> bool:
        """Whether it may lead as far as it knows.

        That a member leaves may still be taken back until it is committed, and until then the
        leaving member may be the only one whose log is new enough to lead (thesis 4.2.2).
        """
        return any(self.me in membership.voters for membership in self.log.possible_memberships)

    # -- time ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """One tick of time has passed."""
        if self.resting:
            return
        self._silent_ticks += 1
        if self._leadership is not None:
            self._tick_as_leader(self._leadership)
        elif self._silent_ticks >= self._timeout_ticks:
            self._begin_pre_election()
        elif self._election and self._silent_ticks % self._timing.heartbeat_ticks == 0:
            self._ask_for_votes(self._election)

    def _tick_as_leader(self, leadership: Leadership) -> None:
        timing = self._timing
        supported = leadership.tick(
            heartbeat_ticks=timing.heartbeat_ticks, election_ticks=timing.election_ticks
        )
        if not supported:
            self._follow(self.term, None)
            return
        self._idle_ticks += 1
        if (
            self._idle_ticks >= timing.rest_ticks
            and not self.lost
            and leadership.everybody_has_everything
        ):
            self._early += leadership.rest()
            self.resting = True

    def _wake(self) -> None:
        self._idle_ticks = 0
        if not self.resting:
            return
        self.resting = False
        self._silent_ticks = 0
        if self._leadership is not None:
            self._leadership.woken()

    def _restart_timer(self) -> None:
        self._silent_ticks = 0
        shortest = self._timing.retry_ticks if self.leader is None else self._timing.election_ticks
        self._timeout_ticks = self._rng.randrange(shortest, 2 * shortest)

    # -- terms and roles -----------------------------------------------------------------------

    def _is_of_this_term(self, message: TermMessage) -> bool:
        """Whether the message counts; moves to its term first if that is newer."""
        if message.term < self.term:
            refusal = refuse_older_term(message, self.me, self.term)
            if refusal is not None:
                self._messages.append(refusal)
            return False
        if message.term == self.term:
            return True
        if isinstance(message, VoteRequest):
            if self._defends_leader(message):
                self._put_off = message if message.pre else None
                return False
            if message.pre:
                return True
        if isinstance(message, VoteAnswer) and message.pre and message.granted:
            return True
        leads = isinstance(message, Append | Heartbeat | SnapshotChunk)
        self._follow(message.term, message.sender if leads else None)
        return True

    def _defends_leader(self, request: VoteRequest) -> bool:
        """A member that heard its leader lately takes part in no election (thesis 4.2.3)."""
        if request.transfer or self.leader is None or self.leader in self._lost:
            return False
        return self._leadership is not None or self._silent_ticks < self._timing.election_ticks

    def _follow(self, term: int, leader: str | None) -> None:
        if term > self.term:
            self._hard_state = HardState(term, "")
        self.role = Role.FOLLOWER
        self.leader = leader
        self.resting = False
        self._put_off = None
        self._leadership = None
        self._election = None
        self._restart_timer()

    def _lead(self) -> None:
        self.role = Role.LEADER
        self.leader = self.me
        self._election = None
        self._leadership = Leadership(me=self.me, term=self.term, log=self.log)

    # -- elections -----------------------------------------------------------------------------

    def _begin_pre_election(self) -> None:
        if not self.may_stand:
            # All it can do is to wait for somebody who leads.
            self._follow(self.term, None)
            return
        self._stand(Role.PRE_CANDIDATE, pre=True)
        self._count_vote(self.me, granted=True)

    def _begin_election(self, *, transfer: bool = False) -> None:
        self._hard_state = HardState(self.term + 1, self.me)
        # Its own vote counts when it is on disk: see `_vote_saved`.
        self._stand(Role.CANDIDATE, pre=False, transfer=transfer)

    def _stand(self, role: Role, *, pre: bool, transfer: bool = False) -> None:
        self.role = role
        self.leader = None
        self.resting = False
        self._election = Election(
            me=self.me,
            voters=self.log.membership.voters,
            term=self.term + 1 if pre else self.term,
            pre=pre,
            transfer=transfer,
        )
        self._restart_timer()
        self._ask_for_votes(self._election)

    def _ask_for_votes(self, election: Election) -> None:
        self._messages += election.requests(self.log.last_index, self.log.last_term)

    def _vote_saved(self, hard_state: HardState | None) -> None:
        """A vote is on disk; if it is this candidate's for itself, it counts now."""
        if self.role is Role.CANDIDATE and hard_state == HardState(self.term, self.me):
            self._count_vote(self.me, granted=True)

    def _count_vote(self, voter: str, *, granted: bool) -> None:
        if self._election is None:
            return
        self._election.count(voter, granted=granted)
        if not self._election.is_won:
            return
        if self._election.pre:
            self._begin_election()
        else:
            self._lead()

    def _on_vote_request(self, request: VoteRequest) -> None:
        may_vote = request.term > self.term or (
            self.vote in {request.sender, ""} and self.leader is None
        )
        granted = (
            may_vote
            and self.log.is_up_to_date(request.last_index, request.last_term)
            and not (request.pre and self._stands_before(request))
        )
        if granted:
            if request.pre:
                # Let the other one try first, so that two do not split the votes.
                if self._election is not None and self._election.pre:
                    self._follow(self.term, None)
                patience = 2 * self._timing.stagger_ticks
                self._timeout_ticks = max(self._timeout_ticks, self._silent_ticks + patience)
            else:
                self._hard_state = HardState(self.term, request.sender)
                self._restart_timer()
        term = request.term if granted else self.term
        self._messages.append(
            VoteAnswer(self.me, request.sender, term, pre=request.pre, granted=granted)
        )

    def _stands_before(self, request: VoteRequest) -> bool:
        """Of two that ask at the same time with equal logs, the first in rank goes on."""
        return (
            self._election is not None
            and self._election.pre
            and (request.last_index, request.last_term) == (self.log.last_index, self.log.last_term)
            and self._rank(self.me) < self._rank(request.sender)
        )

    def _rank(self, member: str, among: Sequence[str] | None = None) -> int:
        voters = self.log.membership.voters if among is None else among
        return voters.index(member) if member in voters else len(voters)

    def _on_vote_answer(self, answer: VoteAnswer) -> None:
        election = self._election
        if election is None or election.pre != answer.pre:
            return
        if not answer.granted or answer.term == election.term:
            self._count_vote(answer.sender, granted=answer.granted)

    def _on_timeout_now(self, message: TimeoutNow) -> None:
        if self.role is Role.FOLLOWER and self.leader == message.sender and self.may_stand:
            self._begin_election(transfer=True)
