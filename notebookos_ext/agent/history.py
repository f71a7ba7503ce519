"""What the committed entries of one kernel amount to on this host.

Entries are folded in log order through the ledger, whose verdicts are the same on every host. The
deltas that count in the present epoch are kept, so that a new replica can be told all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from notebookos_ext.cluster.consensus.messages import Entry
from notebookos_ext.cluster.entries import (
    ClosedEntry,
    Delta,
    EpochEntry,
    LogEntry,
    StateEntry,
    decode_entry,
)
from notebookos_ext.cluster.ledger import Ledger
from notebookos_ext.cluster.model import KernelId, Outcome, ReplicaId
from notebookos_ext.errors import CorruptRecord

log = logging.getLogger(__name__)

REMEMBERED_VERDICTS = 1024


class Verdict(msgspec.Struct, frozen=True):
    """Where a proposal was committed, and whether it counts."""

    index: int
    counts: bool


class CommittedDelta(msgspec.Struct, frozen=True):
    """A delta that counts, still as the log has it."""

    raw: Entry
    attempt: int
    executor: ReplicaId


class History:
    """One kernel's committed entries, folded. `on_change` is called after entries were taken in."""

    def __init__(self, kernel: KernelId, log_key: bytes, *, on_change: Callable[[], None]) -> None:
        self.kernel = kernel
        self.ledger = Ledger()
        self.deltas: list[CommittedDelta] = []
        """Those of the present epoch, in log order."""
        self.folded_index = 0
        self._log_key = log_key
        self._on_change = on_change
        self._verdicts: OrderedDict[str, Verdict] = OrderedDict()
        self._outcomes: OrderedDict[int, Outcome] = OrderedDict()
        self._newest: tuple[int, Delta | None] = (0, None)
        self._epoch_changed = asyncio.Event()

    @property
    def last_delta_index(self) -> int:
        """Log index of the newest delta that counts; 0 if there is none in this epoch."""
        return self.deltas[-1].raw.index if self.deltas else 0

    def verdict(self, proposal_id: str) -> Verdict | None:
        """What became of a proposal of not long ago; None while it is not committed here."""
        return self._verdicts.get(proposal_id)

    def outcome(self, attempt: int) -> Outcome | None:
        """How an attempt of not long ago was closed."""
        return self._outcomes.get(attempt)

    def delta(self, committed: CommittedDelta) -> Delta | None:
        """The delta itself; the newest one is at hand, an older one is decoded again."""
        index, newest = self._newest
        if index == committed.raw.index:
            return newest
        return _delta_of(decode_entry(self.kernel, committed.raw.payload, self._log_key))

    async def epoch_reached(self, epoch: int) -> None:
        """Return when this epoch, or a later one, has begun."""
        while self.ledger.epoch < epoch:
            self._epoch_changed.clear()
            await self._epoch_changed.wait()

    def fold(self, entries: Sequence[Entry]) -> None:
        """Take committed entries in; those that were folded before are skipped."""
        before = self.folded_index
        for raw in entries:
            if raw.index > self.folded_index:
                self.folded_index = raw.index
                if raw.is_proposal:
                    self._fold_one(raw)
        if self.folded_index != before:
            self._on_change()

    def _fold_one(self, raw: Entry) -> None:
        try:
            entry = decode_entry(self.kernel, raw.payload, self._log_key)
        except (CorruptRecord, msgspec.DecodeError):
            # Every host sees the same bytes and ignores them alike.
            log.exception("entry %d of kernel %s is not used", raw.index, self.kernel)
            self._remember(raw, counts=False)
            return
        counts = self.ledger.accept(entry)
        self._remember(raw, counts=counts)
        if not counts:
            log.info(
                "entry %d of kernel %s does not count: %s", raw.index, self.kernel, _words(entry)
            )
            return
        if isinstance(entry, EpochEntry):
            self.deltas = []
            self._epoch_changed.set()
        elif isinstance(entry, ClosedEntry):
            self._outcomes[entry.attempt] = entry.outcome
            while len(self._outcomes) > REMEMBERED_VERDICTS:
                self._outcomes.popitem(last=False)
        if isinstance(entry, ClosedEntry | StateEntry) and entry.delta is not None:
            self.deltas.append(
                CommittedDelta(raw=raw, attempt=self.ledger.last_attempt, executor=entry.replica)
            )
            self._newest = (raw.index, entry.delta)

    def _remember(self, raw: Entry, *, counts: bool) -> None:
        self._verdicts[raw.proposal_id] = Verdict(index=raw.index, counts=counts)
        while len(self._verdicts) > REMEMBERED_VERDICTS:
            self._verdicts.popitem(last=False)


def _delta_of(entry: LogEntry) -> Delta | None:
    return entry.delta if isinstance(entry, ClosedEntry | StateEntry) else None


def _words(entry: LogEntry) -> str:
    """An entry for the agent's log, without anything of the user's data."""
    fields = {
        name: getattr(entry, name)
        for name in ("epoch", "cell", "attempt", "after_attempt", "replica", "outcome")
        if hasattr(entry, name)
    }
    return f"{type(entry).__name__} {fields}"
