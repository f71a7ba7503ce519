"""Reads that see everything acknowledged before them, without writing to the log (thesis 6.4).

A leader notes its commit index, then asks everybody with one more heartbeat whether it still leads.
What a majority has confirmed may be read once that index is applied.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from notebookos_ext.cluster.consensus.quorum import agreed


class ReadResult(msgspec.Struct, frozen=True):
    """The read may be answered when everything up to `index` is applied."""

    read_id: str
    requester: str
    index: int


class _OpenRead(msgspec.Struct, frozen=True):
    read_id: str
    requester: str
    index: int
    read_round: int


class Reads:
    """The open reads of one leader in one term, in the order of their rounds."""

    def __init__(self) -> None:
        self._early: list[tuple[str, str]] = []
        self._open: list[_OpenRead] = []
        self.read_round = 0
        """The round that the next heartbeat asks about."""
        self._round_sent = 0

    def __bool__(self) -> bool:
        return bool(self._early or self._open)

    def add(self, read_id: str, requester: str, commit_index: int | None) -> None:
        """Open a read; without a `commit_index` the leader has not committed in its term yet."""
        if commit_index is None:
            self._early.append((read_id, requester))
            return
        if self.read_round == self._round_sent:
            self.read_round += 1
        self._open.append(_OpenRead(read_id, requester, commit_index, self.read_round))

    def opened(self, commit_index: int) -> None:
        """The leader has committed in its own term, so it knows what is committed."""
        early, self._early = self._early, []
        for read_id, requester in early:
            self.add(read_id, requester, commit_index)

    @property
    def needs_heartbeat(self) -> bool:
        """Whether a round was begun that nobody was asked about."""
        return self.read_round > self._round_sent

    def heartbeat_sent(self) -> None:
        """All followers were asked about the present round."""
        self._round_sent = self.read_round

    @property
    def round_sent(self) -> int:
        """The round that all followers were asked about, which the leader itself confirms."""
        return self._round_sent

    def confirmed(self, echoed: Iterable[int]) -> list[ReadResult]:
        """Take out what a majority has confirmed, given the last round each voter echoed."""
        certain = agreed(echoed)
        done = [read for read in self._open if read.read_round <= certain]
        self._open = self._open[len(done) :]
        return [ReadResult(read.read_id, read.requester, read.index) for read in done]
