"""Which committed entries count: at most one executor per cell, nothing from a closed attempt.

The very same rules run in every host agent over the same committed entries, so all replicas agree
without talking (paper section on the executor election; design 4.3). Attempts are numbered per
kernel, upwards over all its cells, so an attempt number alone fences older ones.
"""

from __future__ import annotations

import msgspec

from notebookos_ext.cluster.entries import (
    BallotEntry,
    ClosedEntry,
    EpochEntry,
    LeadEntry,
    LogEntry,
    RestoredEntry,
    StateEntry,
)
from notebookos_ext.cluster.model import Outcome, ReplicaId


class LedgerState(msgspec.Struct, frozen=True, array_like=True):
    """All that a ledger knows."""

    epoch: int
    last_attempt: int
    lead: LeadEntry | None
    executor: ReplicaId | None
    fenced_attempt: int
    restored: int = 0


class Ledger:
    """Folds a kernel's committed entries, in log order."""

    def __init__(self) -> None:
        self.epoch = 0
        self.last_attempt = 0
        self.lead: LeadEntry | None = None
        """The open attempt, else None."""
        self.executor: ReplicaId | None = None
        """Who led the last attempt of this epoch; None before the first."""
        self._fenced_attempt = 0
        """Attempts up to this one were given up before their LEAD was committed."""
        self.restored = 0
        """How many pieces of the state with which the log begins have counted."""

    @property
    def state(self) -> LedgerState:
        """To go on from later, or elsewhere."""
        return LedgerState(
            self.epoch,
            self.last_attempt,
            self.lead,
            self.executor,
            self._fenced_attempt,
            self.restored,
        )

    def restore(self, state: LedgerState) -> None:
        """Go on from there."""
        self.epoch = state.epoch
        self.last_attempt = state.last_attempt
        self.lead = state.lead
        self.executor = state.executor
        self._fenced_attempt = state.fenced_attempt
        self.restored = state.restored

    def begin_with(self, state: LedgerState) -> None:
        """Go on where the log of another group ended, after all pieces of its state have counted.

        Nobody leads, and whoever did is no executor here.
        """
        pieces = self.restored
        self.restore(state)
        self.lead = self.executor = None
        self.restored = pieces

    def accept(self, entry: LogEntry) -> bool:
        """Take one entry in; False means that it does not count and must be ignored everywhere."""
        if isinstance(entry, EpochEntry):
            return self._new_epoch(entry)
        if isinstance(entry, RestoredEntry):
            return self._restored(entry)
        if entry.epoch != self.epoch:
            return False
        if isinstance(entry, LeadEntry):
            return self._new_lead(entry)
        if isinstance(entry, BallotEntry):
            return self._may_lead(entry.attempt)
        if isinstance(entry, ClosedEntry):
            return self._closed(entry)
        return self._state(entry)

    def _new_epoch(self, entry: EpochEntry) -> bool:
        if entry.epoch <= self.epoch:
            return False
        self.epoch = entry.epoch
        self.lead = None
        self.executor = None
        return True

    def _restored(self, entry: RestoredEntry) -> bool:
        begun = self.epoch or self.last_attempt or self._fenced_attempt
        if begun or entry.part != self.restored:
            return False
        self.restored += 1
        return True

    def _new_lead(self, entry: LeadEntry) -> bool:
        if not self._may_lead(entry.attempt):
            return False
        self.last_attempt = entry.attempt
        self.lead = entry
        self.executor = entry.replica
        return True

    def _may_lead(self, attempt: int) -> bool:
        return self.lead is None and attempt > max(self.last_attempt, self._fenced_attempt)

    def _closed(self, entry: ClosedEntry) -> bool:
        lead = self.lead
        if entry.outcome is Outcome.LOST and entry.attempt > self.last_attempt:
            # Its LEAD, from somebody who gave up waiting, is still under way; it must not count.
            self._fenced_attempt = max(self._fenced_attempt, entry.attempt)
            return True
        if lead is None or (lead.cell, lead.attempt, lead.replica) != (
            entry.cell,
            entry.attempt,
            entry.replica,
        ):
            return False
        self.lead = None
        return True

    def _state(self, entry: StateEntry) -> bool:
        return entry.replica == self.executor and entry.after_attempt == self.last_attempt
