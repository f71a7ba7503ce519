"""One member of a Raft group as a step machine: message, tick or proposal in, `Ready` out.

It knows no clock (time is ticks), no socket, no disk, and draws chance from what it is given. Its
driver does, in this order: send `Ready.early`, save `Ready.hard_state` and `Ready.entries`, send
`Ready.messages`, call `saved`, hand on `Ready.committed`.

What differs from the thesis: a group in which everybody has everything *rests*, that is, it sends
nothing and counts no time until somebody speaks or a host is lost. Its driver must therefore say
when a host is lost and when it is back. A wrong report costs an election, never safety.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from notebookos_ext.cluster.consensus.answers import refuse_older_term, take_append
from notebookos_ext.cluster.consensus.election import Election
from notebookos_ext.cluster.consensus.leading import Leadership
from notebookos_ext.cluster.consensus.log import Log
from notebookos_ext.cluster.consensus.messages import (
    PAYLOAD_BYTES_MAX,
    Append,
    AppendAnswer,
    Entry,
    HardState,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    Propose,
    ProposeRefused,
    ReadAnswer,
    ReadRequest,
    TermMessage,
    TimeoutNow,
    TransferRequest,
    VoteAnswer,
    VoteRequest,
)
from notebookos_ext.cluster.consensus.reads import ReadResult
from notebookos_ext.cluster.consensus.ready import Proposed, Ready, Role, Timing
from notebookos_ext.errors import CorruptRecord, InvalidRequest


class Node:
    """A member named `me` of the group `members`, as its disk remembers it."""

    def __init__(
        self,
        *,
        me: str,
        members: Sequence[str],
        rng: random.Random,
        timing: Timing | None = None,
        hard_state: HardState | None = None,
        entries: Iterable[Entry] = (),
    ) -> None:
        if me not in members or len(set(members)) != len(members):
            raise InvalidRequest(f"{me!r} cannot be a member of the group {list(members)}")
        self.me = me
        self.members = tuple(members)
        self.log = Log(entries)
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
        self._reads: list[ReadResult] = []
        self._refused: list[str] = []
        self._handlers: dict[type, Callable[..., None]] = {
            VoteRequest: self._on_vote_request,
            VoteAnswer: self._on_vote_answer,
            Append: self._on_append,
            AppendAnswer: self._on_append_answer,
            Heartbeat: self._on_heartbeat,
            HeartbeatAnswer: self._on_heartbeat_answer,
            TimeoutNow: self._on_timeout_now,
            Propose: self._on_propose,
            ProposeRefused: self._on_propose_refused,
            ReadRequest: self._on_read_request,
            ReadAnswer: self._on_read_answer,
            TransferRequest: self._on_transfer_request,
        }
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
        return frozenset(self._lost)

    # -- what happens to a member ------------------------------------------------------------

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

    def step(self, message: Message) -> None:
        """A message arrived; anything that is not for this group's member is ignored.

        Raises:
            CorruptRecord: the message proves that a disk of this group lost acknowledged entries.
        """
        if message.to != self.me or message.sender not in self.members or message.sender == self.me:
            return
        if not isinstance(message, HeartbeatAnswer):
            self._wake()
        if not isinstance(message, TermMessage) or self._is_of_this_term(message):
            self._handlers[type(message)](message)

    def propose(self, proposal_id: str, payload: bytes) -> Proposed:
        """Try to have `payload` committed; the same `proposal_id` is never committed twice.

        Raises:
            InvalidRequest: the payload is too large for the log, or the id is empty.
        """
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise InvalidRequest(
                f"a log entry of {len(payload):,} bytes is over the limit of "
                f"{PAYLOAD_BYTES_MAX:,}; put its large parts into the checkpoint store"
            )
        if not proposal_id:
            raise InvalidRequest("a proposal needs an id of its own, so that it can be retried")
        index = self.log.index_of(proposal_id)
        if index is not None and index <= self.log.delivered_index:
            return Proposed.COMMITTED
        self._wake()
        if self._leadership is not None:
            accepted = self._leadership.propose(proposal_id, payload)
            return Proposed.APPENDED if accepted else Proposed.REFUSED
        if self.leader is None:
            return Proposed.REFUSED
        self._messages.append(Propose(self.me, self.leader, proposal_id, payload))
        return Proposed.FORWARDED

    def read(self, read_id: str) -> bool:
        """Ask up to where to apply before a read; False if nobody leads. Ask again if in doubt."""
        self._wake()
        if self._leadership is not None:
            self._finish_reads(self._leadership.read(read_id, self.me))
        elif self.leader is not None:
            self._messages.append(ReadRequest(self.me, self.leader, read_id))
        return self.leader is not None

    def transfer(self, target: str) -> None:
        """Ask the leader to hand over to `target`; nothing happens if nobody leads."""
        self._wake()
        if self._leadership is not None:
            self._leadership.transfer(target)
        elif self.leader is not None and self.leader != target:
            self._messages.append(TransferRequest(self.me, self.leader, target))

    def campaign(self) -> None:
        """Try to lead now: ask the leader to hand over, or if there is none begin an election."""
        if self._leadership is not None:
            return
        if self.leader is not None:
            self.transfer(self.me)
        else:
            self._wake()
            self._begin_pre_election()

    def member_lost(self, member: str) -> None:
        """The host of `member` is gone or cannot be reached from here."""
        if member not in self.members or member == self.me or member in self._lost:
            return
        self._lost.add(member)
        if self._leadership is not None:
            self._wake()
            self._leadership.member_lost(member)
        elif self.leader == member:
            self._wake()
            self.leader = None
            self._silent_ticks = 0
            candidates = [other for other in self.members if other not in self._lost]
            self._timeout_ticks = self._timing.stagger_ticks * candidates.index(self.me)
            if self._timeout_ticks == 0:
                self._begin_pre_election()
            if self._put_off is not None:
                # Its sender noticed the loss before this member did.
                self.step(self._put_off)

    def member_back(self, member: str) -> None:
        """The host of `member` can be reached again."""
        if member not in self._lost:
            return
        self._lost.discard(member)
        if self._leadership is not None:
            self._wake()
            self._leadership.member_back(member)
        elif self._election is not None:
            self._ask_for_votes(self._election)

    def saved(self, ready: Ready) -> None:
        """What `ready` wanted saved is on disk, so this member's own vote and entries count."""
        if ready.entries:
            self.log.mark_durable(ready.entries[-1].index, ready.entries[-1].term)
            if self._leadership is not None:
                self._finish_reads(self._leadership.own_log_saved())
        if self.role is Role.CANDIDATE and ready.hard_state == HardState(self.term, self.me):
            self._count_vote(self.me, granted=True)

    # -- what a member wants done ------------------------------------------------------------

    def take_early(self) -> tuple[Message, ...]:
        """What may leave at any time, also while an earlier `Ready` is still being saved."""
        early, self._early = self._early, []
        if self._leadership is not None:
            early += self._leadership.outgoing()
        return tuple(early)

    def ready(self) -> Ready | None:
        """What is to be done now, or None; the one before must have been saved."""
        early = self.take_early()
        hard_state = None
        if self._hard_state != self._saved_hard_state:
            hard_state = self._saved_hard_state = self._hard_state
        entries = tuple(self.log.unsaved())
        self.log.mark_handed_out()
        committed = self.log.take_deliverable()
        messages, self._messages = tuple(self._messages), []
        reads, self._reads = tuple(self._reads), []
        refused, self._refused = tuple(self._refused), []
        if not (early or hard_state or entries or messages or committed or reads or refused):
            return None
        return Ready(early, hard_state, entries, messages, committed, reads, refused)

    # -- time ----------------------------------------------------------------------------------

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
            and not self._lost
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
            self._leadership.begin_window()
            self._leadership.heartbeat_due()

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
        leads = isinstance(message, Append | Heartbeat)
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
        self._leadership = Leadership(
            me=self.me, members=self.members, term=self.term, log=self.log
        )

    # -- elections -----------------------------------------------------------------------------

    def _begin_pre_election(self) -> None:
        self._stand(Role.PRE_CANDIDATE, pre=True)
        self._count_vote(self.me, granted=True)

    def _begin_election(self, *, transfer: bool = False) -> None:
        self._hard_state = HardState(self.term + 1, self.me)
        # Its own vote counts when it is on disk: see `saved`.
        self._stand(Role.CANDIDATE, pre=False, transfer=transfer)

    def _stand(self, role: Role, *, pre: bool, transfer: bool = False) -> None:
        self.role = role
        self.leader = None
        self.resting = False
        self._election = Election(
            me=self.me,
            members=self.members,
            term=self.term + 1 if pre else self.term,
            pre=pre,
            transfer=transfer,
        )
        self._restart_timer()
        self._ask_for_votes(self._election)

    def _ask_for_votes(self, election: Election) -> None:
        self._messages += election.requests(self.log.last_index, self.log.last_term)

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
            and self.members.index(self.me) < self.members.index(request.sender)
        )

    def _on_vote_answer(self, answer: VoteAnswer) -> None:
        election = self._election
        if election is None or election.pre != answer.pre:
            return
        if not answer.granted or answer.term == election.term:
            self._count_vote(answer.sender, granted=answer.granted)

    def _on_timeout_now(self, message: TimeoutNow) -> None:
        if self.role is Role.FOLLOWER and self.leader == message.sender:
            self._begin_election(transfer=True)

    # -- following -----------------------------------------------------------------------------

    def _hear_leader(self, leader: str) -> None:
        if self._leadership is not None:
            raise CorruptRecord(
                f"{self.me} and {leader} both lead in term {self.term}: "
                "a member of this group lost its vote"
            )
        if self.role is not Role.FOLLOWER or self.leader != leader:
            self._follow(self.term, leader)
        self._silent_ticks = 0
        self._put_off = None

    def _on_append(self, append: Append) -> None:
        self._hear_leader(append.sender)
        self._messages.append(take_append(append, self.log, self.me))

    def _on_heartbeat(self, beat: Heartbeat) -> None:
        self._hear_leader(beat.sender)
        self.log.commit_to(beat.commit_index)
        if beat.rest and self.log.commit_index == self.log.last_index == beat.commit_index:
            self.resting = beat.sender not in self._lost
            return
        self._messages.append(HeartbeatAnswer(self.me, beat.sender, self.term, beat.read_round))

    # -- leading -------------------------------------------------------------------------------

    def _on_append_answer(self, answer: AppendAnswer) -> None:
        if self._leadership is not None:
            self._finish_reads(self._leadership.append_answered(answer))

    def _on_heartbeat_answer(self, answer: HeartbeatAnswer) -> None:
        if self._leadership is not None:
            self._finish_reads(self._leadership.heartbeat_answered(answer))

    def _on_propose(self, proposal: Propose) -> None:
        accepted = self._leadership is not None and self._leadership.propose(
            proposal.proposal_id, proposal.payload
        )
        if not accepted:
            self._messages.append(ProposeRefused(self.me, proposal.sender, proposal.proposal_id))

    def _on_propose_refused(self, refusal: ProposeRefused) -> None:
        self._refused.append(refusal.proposal_id)

    def _on_read_request(self, request: ReadRequest) -> None:
        if self._leadership is not None:
            self._finish_reads(self._leadership.read(request.read_id, request.sender))

    def _on_read_answer(self, answer: ReadAnswer) -> None:
        self._reads.append(ReadResult(answer.read_id, self.me, answer.index))

    def _on_transfer_request(self, request: TransferRequest) -> None:
        if self._leadership is not None:
            self._leadership.transfer(request.target)

    def _finish_reads(self, results: Iterable[ReadResult]) -> None:
        for result in results:
            if result.requester == self.me:
                self._reads.append(result)
            else:
                self._messages.append(
                    ReadAnswer(self.me, result.requester, result.read_id, result.index)
                )
