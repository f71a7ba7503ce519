"""What a leader knows of one follower, and how much it may send it (thesis 10.2.1)."""

from __future__ import annotations

from collections import deque

IN_FLIGHT_MESSAGES_MAX = 64
IN_FLIGHT_BYTES_MAX = 8_000_000


class Progress:
    """*Probing*, one message at a time, until the logs are known to meet; then *streaming*.

    `match_index` is acknowledged; `next_index` is sent next. Streaming moves `next_index` on
    without waiting for answers, within the in-flight limits. A follower that lacks what the leader
    has forgotten gets a snapshot, one piece at a time, as if it were probed.
    """

    def __init__(self, next_index: int) -> None:
        self.match_index = 0
        self.next_index = next_index
        self.probing = True
        self.heard = False
        """Since the leader last counted who is there."""
        self.told_commit_index = 0
        """The commit index of the newest message to it."""
        self.read_round = 0
        """The last round of reads that it has echoed."""
        self.check_due = False
        """An Append without entries is wanted: refused, it shows that entries were lost."""
        self.snapshot_offset = 0
        """It has the snapshot that it is sent up to here."""
        self._round = CatchUpRound()
        self.silent_ticks = 0
        """Since it last said something."""
        self._probe_sent = False
        self._chunk_is_new = False
        self._in_flight: deque[tuple[int, int]] = deque()
        self._in_flight_bytes = 0

    @property
    def is_caught_up(self) -> bool:
        """Whether it lives and follows fast enough to be a voter."""
        return self._round.caught_up

    def tick(self, last_index: int, election_ticks: int) -> None:
        """One tick, at which the leader's log ends at `last_index`."""
        self.silent_ticks += 1
        self._round.tick(self.match_index, last_index, election_ticks)

    def doubt(self) -> None:
        """Whether it lives must show anew."""
        self._round = CatchUpRound()

    def answered(self) -> None:
        """It said something."""
        self.heard = True
        self.silent_ticks = 0
        self._round.heard = True

    @property
    def may_send(self) -> bool:
        """Whether another Append with entries may leave now."""
        if self.probing:
            return not self._probe_sent
        return (
            len(self._in_flight) < IN_FLIGHT_MESSAGES_MAX
            and self._in_flight_bytes < IN_FLIGHT_BYTES_MAX
        )

    def lacks_entries_before(self, first_index: int) -> bool:
        """Whether it needs a snapshot, the leader's log beginning at `first_index`."""
        return self.next_index < first_index

    def begin_snapshot(self) -> None:
        """What it needs is forgotten, so streaming is over."""
        if not self.probing:
            self._probe_at(self.match_index + 1)

    def chunk_sent(self) -> None:
        """A piece of a snapshot has left; the next one follows the answer."""
        self._probe_sent = True
        self._chunk_is_new = True

    def chunk_answered(self, offset: int) -> None:
        """It has the snapshot up to `offset`, less than before if it has restarted.

        What is no news answers a piece that was sent twice: to go on from it would send every
        later piece twice as well.
        """
        if offset != self.snapshot_offset:
            self.snapshot_offset = offset
            self._probe_sent = False

    def sent(self, last_index: int, size_bytes: int) -> None:
        """An Append that ends at `last_index` has left."""
        self.check_due = False
        self._chunk_is_new = False
        if self.probing:
            self._probe_sent = True
        elif last_index >= self.next_index:
            self.next_index = last_index + 1
            self._in_flight.append((last_index, size_bytes))
            self._in_flight_bytes += size_bytes

    def accepted(self, index: int) -> bool:
        """The follower verified its log up to `index`; True if that is news."""
        news = index > self.match_index
        self.match_index = max(self.match_index, index)
        self.next_index = max(self.next_index, self.match_index + 1)
        self.snapshot_offset = 0
        while self._in_flight and self._in_flight[0][0] <= index:
            self._in_flight_bytes -= self._in_flight.popleft()[1]
        if self.probing:
            # The logs are known to meet, so the rest can stream.
            self.probing = False
            self._probe_sent = False
            self.next_index = self.match_index + 1
        return news

    def refused(self, index: int, meeting_index: int) -> bool:
        """It has no matching entry at `index`; try `meeting_index`. False for an old refusal."""
        if self.probing:
            if index != self.next_index - 1:
                return False
        elif index <= self.match_index:
            return False
        self._probe_at(meeting_index + 1)
        return True

    def disconnected(self) -> None:
        """What was under way is lost; a guess where the logs meet is as good as before."""
        self.doubt()
        self._probe_at(self.next_index if self.probing else self.match_index + 1)

    def _probe_at(self, next_index: int) -> None:
        self.probing = True
        self.check_due = False
        self._probe_sent = False
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self.next_index = max(next_index, self.match_index + 1)

    def ask_again(self) -> None:
        """It lives and lacks something, so what was sent last may be lost: check it.

        A piece of a snapshot is given the time between two such signs to arrive.
        """
        if self._chunk_is_new:
            self._chunk_is_new = False
        elif self.probing:
            self._probe_sent = False
        else:
            self.check_due = True


class CatchUpRound:
    """Whether a learner would hold up the group as a voter (thesis 4.2.1).

    In one round it is given what the leader's log held at the round's beginning. If a round takes
    less than an election time-out, so will what is still missing.
    """

    def __init__(self) -> None:
        self.caught_up = False
        self.heard = False
        """It has answered since the round began."""
        self._goal_index: int | None = None
        self._ticks = 0

    def tick(self, match_index: int, last_index: int, election_ticks: int) -> None:
        """One tick, at which the learner has `match_index` of `last_index` entries."""
        self._ticks += 1
        if self._ticks > election_ticks:
            self.caught_up = False
        begun = self._goal_index is not None
        if not begun or (self.heard and match_index >= (self._goal_index or 0)):
            self.caught_up = begun and self._ticks <= election_ticks
            self.heard = False
            self._goal_index = last_index
            self._ticks = 0
