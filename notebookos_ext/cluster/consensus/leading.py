"""What exists only while a member leads: its followers' progress, open reads, a handover.

It appends to the log and says what to send; whether the member still leads is the node's business.
"""

from __future__ import annotations

from collections.abc import Sequence

from notebookos_ext.cluster.consensus.log import Log
from notebookos_ext.cluster.consensus.membership import (
    Change,
    Changed,
    ChangeKind,
    Membership,
    changed,
)
from notebookos_ext.cluster.consensus.messages import (
    Append,
    AppendAnswer,
    ChunkAnswer,
    Entry,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    TimeoutNow,
)
from notebookos_ext.cluster.consensus.progress import Progress
from notebookos_ext.cluster.consensus.quorum import agreed, majority
from notebookos_ext.cluster.consensus.reads import ReadResult, Reads
from notebookos_ext.cluster.consensus.ready import Proposed
from notebookos_ext.cluster.consensus.snapshot import OutgoingSnapshot, Snapshot

APPEND_BYTES_MAX = 256_000
"""Entries of one message; a single larger entry travels alone."""
PROBE_BYTES_MAX = 32_000
"""The same while the follower may refuse them."""
UNCOMMITTED_BYTES_MAX = 64_000_000
"""What a leader takes on while no majority confirms anything; then it refuses."""


