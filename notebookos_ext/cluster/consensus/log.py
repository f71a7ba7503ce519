"""One member's log in memory: what is appended, what of it is on disk, what is committed.

Entries are counted from 1. Three marks move over them: `durable_index` (the disk has it),
`commit_index` (a majority has it, for ever) and `delivered_index` (handed to the application).
Entries up to `base_index` are forgotten: a snapshot stands for them. What must outlive them, the
membership and the identities of proposals, is kept beside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from notebookos_ext.cluster.consensus.membership import Membership
from notebookos_ext.cluster.consensus.messages import Entry
from notebookos_ext.cluster.consensus.snapshot import SnapshotMeta
from notebookos_ext.errors import CorruptRecord, InvalidRequest

IDENTITIES_MAX = 4_096
"""How many forgotten proposals a log still knows; see `horizon`."""


class Log:
    """The entries of one member.

    Args:
        durable: the entries found on its disk at the start, those after `snapshot` if there is one.
        founders: the membership before the first entry; without meaning beside a snapshot.
        snapshot: what stands for the entries before.
        identities_max: how many forgotten proposals it remembers.
    """

    def __init__(
        self,
        durable: Iterable[Entry] = (),
        *,
        founders: Membership | None = None,
        snapshot: SnapshotMeta | None = None,
        identities_max: int = IDENTITIES_MAX,
    ) -> None:
        self._identities_max = identities_max
        self._unsaved_from: int | None = None
        self._stand_on(snapshot or SnapshotMeta(0, 0, founders or Membership()))
        for entry in durable:
            self._push(entry)
        self.durable_index = self.last_index
        self._unsaved_from = None

    def _stand_on(self, snapshot: SnapshotMeta) -> None:
        self.base_index = snapshot.index
        self.base_term = snapshot.term
        self.horizon = snapshot.horizon
        """All proposals committed above this index are known here."""
        self._entries: list[Entry] = []
        self._index_of = dict(snapshot.identities)
        self._memberships: list[tuple[int, Membership]] = [
            (snapshot.membership_index, snapshot.membership)
        ]
        self.commit_index = self.delivered_index = self.durable_index = snapshot.index

    # -- looking ---------------------------------------------------------------------------

    @property
    def first_index(self) -> int:
        """Index of the oldest entry that is not forgotten, whether or not it exists yet."""
        return self.base_index + 1

    @property
    def last_index(self) -> int:
        """Index of the newest entry, forgotten or not; 0 if there was never one."""
        return self.base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        """Term of the newest entry, 0 if there was never one."""
        return self._entries[-1].term if self._entries else self.base_term

    @property
    def membership(self) -> Membership:
        """The newest membership in the log, which is in force whether committed or not."""
        return self._memberships[-1][1]

    @property
    def membership_index(self) -> int:
        """Where that membership stands (0: the founders')."""
        return self._memberships[-1][0]

    @property
    def committed_membership(self) -> Membership:
        """The newest membership that can no longer be taken back."""
        return self._membership_at(self.commit_index)[1]

    @property
    def possible_memberships(self) -> list[Membership]:
        """The committed one and all after it, as far as this member knows what is committed.

        After a restart it knows little, so that all memberships in its log are possible.
        """
        return [m for at, m in self._memberships if at >= self._membership_at(self.commit_index)[0]]

    def has_lost(self, member: str) -> bool:
        """Whether it is committed that `member`, known as one from this log, is none any more.

        Who only joins may find memberships before its own in its log, and in a snapshot.
        """
        committed = [m for at, m in self._memberships if at <= self.commit_index]
        return (
            any(member in former.everybody for former in committed)
            and member not in committed[-1].everybody
            and member not in self.membership.everybody
        )

    def term_at(self, index: int) -> int:
        """Term of the entry at `index`; 0 before the first, -1 if it is forgotten or not there."""
        if index == self.base_index:
            return self.base_term
        if index < self.base_index or index > self.last_index:
            return -1
        return self._entries[index - self.first_index].term

    def matches(self, index: int, term: int) -> bool:
        """Whether the entry at `index` is the one of `term`, and so everything before it agrees."""
        return self.term_at(index) == term

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends like this may lead us (thesis 3.6.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def index_of(self, proposal_id: str) -> int | None:
        """Where a proposal stands in this log, committed or not; forgotten ones up to `horizon`."""
        return self._index_of.get(proposal_id)

    def entries(self, first: int, last: int) -> Sequence[Entry]:
        """The entries `first` to `last`, both included, as far as they are not forgotten."""
        return self._entries[max(first - self.first_index, 0) : max(last - self.base_index, 0)]

    def batch(self, first: int, bytes_max: int) -> tuple[Entry, ...]:
        """The entries from `first` on that fit in `bytes_max`, and at least one if there is one."""
        chosen: list[Entry] = []
        size = 0
        for position in range(first - self.first_index, len(self._entries)):
            entry = self._entries[position]
            size += len(entry.payload)
            if chosen and size > bytes_max:
                break
            chosen.append(entry)
        return tuple(chosen)

    def last_index_not_after(self, index: int, term: int) -> int:
        """The largest position at or below `index` whose term is at most `term`.

        Where two logs disagree, only positions like this can be common to both; one step skips a
        whole term of differences instead of one entry. What is forgotten here cannot be compared:
        a position below `base_index` means that entries will not do.
        """
        index = min(index, self.last_index)
        while index >= self.base_index and index > 0 and self.term_at(index) > term:
            index -= 1
        return index

    # -- growing ---------------------------------------------------------------------------

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

    # -- saving and delivering -------------------------------------------------------------

    def unsaved(self) -> Sequence[Entry]:
        """The entries that the disk does not have yet; saving them replaces what follows there."""
        if self._unsaved_from is None:
            return ()
        return self._entries[self._unsaved_from - self.first_index :]

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
        taken = tuple(self.entries(self.delivered_index + 1, end))
        self.delivered_index = end
        return taken

    # -- forgetting ------------------------------------------------------------------------

    def snapshot_at(self, index: int) -> SnapshotMeta:
        """What a snapshot must say that ends at `index`.

        Raises:
            InvalidRequest: that entry is forgotten, or not delivered yet.
        """
        if not self.base_index <= index <= self.delivered_index:
            raise InvalidRequest(
                f"no snapshot can end at {index}: this log has delivered entries "
                f"{self.first_index} to {self.delivered_index}"
            )
        known = list(takewhile(lambda item: item[1] <= index, self._index_of.items()))
        excess = len(known) - self._identities_max
        horizon = known[excess - 1][1] if excess > 0 else self.horizon
        membership_index, membership = self._membership_at(index)
        return SnapshotMeta(
            index=index,
            term=self.term_at(index),
            membership=membership,
            membership_index=membership_index,
            horizon=horizon,
            identities=tuple(known[max(excess, 0) :]),
        )

    def founding(self, member: str) -> SnapshotMeta:
        """What stands for all of this log, committed or not, where another group begins with it.

        For the group of one member that goes on when this one has lost its majority.
        """
        known = list(self._index_of.items())
        forgotten = known[: max(len(known) - self._identities_max, 0)]
        return SnapshotMeta(
            index=self.last_index,
            term=self.last_term,
            membership=Membership((member,)),
            membership_index=self.last_index,
            horizon=forgotten[-1][1] if forgotten else self.horizon,
            identities=tuple(known[len(forgotten) :]),
        )

    def compact(self, snapshot: SnapshotMeta) -> bool:
        """Forget what `snapshot`, made here, stands for; False if that has happened already."""
        if snapshot.index <= self.base_index:
            return False
        del self._entries[: snapshot.index - self.base_index]
        self.base_index, self.base_term = snapshot.index, snapshot.term
        later = [item for item in self._memberships if item[0] > snapshot.index]
        self._memberships = [(snapshot.membership_index, snapshot.membership), *later]
        self.horizon = snapshot.horizon
        self._index_of = {
            name: index for name, index in self._index_of.items() if index > self.horizon
        }
        return True

    def install(self, snapshot: SnapshotMeta) -> None:
        """Put a leader's snapshot in the place of this log, no entry of which it continues."""
        self._unsaved_from = None
        self._stand_on(snapshot)

    # -- within ----------------------------------------------------------------------------

    def _membership_at(self, index: int) -> tuple[int, Membership]:
        return next(item for item in reversed(self._memberships) if item[0] <= index)

    def _push(self, entry: Entry) -> None:
        if entry.index != self.last_index + 1:
            raise CorruptRecord(
                f"entry {entry.index} cannot follow entry {self.last_index} in this log"
            )
        self._entries.append(entry)
        if entry.is_proposal:
            self._index_of[entry.proposal_id] = entry.index
        if entry.membership is not None:
            self._memberships.append((entry.index, entry.membership))
        if self._unsaved_from is None:
            self._unsaved_from = entry.index

    def _truncate(self, first: int) -> None:
        if first <= self.commit_index:
            raise CorruptRecord(
                f"a leader contradicts entry {first}, but {self.commit_index} are committed: "
                "a member of this group lost part of its disk"
            )
        for entry in self._entries[first - self.first_index :]:
            self._index_of.pop(entry.proposal_id, None)
        del self._entries[first - self.first_index :]
        while self.membership_index >= first:
            self._memberships.pop()
        self.durable_index = min(self.durable_index, first - 1)
        if self._unsaved_from is not None:
            self._unsaved_from = min(self._unsaved_from, first)
