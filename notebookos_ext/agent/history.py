"""What the committed entries of one kernel amount to on this host.

Entries are folded in log order through the ledger, whose verdicts are the same on every host. The
deltas that count in the present epoch are kept, so that a new replica can be told all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from notebookos_ext.cluster.consensus.messages import Entry
from notebookos_ext.cluster.entries import (
    BallotEntry,
    ClosedEntry,
    Delta,
    EpochEntry,
    LogEntry,
    RestoredEntry,
    StateEntry,
    decode_entry,
)
from notebookos_ext.cluster.folding import FoldedDelta, fold
from notebookos_ext.cluster.ledger import Ledger, LedgerState
from notebookos_ext.cluster.model import KernelId, Outcome, ReplicaId
from notebookos_ext.cluster.snapshots import KernelSnapshot, unpack_snapshot
from notebookos_ext.errors import UNREADABLE, CorruptRecord

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
    log_key: bytes
    """What it is signed with: a kernel that goes on in a new group has another from then on."""


class Generation:
    """What a replica must be told that begins with nothing: folded deltas, then those since.

    A compaction begins a new generation. Who is being fed from the former one goes on with that,
    and then with the `next`, whose folded part ends where the former one does or before. A snapshot
    of another host begins one that is no other's next: what lies between is not known here.
    """

    def __init__(
        self,
        folded: tuple[FoldedDelta, ...] = (),
        folded_index: int = 0,
        deltas: Iterable[CommittedDelta] = (),
    ) -> None:
        self.folded = folded
        self.folded_index = folded_index
        """Up to this log index everything is in `folded`."""
        self.deltas = list(deltas)
        self.next: Generation | None = None

    @property
    def last_delta_index(self) -> int:
        """Log index of the newest delta; 0 if there is none."""
        if self.deltas:
            return self.deltas[-1].raw.index
        return self.folded[-1].index if self.folded else 0


class Frozen(msgspec.Struct, frozen=True):
    """A history as it was at one moment; `fold` may be called in another thread."""

    kernel: KernelId
    index: int
    ledger: LedgerState
    folded: tuple[FoldedDelta, ...]
    deltas: tuple[CommittedDelta, ...]
    verdicts: tuple[tuple[str, int, bool], ...]
    outcomes: tuple[tuple[int, Outcome], ...]

    def fold(self) -> KernelSnapshot:
        """The snapshot of that moment."""
        return KernelSnapshot(
            index=self.index,
            ledger=self.ledger,
            deltas=fold((*self.folded, *self._decoded())),
            verdicts=self.verdicts,
            outcomes=self.outcomes,
        )

    def chunk_digests(self) -> set[str]:
        """Every chunk that a replica needs to be brought up to this moment."""
        return {
            ref.digest
            for folded in (*self.folded, *self._decoded())
            for ref in folded.delta.all_chunk_refs()
        }

    def store_bytes(self) -> int:
        """The size of those chunks, each counted once."""
        sizes = {
            ref.digest: ref.size_bytes
            for folded in (*self.folded, *self._decoded())
            for ref in folded.delta.all_chunk_refs()
        }
        return sum(sizes.values())

    def names_that_need(self, digest: str) -> tuple[str, ...]:
        """The variables that cannot be loaded without this chunk."""
        return tuple(
            sorted(
                {
                    name
                    for folded in (*self.folded, *self._decoded())
                    for component in folded.delta.components
                    if any(ref.digest == digest for ref in component.chunk_refs())
                    for name in component.names
                }
            )
        )

    def _decoded(self) -> Iterator[FoldedDelta]:
        for committed in self.deltas:
            raw = committed.raw
            delta = _delta_of(decode_entry(self.kernel, raw.payload, committed.log_key))
            if delta is not None:
                yield FoldedDelta(raw.index, delta)


class History:
    """One kernel's committed entries, folded. `on_change` is called after entries were taken in."""

    def __init__(self, kernel: KernelId, log_key: bytes, *, on_change: Callable[[], None]) -> None:
        self.kernel = kernel
        self.ledger = Ledger()
        self.generation = Generation()
        """The deltas of the present epoch."""
        self.folded_index = 0
        self._log_key = log_key
        self._on_change = on_change
        self._verdicts: OrderedDict[str, Verdict] = OrderedDict()
        self._outcomes: OrderedDict[int, Outcome] = OrderedDict()
        self._newest: tuple[int, Delta | None] = (0, None)
        self._pieces: list[bytes] = []
        """Of the state with which the log begins, while not all of it is here."""
        self._epoch_changed = asyncio.Event()
        self.ballots: list[BallotEntry] = []
        """Those of the election that is open, in log order."""

    @property
    def last_delta_index(self) -> int:
        """Log index of the newest delta that counts; 0 if there is none in this epoch."""
        return self.generation.last_delta_index

    @property
    def deltas(self) -> list[CommittedDelta]:
        """Those of the present epoch that are not folded, in log order."""
        return self.generation.deltas

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
        payload = committed.raw.payload
        return _delta_of(decode_entry(self.kernel, payload, committed.log_key))

    def last_delta(self) -> Delta | None:
        """The newest that counts in this epoch."""
        if self.deltas:
            return self.delta(self.deltas[-1])
        folded = self.generation.folded
        return folded[-1].delta if folded else None

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

    # ---- snapshots -------------------------------------------------------------------------------

    @property
    def is_restoring(self) -> bool:
        """Whether the log begins with a state of which only some pieces are here."""
        return bool(self._pieces)

    def freeze(self, generation: Generation | None = None) -> Frozen:
        """As it is now; with `generation`, what that one consists of."""
        generation = generation or self.generation
        return Frozen(
            kernel=self.kernel,
            index=self.folded_index,
            ledger=self.ledger.state,
            folded=generation.folded,
            deltas=tuple(generation.deltas),
            verdicts=tuple((name, v.index, v.counts) for name, v in self._verdicts.items()),
            outcomes=tuple(self._outcomes.items()),
        )

    def forget(self, snapshot: KernelSnapshot) -> None:
        """Keep no more of what `snapshot`, made here, holds folded."""
        if snapshot.ledger.epoch == self.ledger.epoch:
            later = [d for d in self.generation.deltas if d.raw.index > snapshot.index]
            former = self.generation
            self.generation = former.next = Generation(snapshot.deltas, snapshot.index, later)

    def restore(self, index: int, snapshot: KernelSnapshot) -> bool:
        """Go on from a snapshot of the log up to `index`; False if all of it is known here."""
        if index <= self.folded_index:
            return False
        self.folded_index = index
        self.ledger.restore(snapshot.ledger)
        self.generation = Generation(snapshot.deltas, index)
        self._verdicts = OrderedDict(
            (name, Verdict(index=at, counts=counts)) for name, at, counts in snapshot.verdicts
        )
        self._outcomes = OrderedDict(snapshot.outcomes)
        self._pieces = []
        self.ballots.clear()
        self._epoch_changed.set()
        self._on_change()
        return True

    def with_tail(self, tail: Sequence[Entry]) -> History:
        """A history of its own that has taken these in too; nobody is told of it."""
        other = History(self.kernel, self._log_key, on_change=lambda: None)
        other.ledger.restore(self.ledger.state)
        present = self.generation
        other.generation = Generation(present.folded, present.folded_index, present.deltas)
        other.folded_index = self.folded_index
        other._verdicts = self._verdicts.copy()
        other._outcomes = self._outcomes.copy()
        other._pieces = [*self._pieces]
        other.fold(tail)
        return other

    @property
    def last_closed_attempt(self) -> int:
        """The newest attempt whose end is known; 0 if there is none."""
        return max(self._outcomes, default=0)

    def regroup(self, log_key: bytes, snapshot: KernelSnapshot, index: int) -> None:
        """Go on in a group with another key, whose log begins with `snapshot`, at `index`.

        It holds exactly what is known here; replicas that are being fed go on with what they had.
        """
        former = self.generation
        self.generation = former.next = Generation(snapshot.deltas, snapshot.index)
        self.folded_index = max(self.folded_index, index)
        self._log_key = log_key

    def _fold_one(self, raw: Entry) -> None:
        try:
            entry = decode_entry(self.kernel, raw.payload, self._log_key)
        except (CorruptRecord, *UNREADABLE):
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
        if isinstance(entry, BallotEntry):
            self._take_ballot(entry)
        elif not isinstance(entry, StateEntry):
            self.ballots.clear()
        if isinstance(entry, EpochEntry):
            self.generation = Generation(folded_index=raw.index)
            self._epoch_changed.set()
        elif isinstance(entry, RestoredEntry):
            self._take_piece(raw, entry)
        elif isinstance(entry, ClosedEntry):
            self._outcomes[entry.attempt] = entry.outcome
            while len(self._outcomes) > REMEMBERED_VERDICTS:
                self._outcomes.popitem(last=False)
        if isinstance(entry, ClosedEntry | StateEntry) and entry.delta is not None:
            self.deltas.append(
                CommittedDelta(
                    raw=raw,
                    attempt=self.ledger.last_attempt,
                    executor=entry.replica,
                    log_key=self._log_key,
                )
            )
            self._newest = (raw.index, entry.delta)

    def _take_ballot(self, entry: BallotEntry) -> None:
        if self.ballots and self.ballots[0].attempt != entry.attempt:
            self.ballots.clear()
        self.ballots.append(entry)

    def _take_piece(self, raw: Entry, piece: RestoredEntry) -> None:
        """The last one begins a generation, as if all of it had been folded here."""
        self._pieces.append(piece.data)
        if piece.part + 1 < piece.parts:
            return
        body, self._pieces = b"".join(self._pieces), []
        try:
            snapshot = unpack_snapshot(self.kernel, body)
        except CorruptRecord:
            # As above; who proposed it had read it.
            log.exception("the state with which kernel %s begins is not used", self.kernel)
            return
        self.ledger.begin_with(snapshot.ledger)
        deltas = tuple(FoldedDelta(0, folded.delta) for folded in snapshot.deltas[:-1])
        if snapshot.deltas:
            deltas += (FoldedDelta(raw.index, snapshot.deltas[-1].delta),)
        self.generation = Generation(deltas, raw.index)
        self._epoch_changed.set()

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
        for name in ("epoch", "cell", "attempt", "after_attempt", "replica", "outcome", "part")
        if hasattr(entry, name)
    }
    return f"{type(entry).__name__} {fields}"