class Leadership:
    """One leader in one term. Opening it appends the entry that opens the term (thesis 3.6.2)."""

    def __init__(self, *, me: str, term: int, log: Log) -> None:
        self._me = me
        self._term = term
        self._log = log
        self._followers: dict[str, Progress] = {}
        self._reads = Reads()
        self._beat_due = False
        self._window_ticks = 0
        self._transfer_target: str | None = None
        self._transfer_failed: str | None = None
        self._transfer_ticks = 0
        self._handover_sent = False
        self._outgoing: OutgoingSnapshot | None = None
        self._snapshot_asked = False
        self._last_words: list[Message] = []
        self._uncommitted_bytes = 0
        """Of proposals that this leader has appended itself."""
        self._opening_index = self._append("", b"")
        self._follow_membership()

    # -- looking ---------------------------------------------------------------------------

    @property
    def transferring(self) -> bool:
        """During a handover nothing new is accepted, so that the target can catch up."""
        return self._transfer_target is not None

    @property
    def has_opened(self) -> bool:
        """Whether an entry of this term is committed; only then is the commit index the truth."""
        return self._log.commit_index >= self._opening_index

    @property
    def is_removed(self) -> bool:
        """Whether the group has committed to go on without this leader (thesis 4.2.2)."""
        return not self._changing and self._me not in self._voters

    @property
    def everybody_has_everything(self) -> bool:
        """Nothing is left to send, to wait for or to answer."""
        last = self._log.last_index
        return (
            self._log.commit_index == last
            and not self._reads
            and not self.transferring
            and all(progress.match_index == last for progress in self._followers.values())
        )

    @property
    def sending_snapshot(self) -> bool:
        """Whether a follower is being sent a snapshot, or will be."""
        return any(
            progress.lacks_entries_before(self._log.first_index)
            for progress in self._followers.values()
        )

    @property
    def _voters(self) -> Sequence[str]:
        return self._log.membership.voters

    @property
    def _changing(self) -> bool:
        """Whether the membership in force could still be taken back by another leader."""
        return self._log.membership_index > self._log.commit_index

    # -- what is asked of a leader -----------------------------------------------------------

    def propose(self, proposal_id: str, payload: bytes, since: int) -> Proposed:
        """Append a proposal unless it is in the log already or may be among what is forgotten.

        No log ever holds a proposal twice: a leader appends only what its own log lacks, a leader's
        log has everything committed, and every other log is the beginning of a leader's. A
        proposal that was unknown to whoever made it when `since` was committed stands above it,
        and a log knows every proposal above its horizon.
        """
        if self._log.index_of(proposal_id) is not None:
            return Proposed.APPENDED
        if since < self._log.horizon:
            return Proposed.EXPIRED
        if self.transferring or self._uncommitted_bytes >= UNCOMMITTED_BYTES_MAX:
            return Proposed.REFUSED
        self._append(proposal_id, payload)
        return Proposed.APPENDED

    def change(self, change: Change, of_index: int) -> Changed:
        """Change the membership that stands at `of_index`.

        One change at a time, and none before an entry of this term is committed: otherwise leaders
        of two terms could each have a majority of a membership that the other does not know of.

        Raises:
            InvalidRequest: the change makes no sense.
        """
        if self.transferring or self._changing or not self.has_opened:
            return Changed.REFUSED
        if of_index != self._log.membership_index:
            return Changed.REFUSED
        wanted = changed(self._log.membership, change)
        if wanted == self._log.membership:
            return Changed.COMMITTED
        if change.kind is ChangeKind.PROMOTE:
            progress = self._followers.get(change.member)
            if progress is None or not progress.is_caught_up:
                return Changed.NOT_CAUGHT_UP
        self._append("", b"", wanted)
        self._follow_membership()
        return Changed.APPENDED

    def read(self, read_id: str, requester: str) -> list[ReadResult]:
        """Open a read; alone, a leader needs nobody's confirmation."""
        self._reads.add(read_id, requester, self._log.commit_index if self.has_opened else None)
        return self._reads_alone()

    def transfer(self, target: str) -> None:
        """Hand over to `target` once it has everything; given up after an election time-out.

        Who asks again gives it no more time, nor a second chance before it has caught up:
        meanwhile nothing is accepted.
        """
        if target == self._me or target not in self._voters:
            return
        if target == self._transfer_target:
            self._handover_sent = False
            return
        behind = self._followers[target].match_index < self._log.last_index
        if behind and target == self._transfer_failed:
            return
        self._transfer_target = target
        self._transfer_ticks = 0
        self._handover_sent = False

    # -- what happens ------------------------------------------------------------------------

    def own_log_saved(self) -> list[ReadResult]:
        """This member's own disk has more; alone it may be the majority."""
        return self._commit()

    def append_answered(self, answer: AppendAnswer) -> list[ReadResult]:
        """A follower took or refused entries."""
        progress = self._heard(answer.sender)
        if progress is None:
            return []
        if not answer.accepted:
            meeting = self._log.last_index_not_after(answer.hint_index, answer.hint_term)
            progress.refused(answer.index, meeting)
            return []
        if not progress.accepted(answer.index):
            return []
        self._let_go()
        return self._commit()

    def heartbeat_answered(self, answer: HeartbeatAnswer) -> list[ReadResult]:
        """A follower still follows."""
        progress = self._heard(answer.sender)
        if progress is None:
            return []
        progress.read_round = max(progress.read_round, answer.read_round)
        if progress.match_index < self._log.last_index:
            progress.ask_again()
        return self._confirmed_reads()

    def chunk_answered(self, answer: ChunkAnswer) -> None:
        """A follower has a snapshot up to some place."""
        progress = self._heard(answer.sender)
        if progress and self._outgoing and self._outgoing.snapshot_id == answer.snapshot_id:
            progress.chunk_answered(answer.offset)

    def woken(self) -> None:
        """The group has slept: who is there is found out anew."""
        self._beat_due = True
        self.begin_window()
        for progress in self._followers.values():
            progress.doubt()

    def begin_window(self) -> None:
        """Count from now on who is there."""
        self._window_ticks = 0
        self._snapshot_asked = False
        for progress in self._followers.values():
            progress.heard = False

    def tick(self, *, heartbeat_ticks: int, election_ticks: int) -> bool:
        """One tick; False when no majority was heard for an election time-out (thesis 6.2)."""
        self._window_ticks += 1
        if self._window_ticks % heartbeat_ticks == 0:
            self._beat_due = True
        if self.transferring:
            self._transfer_ticks += 1
            if self._transfer_ticks >= election_ticks:
                self._transfer_failed, self._transfer_target = self._transfer_target, None
        for progress in self._followers.values():
            progress.tick(self._log.last_index, election_ticks)
        self._let_go(election_ticks)
        if self._window_ticks < election_ticks:
            return True
        there = sum(voter == self._me or self._followers[voter].heard for voter in self._voters)
        self.begin_window()
        return there >= majority(len(self._voters))

    def member_lost(self, member: str) -> None:
        """Whatever was under way to `member` is lost."""
        if progress := self._followers.get(member):
            progress.disconnected()
        if self._transfer_target == member:
            self._transfer_target = None

    def member_back(self, member: str) -> None:
        """`member` can be reached again."""
        if progress := self._followers.get(member):
            progress.disconnected()
        self._beat_due = True

    # -- what to send --------------------------------------------------------------------------

    def rest(self) -> list[Message]:
        """The last messages before the group sleeps."""
        self._beat_due = False
        return [self._heartbeat(member, rest=True) for member in self._followers]

    def farewell(self) -> list[Message]:
        """A removed leader's last words: what is committed, and that the best voter should lead."""
        messages: list[Message] = [self._heartbeat(member) for member in self._followers]
        best = max(self._voters, key=lambda voter: self._followers[voter].match_index)
        return [*messages, TimeoutNow(self._me, best, self._term)]

    def outgoing(self) -> list[Message]:
        """What can be sent now; it never depends on what this member has still to save."""
        messages, self._last_words = self._last_words, []
        beat = self._beat_due or self._reads.needs_heartbeat
        for member, progress in self._followers.items():
            messages += self._data(member, progress)
            # Committed entries are told at once, so that every replica can apply them.
            news = min(progress.match_index, self._log.commit_index) > progress.told_commit_index
            if beat or news:
                messages.append(self._heartbeat(member))
            if (
                member == self._transfer_target
                and not self._handover_sent
                and progress.match_index == self._log.last_index
            ):
                self._handover_sent = True
                messages.append(TimeoutNow(self._me, member, self._term))
        if beat:
            self._beat_due = False
            self._reads.heartbeat_sent()
        return messages

    def take_snapshot_wish(self) -> int:
        """The index of the snapshot whose state is wanted, once per while; 0: none."""
        if not self.sending_snapshot:
            self._outgoing = None
            return 0
        if self._outgoing is not None or self._snapshot_asked:
            return 0
        self._snapshot_asked = True
        return self._log.base_index

    def provide_snapshot(self, snapshot: Snapshot | None) -> None:
        """What was wanted; None: another snapshot has taken its place, so ask again."""
        self._snapshot_asked = False
        if self._outgoing is None and snapshot is not None:
            self._outgoing = OutgoingSnapshot(snapshot)

    # -- within ----------------------------------------------------------------------------

    def _heard(self, member: str) -> Progress | None:
        progress = self._followers.get(member)
        if progress is not None:
            progress.answered()
        return progress

    def _append(
        self, proposal_id: str, payload: bytes, membership: Membership | None = None
    ) -> int:
        index = self._log.last_index + 1
        self._log.append(Entry(self._term, index, proposal_id, payload, membership))
        self._uncommitted_bytes += len(payload)
        return index

    def _follow_membership(self) -> None:
        """Follow everybody in force, beginning with the entry that was appended just now."""
        for member in self._log.membership.everybody:
            if member != self._me and member not in self._followers:
                self._followers[member] = Progress(self._log.last_index)

    def _let_go(self, patience_ticks: int | None = None) -> None:
        """Whoever has left is a follower until it knows of it, or is silent for that long."""
        if self._changing:
            return
        everybody = self._log.membership.everybody
        for member in [m for m in self._followers if m not in everybody]:
            progress = self._followers[member]
            knows = progress.match_index >= self._log.membership_index
            if knows or (patience_ticks is not None and progress.silent_ticks >= patience_ticks):
                self._last_words.append(self._heartbeat(member))
                del self._followers[member]

    def _data(self, member: str, progress: Progress) -> list[Message]:
        if progress.lacks_entries_before(self._log.first_index):
            return self._chunk(member, progress)
        messages: list[Message] = []
        while progress.may_send and progress.next_index <= self._log.last_index:
            batch = self._log.batch(
                progress.next_index, PROBE_BYTES_MAX if progress.probing else APPEND_BYTES_MAX
            )
            messages.append(self._append_message(member, progress, batch))
        if progress.check_due and not messages:
            messages.append(self._append_message(member, progress, ()))
        return messages

    def _chunk(self, member: str, progress: Progress) -> list[Message]:
        progress.begin_snapshot()
        if self._outgoing is not None and progress.match_index >= self._outgoing.meta.index:
            # It has that snapshot, and the log has forgotten more since.
            self._outgoing = None
            self._snapshot_asked = False
        if self._outgoing is None or not progress.may_send:
            return []
        progress.chunk_sent()
        return [
            self._outgoing.chunk(
                sender=self._me, to=member, term=self._term, offset=progress.snapshot_offset
            )
        ]

    def _append_message(
        self, member: str, progress: Progress, entries: tuple[Entry, ...]
    ) -> Append:
        previous = progress.next_index - 1
        progress.sent(previous + len(entries), sum(len(entry.payload) for entry in entries))
        progress.told_commit_index = max(
            progress.told_commit_index, min(self._log.commit_index, progress.match_index)
        )
        return Append(
            sender=self._me,
            to=member,
            term=self._term,
            previous_index=previous,
            previous_term=self._log.term_at(previous),
            entries=entries,
            commit_index=self._log.commit_index,
        )

    def _heartbeat(self, member: str, *, rest: bool = False) -> Heartbeat:
        progress = self._followers[member]
        commit_index = min(progress.match_index, self._log.commit_index)
        progress.told_commit_index = commit_index
        return Heartbeat(
            sender=self._me,
            to=member,
            term=self._term,
            commit_index=commit_index,
            read_round=self._reads.read_round,
            rest=rest,
        )

    def _commit(self) -> list[ReadResult]:
        index = agreed(
            self._log.durable_index if voter == self._me else self._followers[voter].match_index
            for voter in self._voters
        )
        before = self._log.commit_index
        # Entries of earlier terms are committed only by one of this term above them (thesis 3.6.2).
        if self._log.term_at(index) != self._term or not self._log.commit_to(index):
            return []
        for entry in self._log.entries(max(before + 1, self._opening_index), index):
            self._uncommitted_bytes -= len(entry.payload)
        self._let_go()
        self._reads.opened(self._log.commit_index)
        return self._reads_alone()

    def _reads_alone(self) -> list[ReadResult]:
        if tuple(self._voters) != (self._me,) or not self.has_opened:
            return []
        self._reads.heartbeat_sent()
        return self._confirmed_reads()

    def _confirmed_reads(self) -> list[ReadResult]:
        if not self._reads:
            return []
        return self._reads.confirmed(
            self._reads.round_sent if voter == self._me else self._followers[voter].read_round
            for voter in self._voters
        )
