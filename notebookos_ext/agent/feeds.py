"""Hands the deltas that count to one replica process, in log order, as fast as it takes them."""

from __future__ import annotations

import asyncio
import bisect

from notebookos_ext.agent.history import Generation, History
from notebookos_ext.agent.replica_link import ReplicaLink
from notebookos_ext.cluster.entries import LeadEntry
from notebookos_ext.cluster.messages.replica import Apply

AT_ONCE = 64
"""A long replay gives way to others after this many deltas."""


class Feed:
    """One replica's place in its kernel's history.

    Proposals whose id begins with `mark` were made by this very process: it has them already.
    """

    def __init__(self, history: History, link: ReplicaLink, *, epoch: int, mark: str) -> None:
        self._history = history
        self._link = link
        self._epoch = epoch
        self._mark = mark
        self._source: Generation | None = None
        self._passed: list[Generation] = []
        """Former ones, all of which was sent and not all of which was applied."""
        self._folded_sent = 0
        self._next = 0
        self._continuing = False
        self.applied_index = 0
        self._progress = asyncio.Event()

    @property
    def is_current(self) -> bool:
        """Whether the replica has said that it has everything that is committed here."""
        return self._same_epoch and self.applied_index >= self._history.last_delta_index

    @property
    def all_sent(self) -> bool:
        """Whether everything that is committed here was written to the replica."""
        source = self._source
        return source is self._history.generation and self._has_all_of(source)

    @property
    def is_stranded(self) -> bool:
        """Whether the log has forgotten what this replica lacks: it must begin anew."""
        last = self._source
        if last is None or last.last_delta_index == 0:
            return False
        while last.next is not None:
            last = last.next
        return self._same_epoch and last is not self._history.generation

    @property
    def busy_with(self) -> tuple[Generation, ...]:
        """Generations of which the replica may still load something."""
        if self.is_current or self._source is None:
            return ()
        return (*self._passed, self._source)

    @property
    def _same_epoch(self) -> bool:
        return self._history.ledger.epoch == self._epoch

    def pump(self) -> None:
        """Send what the replica does not have yet, unless its socket is full."""
        if not self._same_epoch:
            # Either it starts later, or it is about to be stopped.
            return
        left = AT_ONCE
        while left and not self._link.is_full and (apply := self._take()) is not None:
            self._link.send(apply)
            left -= 1
        if not left and not self._link.is_full and not self._continuing:
            self._continuing = True
            asyncio.get_running_loop().call_soon(self._continue)

    def _take(self) -> Apply | None:
        """The next that the replica lacks; None if there is nothing now."""
        source = self._source
        if source is None or source.last_delta_index == 0:
            source = self._begin_with(self._history.generation)
        while self._has_all_of(source) and source.next is not None:
            source = self._go_on(source, source.next)
        if self._folded_sent < len(source.folded):
            folded = source.folded[self._folded_sent]
            self._folded_sent += 1
            ledger = self._history.ledger
            return Apply(
                index=folded.index,
                delta=folded.delta,
                attempt=ledger.last_attempt,
                executor=ledger.executor,
                own=False,
            )
        if self._next == len(source.deltas):
            return None
        committed = source.deltas[self._next]
        self._next += 1
        own = committed.raw.proposal_id.startswith(self._mark)
        return Apply(
            index=committed.raw.index,
            delta=None if own else self._history.delta(committed),
            attempt=committed.attempt,
            executor=committed.executor,
            own=own,
        )

    def _has_all_of(self, source: Generation) -> bool:
        return self._folded_sent == len(source.folded) and self._next == len(source.deltas)

    def _begin_with(self, generation: Generation) -> Generation:
        self._source = generation
        self._folded_sent = self._next = 0
        return generation

    def _go_on(self, former: Generation, later: Generation) -> Generation:
        """What was folded is in the former one, all of which was sent."""
        self._source = later
        self._passed.append(former)
        self._folded_sent = len(later.folded)
        self._next = bisect.bisect_right(
            later.deltas, former.last_delta_index, key=lambda delta: delta.raw.index
        )
        return later

    def stand_down(self, lead: LeadEntry, index: int) -> bool:
        """Tell the replica that another one leads now, unless what comes first is still unsent.

        Returns whether it was told.
        """
        if not (self._same_epoch and self.all_sent):
            return False
        self._link.send(
            Apply(
                index=index,
                delta=None,
                attempt=lead.attempt,
                executor=lead.replica,
                own=False,
            )
        )
        return True

    def applied(self, index: int) -> None:
        """The replica says that it has everything up to `index`."""
        self.applied_index = max(self.applied_index, index)
        while self._passed and self._passed[0].last_delta_index <= self.applied_index:
            del self._passed[0]
        self._progress.set()

    async def caught_up(self, patience_s: float | None) -> bool:
        """Wait until the replica has everything; False without progress for `patience_s`."""
        while not self.is_current:
            self._progress.clear()
            try:
                await asyncio.wait_for(self._progress.wait(), patience_s)
            except TimeoutError:
                return False
        return True

    def _continue(self) -> None:
        self._continuing = False
        self.pump()
