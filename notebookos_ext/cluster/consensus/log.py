"""One member's log in memory: what is appended, what of it is on disk, what is committed.

Entries are counted from 1. Three marks move over them: `durable_index` (the disk has it),
`commit_index` (a majority has it, for ever) and `delivered_index` (handed to the application).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from notebookos_ext.cluster.consensus.messages import Entry
from notebookos_ext.errors import CorruptRecord


class Log:
    """The entries of one member. `durable` are those found on its disk at the start."""

    def __init__(self, durable: Iterable[Entry] = ()) -> None:
        self._entries: list[Entry] = []
        self._index_of: dict[str, int] = {}
        self._unsaved_from: int | None = None
        self.commit_index = 0
        self.delivered_index = 0
        for entry in durable:
            self._push(entry)
        self.durable_index = self.last_index
        self._unsaved_from = None

    @property
    def last_index(self) -> int:
        """Index of the newest entry, 0 if there is none."""
        return len(self._entries)

    @property
    def last_term(self) -> int:
        """Term of the newest entry, 0 if there is none."""
        return self._entries[-1].term if self._entries else 0

    def term_at(self, index: int) -> int:
        """Term of the entry at `index`; 0 before the first, -1 beyond the last."""
        if index == 0:
            return 0
        return self._entries[index - 1].term if index <= self.last_index else -1

    def matches(self, index: int, term: int) -> bool:
        """Whether the entry at `index` is the one of `term`, and so everything before it agrees."""
        return self.term_at(index) == term

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends like this may lead us (thesis 3.6.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def index_of(self, proposal_id: str) -> int | None:
        """Where a proposal stands in this log, committed or not."""
        return self._index_of.get(proposal_id)

    def entries(self, first: int, last: int) -> Sequence[Entry]:
        """The entries `first` to `last`, both included."""
        return self._entries[first - 1 : last]

    def batch(self, first: int, bytes_max: int) -> tuple[Entry, ...]:
        """The entries from `first` on that fit in `bytes_max`, and at least one if there is one."""
        chosen: list[Entry] = []
        size = 0
        for position in range(first - 1, self.last_index):
            entry = self._entries[position]
            size += len(entry.payload)
            if chosen and size > bytes_max:
                break
            chosen.append(entry)
        return tuple(chosen)

    def last_index_not_after(self, index: int, term: int) -> int:
        """The largest position at or below `index` whose term is at most `term`.

        Where two logs disagree, only positions like this can be common to both; one step skips a
        whole term of differences instead of one entry.
        """
        index = min(index, self.last_index)
        while index > 0 and self._entries[index - 1].term > term:
            index -= 1
        return index

    def append(self, entry: Entry) -> None:
        """Add one entry of this member's own (a leader's)."""
        self._push(entry)

    def merge(self, entries: Sequence[Entry]) -> None:
        """Take over a leader's entries, whose predecessor is known to match.

        What is already there stays untouched, however old the message: only an entry of another
        term at the same index is a conflict, and only a conflict removes what follows.

        Raises:
            CorruptRecord: a committed entry would have to go, so somebody's disk lost something.
        """
        for position, entry in enumerate(entries):
            if self.matches(entry.index, entry.term):
                continue
            if entry.index <= self.last_index:
                self._truncate(entry.index)
            for missing in entries[position:]:
                self._push(missing)
            return

    def commit_to(self, index: int) -> bool:
        """Move the commit mark forward; True if it moved.

        Raises:
            CorruptRecord: the leader counted entries that are not here, so this disk lost some.
        """
        if index <= self.commit_index:
            return False
        if index > self.last_index:
            raise CorruptRecord(
                f"this member's log ends at {self.last_index}, but it acknowledged entries up to "
                f"{index}: its disk lost some, so it must not take part any more"
            )
        self.commit_index = index
        return True

    def unsaved(self) -> Sequence[Entry]:
        """The entries that the disk does not have yet; saving them replaces what follows there."""
        if self._unsaved_from is None:
            return ()
        return self._entries[self._unsaved_from - 1 :]

    def mark_handed_out(self) -> None:
        """The entries of `unsaved` are on their way to the disk."""
        self._unsaved_from = None

    def mark_durable(self, index: int, term: int) -> None:
        """The disk has all up to the entry (`index`, `term`), if that is still in the log."""
        if index > self.durable_index and self.matches(index, term):
            self.durable_index = index

    def take_deliverable(self) -> tuple[Entry, ...]:
        """The committed and durable entries that were not handed out before."""
        end = min(self.commit_index, self.durable_index)
        if end <= self.delivered_index:
            return ()
        taken = tuple(self._entries[self.delivered_index : end])
        self.delivered_index = end
        return taken

    def _push(self, entry: Entry) -> None:
        if entry.index != self.last_index + 1:
            raise CorruptRecord(
                f"entry {entry.index} cannot follow entry {self.last_index} in this log"
            )
        self._entries.append(entry)
        if entry.is_proposal:
            self._index_of[entry.proposal_id] = entry.index
        if self._unsaved_from is None:
            self._unsaved_from = entry.index

    def _truncate(self, first: int) -> None:
        if first <= self.commit_index:
            raise CorruptRecord(
                f"a leader contradicts entry {first}, but {self.commit_index} are committed: "
                "a member of this group lost part of its disk"
            )
        for entry in self._entries[first - 1 :]:
            self._index_of.pop(entry.proposal_id, None)
        del self._entries[first - 1 :]
        self.durable_index = min(self.durable_index, first - 1)
        if self._unsaved_from is not None:
            self._unsaved_from = min(self._unsaved_from, first)
