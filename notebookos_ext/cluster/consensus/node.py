"""One member of a Raft group as a step machine: message, tick or proposal in, `Ready` out.

It knows no clock (time is ticks), no socket, no disk, and draws chance from what it is given. Its
driver does, in this order: send `Ready.early`; save `Ready.hard_state`, `Ready.snapshot` and
`Ready.entries`, all or nothing; send `Ready.messages`; call `saved`; hand on the snapshot's state
and `Ready.committed`.

What differs from the thesis: a group in which everybody has everything *rests*, that is, it sends
nothing and counts no time until somebody speaks or a host is lost. Its driver must therefore say
when a host is lost and when it is back. A wrong report costs an election, never safety.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Sequence

from notebookos_ext.cluster.consensus.answers import (
    needs_snapshot,
    take_append,
    verified_up_to,
)
from notebookos_ext.cluster.consensus.log import IDENTITIES_MAX, Log
from notebookos_ext.cluster.consensus.membership import Change, Changed, Membership
from notebookos_ext.cluster.consensus.messages import (
    PAYLOAD_BYTES_MAX,
    Append,
    AppendAnswer,
    ChangeRequest,
    ChunkAnswer,
    Entry,
    HardState,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    Propose,
    ProposeRefused,
    ReadAnswer,
    ReadRequest,
    SnapshotChunk,
    TermMessage,
    TimeoutNow,
    TransferRequest,
    VoteAnswer,
    VoteRequest,
)
from notebookos_ext.cluster.consensus.reads import ReadResult
from notebookos_ext.cluster.consensus.ready import Proposed, Ready, Role, Timing
from notebookos_ext.cluster.consensus.snapshot import IncomingSnapshot, Snapshot, SnapshotMeta
from notebookos_ext.cluster.consensus.voter import Voter
from notebookos_ext.errors import CorruptRecord, InvalidRequest


class Node(Voter):
    """A member named `me`, as its disk remembers it.

    Args:
        me: its name, which no member with another disk ever had.
        members: the voters with whom the group was founded; empty for a member that joins later
            and learns from the leader who belongs to the group.
        rng: spreads time-outs.
        hard_state: what its disk holds, and
        snapshot: the newest snapshot there, and
        entries: the entries after that.
        identities_max: how many proposals it remembers from before its snapshot.

    Raises:
        InvalidRequest: it is not among the founders.
    """

    def __init__(
        self,
        *,
        me: str,
        members: Sequence[str],
        rng: random.Random,
        timing: Timing | None = None,
        hard_state: HardState | None = None,
        snapshot: SnapshotMeta | None = None,
        entries: Iterable[Entry] = (),
        identities_max: int = IDENTITIES_MAX,
    ) -> None:
        if (members and me not in members) or len(set(members)) != len(members):
            raise InvalidRequest(f"{me!r} cannot be a member of the group {list(members)}")
        log = Log(
            entries,
            founders=Membership(tuple(members)),
            snapshot=snapshot,
            identities_max=identities_max,
        )
        super().__init__(me=me, log=log, rng=rng, timing=timing, hard_state=hard_state)
        self.snapshot = snapshot
        """The newest snapshot on this member's disk."""
        self._heard_commit_index = 0
        self._incoming = IncomingSnapshot()
        self._installed: Snapshot | None = None
        self._reads: list[ReadResult] = []
        self._refused: list[str] = []
        self._expired: list[str] = []
        self._handlers: dict[type, Callable[..., None]] = {
            VoteRequest: self._on_vote_request,
            VoteAnswer: self._on_vote_answer,
            Append: self._on_append,
            AppendAnswer: self._on_append_answer,
            Heartbeat: self._on_heartbeat,
            HeartbeatAnswer: self._on_heartbeat_answer,
            SnapshotChunk: self._on_snapshot_chunk,
            ChunkAnswer: self._on_chunk_answer,
            TimeoutNow: self._on_timeout_now,
            Propose: self._on_propose,
            ProposeRefused: self._on_propose_refused,
            ReadRequest: self._on_read_request,
            ReadAnswer: self._on_read_answer,
            TransferRequest: self._on_transfer_request,
            ChangeRequest: self._on_change_request,
        }

    # -- looking ---------------------------------------------------------------------------

    @property
    def members(self) -> tuple[str, ...]:
        """Voters and learners of the membership in force."""
        return self.log.membership.everybody

    @property
    def is_removed(self) -> bool:
        """Whether the group has committed to go on without this member; it is of no more use."""
        return self.log.has_lost(self.me)

    @property
    def heard_commit_index(self) -> int:
        """How far the group has committed, by what this member was told; see `propose`."""
        return max(self._heard_commit_index, self.log.commit_index)

    @property
    def sending_snapshot(self) -> bool:
        """Whether a follower needs this leader's snapshot; another one now would not help it."""
        return self._leadership is not None and self._leadership.sending_snapshot

    # -- what happens to a member ------------------------------------------------------------

    def step(self, message: Message) -> None:
        """A message arrived. What is not for this member is ignored.

        Its sender need not be a member here: this log may not say yet that it became one. Whatever
        needs a majority counts members only.

        Raises:
            CorruptRecord: the message proves that a disk of this group lost acknowledged entries.
        """
        if message.to != self.me or message.sender == self.me:
            return
        if not isinstance(message, HeartbeatAnswer):
            self._wake()
        if not isinstance(message, TermMessage) or self._is_of_this_term(message):
            self._handlers[type(message)](message)

    def propose(self, proposal_id: str, payload: bytes, since: int | None = None) -> Proposed:
        """Try to have `payload` committed; the same `proposal_id` is never committed twice.

        Args:
            since: what `heard_commit_index` was when this id was first proposed, by this member or
                another; None for an id that is new. Logs forget identities, and by this a leader
                tells whether it could have forgotten this one.

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
        if since is None:
            since = self.heard_commit_index
        if self._leadership is not None:
            return self._leadership.propose(proposal_id, payload, since)
        if self.leader is None:
            return Proposed.REFUSED
        self._messages.append(Propose(self.me, self.leader, proposal_id, payload, since))
        return Proposed.FORWARDED

    def change_membership(self, change: Change) -> Changed:
        """Ask for one change, until it `is_done_in` the committed membership of this log.

        Raises:
            InvalidRequest: it would leave nobody to decide, or promotes a stranger. Only a leader
                can tell.
        """
        self._wake()
        of_index = self.log.membership_index
        if self._leadership is not None:
            return self._leadership.change(change, of_index)
        if self.leader is None:
            return Changed.REFUSED
        self._messages.append(ChangeRequest(self.me, self.leader, change, of_index))
        return Changed.FORWARDED

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
            candidates = [m for m in self.log.membership.voters if m not in self._lost]
            self._timeout_ticks = self._timing.stagger_ticks * self._rank(self.me, candidates)
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
                self._step_down_if_removed()
        self._vote_saved(ready.hard_state)

    # -- snapshots -----------------------------------------------------------------------------

    def snapshot_at(self, index: int) -> SnapshotMeta:
        """What is to be saved beside the application's state after entry `index`.

        When both are on disk, and the entries after `index` with them, call `compact`.

        Raises:
            InvalidRequest: `index` is not delivered, or forgotten already.
        """
        return self.log.snapshot_at(index)

    def compact(self, snapshot: SnapshotMeta) -> None:
        """Forget the entries that `snapshot`, which is on disk, stands for."""
        if self.log.compact(snapshot):
            self.snapshot = snapshot

    def provide_snapshot(self, index: int, state: bytes) -> None:
        """The state of the snapshot that `Ready.snapshot_wanted` asked for."""
        if self._leadership is not None and self.snapshot is not None:
            fits = self.snapshot.index == index
            self._leadership.provide_snapshot(Snapshot(self.snapshot, state) if fits else None)

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
        installed, self._installed = self._installed, None
        entries = tuple(self.log.unsaved())
        self.log.mark_handed_out()
        committed = self.log.take_deliverable()
        messages, self._messages = tuple(self._messages), []
        reads, self._reads = tuple(self._reads), []
        refused, self._refused = tuple(self._refused), []
        expired, self._expired = tuple(self._expired), []
        wanted = self._leadership.take_snapshot_wish() if self._leadership else 0
        ready = Ready(
            early=early,
            hard_state=hard_state,
            snapshot=installed,
            entries=entries,
            messages=messages,
            committed=committed,
            reads=reads,
            refused=refused,
            expired=expired,
            snapshot_wanted=wanted,
        )
        return None if ready == _NOTHING else ready

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
        answer = take_append(append, self.log, self.me)
        self._messages.append(answer)
        if answer.accepted:
            # The logs meet, so no snapshot is needed any more.
            self._incoming.forget()
        self._heard_committed(append.commit_index)

    def _on_heartbeat(self, beat: Heartbeat) -> None:
        self._hear_leader(beat.sender)
        self.log.commit_to(beat.commit_index)
        self._heard_committed(beat.commit_index)
        if beat.rest and self.log.commit_index == self.log.last_index == beat.commit_index:
            self.resting = beat.sender not in self._lost
            return
        self._messages.append(HeartbeatAnswer(self.me, beat.sender, self.term, beat.read_round))

    def _on_snapshot_chunk(self, chunk: SnapshotChunk) -> None:
        self._hear_leader(chunk.sender)
        self._heard_committed(chunk.index)
        if needs_snapshot(chunk, self.log):
            snapshot = self._incoming.take(chunk)
            if snapshot is None:
                held = self._incoming.held_bytes(chunk.snapshot_id)
                self._messages.append(
                    ChunkAnswer(self.me, chunk.sender, self.term, chunk.snapshot_id, held)
                )
                return
            self.log.install(snapshot.meta)
            self.snapshot = snapshot.meta
            self._installed = snapshot
        # What is committed here is what the leader has.
        self._messages.append(verified_up_to(self.log.commit_index, chunk, self.me))

    def _heard_committed(self, index: int) -> None:
        self._heard_commit_index = max(self._heard_commit_index, index)

    # -- leading -------------------------------------------------------------------------------

    def _on_append_answer(self, answer: AppendAnswer) -> None:
        if self._leadership is not None:
            self._finish_reads(self._leadership.append_answered(answer))
            self._step_down_if_removed()

    def _on_heartbeat_answer(self, answer: HeartbeatAnswer) -> None:
        if self._leadership is not None:
            self._finish_reads(self._leadership.heartbeat_answered(answer))

    def _on_chunk_answer(self, answer: ChunkAnswer) -> None:
        if self._leadership is not None:
            self._leadership.chunk_answered(answer)

    def _on_propose(self, proposal: Propose) -> None:
        outcome = Proposed.REFUSED
        if self._leadership is not None:
            outcome = self._leadership.propose(
                proposal.proposal_id, proposal.payload, proposal.since
            )
        if outcome is not Proposed.APPENDED:
            expired = outcome is Proposed.EXPIRED
            self._messages.append(
                ProposeRefused(self.me, proposal.sender, proposal.proposal_id, expired)
            )

    def _on_propose_refused(self, refusal: ProposeRefused) -> None:
        (self._expired if refusal.expired else self._refused).append(refusal.proposal_id)

    def _on_read_request(self, request: ReadRequest) -> None:
        if self._leadership is not None:
            self._finish_reads(self._leadership.read(request.read_id, request.sender))

    def _on_read_answer(self, answer: ReadAnswer) -> None:
        self._reads.append(ReadResult(answer.read_id, self.me, answer.index))

    def _on_transfer_request(self, request: TransferRequest) -> None:
        if self._leadership is not None:
            self._leadership.transfer(request.target)

    def _on_change_request(self, request: ChangeRequest) -> None:
        if self._leadership is not None:
            # Whoever asks sees from the membership that nothing came of it.
            with contextlib.suppress(InvalidRequest):
                self._leadership.change(request.change, request.of_index)

    def _step_down_if_removed(self) -> None:
        leadership = self._leadership
        if leadership is not None and leadership.is_removed:
            self._early += leadership.outgoing()
            self._early += leadership.farewell()
            self._follow(self.term, None)

    def _finish_reads(self, results: Iterable[ReadResult]) -> None:
        for result in results:
            if result.requester == self.me:
                self._reads.append(result)
            else:
                self._messages.append(
                    ReadAnswer(self.me, result.requester, result.read_id, result.index)
                )


_NOTHING = Ready()
