"""Hands the deltas that count to one replica process, in log order, as fast as it takes them."""

from __future__ import annotations

import asyncio

from notebookos_ext.agent.history import History
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
        self._next = 0
        self._sent_index = 0
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
        return self._next >= len(self._history.deltas)

    @property
    def _same_epoch(self) -> bool:
        return self._history.ledger.epoch == self._epoch

    def pump(self) -> None:
        """Send what the replica does not have yet, unless its socket is full."""
        if not self._same_epoch:
            # Either it starts later, or it is about to be stopped.
            return
        deltas = self._history.deltas
        stop = min(len(deltas), self._next + AT_ONCE)
        while self._next < stop and not self._link.is_full:
            committed = deltas[self._next]
            self._next += 1
            index = committed.raw.index
            own = committed.raw.proposal_id.startswith(self._mark)
            if own and self.applied_index >= self._sent_index:
                # It has all before as well: nothing to say, and nothing to wait for.
                self.applied(index)
                continue
            self._sent_index = index
            self._link.send(
                Apply(
                    index=index,
                    delta=None if own else self._history.delta(committed),
                    attempt=committed.attempt,
                    executor=committed.executor,
                    own=own,
                )
            )
        if self._next < len(deltas) and not self._link.is_full and not self._continuing:
            self._continuing = True
            asyncio.get_running_loop().call_soon(self._continue)

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
