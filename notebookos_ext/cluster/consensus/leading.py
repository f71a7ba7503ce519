"""What exists only while a member leads: its followers' progress, open reads, a handover.

It appends to the log and says what to send; whether the member still leads is the node's business.
"""

from __future__ import annotations

from collections.abc import Sequence

from notebookos_ext.cluster.consensus.log import Log
from notebookos_ext.cluster.consensus.messages import (
    Append,
    AppendAnswer,
    Entry,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    TimeoutNow,
)
from notebookos_ext.cluster.consensus.progress import Progress
from notebookos_ext.cluster.consensus.quorum import agreed, majority
from notebookos_ext.cluster.consensus.reads import ReadResult, Reads

APPEND_BYTES_MAX = 256_000
"""Entries of one message; a single larger entry travels alone."""
PROBE_BYTES_MAX = 32_000
"""The same while the follower may refuse them."""


class Leadership:
    """One leader in one term. Opening it appends the entry that opens the term (thesis 3.6.2)."""

    def __init__(self, *, me: str, members: Sequence[str], term: int, log: Log) -> None:
        self._me = me
        self._members = tuple(members)
        self._term = term
        self._log = log
        self._followers = {
            member: Progress(log.last_index + 1) for member in members if member != me
        }
        self._reads = Reads()
        self._beat_due = False
        self._window_ticks = 0
        self._transfer_target: str | None = None
        self._transfer_ticks = 0
        self._handover_sent = False
        self._opening_index = self._append("", b"")

    @property
    def transferring(self) -> bool:
        """During a handover nothing new is accepted, so that the target can catch up."""
        return self._transfer_target is not None

    @property
    def has_opened(self) -> bool:
        """Whether an entry of this term is committed; only then is the commit index the truth."""
        return self._log.commit_index >= self._opening_index

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

    def propose(self, proposal_id: str, payload: bytes) -> bool:
        """Append a proposal unless it is in the log already; False while handing over.

        No log ever holds a proposal twice: a leader appends only what its own log lacks, a leader's
        log has everything committed, and every other log is the beginning of a leader's.
        """
        if self.transferring:
            return False
        if self._log.index_of(proposal_id) is None:
            self._append(proposal_id, payload)
        return True

    def own_log_saved(self) -> list[ReadResult]:
        """This member's own disk has more; alone it may be the majority."""
        return self._commit()

    def append_answered(self, answer: AppendAnswer) -> list[ReadResult]:
        """A follower took or refused entries."""
        progress = self._followers[answer.sender]
        progress.heard = True
        if not answer.accepted:
            meeting = self._log.last_index_not_after(answer.hint_index, answer.hint_term)
            progress.refused(answer.index, meeting)
            return []
        if not progress.accepted(answer.index):
            return []
        return self._commit()

    def heartbeat_answered(self, answer: HeartbeatAnswer) -> list[ReadResult]:
        """A follower still follows."""
        progress = self._followers[answer.sender]
        progress.heard = True
        progress.read_round = max(progress.read_round, answer.read_round)
        if progress.match_index < self._log.last_index:
            progress.ask_again()
        return self._confirmed_reads()

    def read(self, read_id: str, requester: str) -> list[ReadResult]:
        """Open a read; alone, a leader needs nobody's confirmation."""
        self._reads.add(read_id, requester, self._log.commit_index if self.has_opened else None)
        if not self._followers and self.has_opened:
            self._reads.heartbeat_sent()
            return self._confirmed_reads()
        return []

    def transfer(self, target: str) -> None:
        """Hand over to `target` once it has everything; given up after an election time-out."""
        if target == self._me or target not in self._followers:
            return
        self._transfer_target = target
        self._transfer_ticks = 0
        self._handover_sent = False

    def heartbeat_due(self) -> None:
        """The next messages include a heartbeat for everybody."""
        self._beat_due = True

    def begin_window(self) -> None:
        """Count from now on who is there."""
        self._window_ticks = 0
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
                self._transfer_target = None
        if self._window_ticks < election_ticks:
            return True
        there = 1 + sum(progress.heard for progress in self._followers.values())
        self.begin_window()
        return there >= majority(len(self._members))

    def member_lost(self, member: str) -> None:
        """Whatever was under way to `member` is lost."""
        self._followers[member].disconnected()
        if self._transfer_target == member:
            self._transfer_target = None

    def member_back(self, member: str) -> None:
        """`member` can be reached again."""
        self._followers[member].disconnected()
        self._beat_due = True

    def rest(self) -> list[Message]:
        """The last messages before the group sleeps."""
        self._beat_due = False
        return [self._heartbeat(member, rest=True) for member in self._followers]

    def outgoing(self) -> list[Message]:
        """What can be sent now; it never depends on what this member has still to save."""
        messages: list[Message] = []
        beat = self._beat_due or self._reads.needs_heartbeat
        for member, progress in self._followers.items():
            appends = self._appends(member, progress)
            messages += appends
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

    def _append(self, proposal_id: str, payload: bytes) -> int:
        index = self._log.last_index + 1
        self._log.append(Entry(self._term, index, proposal_id, payload))
        return index

    def _appends(self, member: str, progress: Progress) -> list[Message]:
        messages: list[Message] = []
        while progress.may_send and progress.next_index <= self._log.last_index:
            batch = self._log.batch(
                progress.next_index, PROBE_BYTES_MAX if progress.probing else APPEND_BYTES_MAX
            )
            messages.append(self._append_message(member, progress, batch))
        if progress.check_due and not messages:
            messages.append(self._append_message(member, progress, ()))
        return messages

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
        matches = (progress.match_index for progress in self._followers.values())
        index = agreed([self._log.durable_index, *matches])
        # Entries of earlier terms are committed only by one of this term above them (thesis 3.6.2).
        if self._log.term_at(index) != self._term or not self._log.commit_to(index):
            return []
        self._reads.opened(self._log.commit_index)
        if self._followers:
            return []
        self._reads.heartbeat_sent()
        return self._confirmed_reads()

    def _confirmed_reads(self) -> list[ReadResult]:
        if not self._reads:
            return []
        return self._reads.confirmed(p.read_round for p in self._followers.values())
