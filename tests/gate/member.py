"""One member of a searched group: a real `Node` and its disk, and what each event makes of them.

There is no time. A time-out may happen whenever the search wants it; a tick of a leader sends
heartbeats, and ends its leadership if nobody has answered since the tick before; a follower defends
its leader against nobody; every learner is quick enough to be promoted. All this allows more than
the real timers do, never less.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec
from gate.copying import Copier

from notebookos_ext.cluster.consensus.membership import Change
from notebookos_ext.cluster.consensus.messages import Entry, HardState, Message
from notebookos_ext.cluster.consensus.node import Node
from notebookos_ext.cluster.consensus.reads import ReadResult
from notebookos_ext.cluster.consensus.ready import Ready, Role, Timing
from notebookos_ext.cluster.consensus.snapshot import Snapshot

NO_TIME = Timing(
    election_ticks=0, heartbeat_ticks=1, retry_ticks=0, stagger_ticks=0, rest_ticks=1_000_000
)
TIMERS = frozenset(
    {
        "_silent_ticks",
        "_idle_ticks",
        "_timeout_ticks",
        "_window_ticks",
        "_transfer_ticks",
        "_round",
    }
)
TWICE_THERE = frozenset({"_log"})
"""The node has the same."""
OUT_OF_REACH = frozenset({"_in_flight", "_in_flight_bytes"})
"""Far from their limits within any bounds."""
SHARED = frozenset({"_rng", "_timing", "_handlers"})

History = tuple[tuple[int, str], ...]
"""Term and name of each entry from the first on: a proposal's id, else what kind it is."""


class Ways(msgspec.Struct, frozen=True):
    """What can happen to the members of one search."""

    slow_disks: bool = False
    """Saves end when the search says so, else at once."""
    ticks: bool = False
    """Else it means nothing to a leader whom it heard."""
    repeats: bool = False
    """Else it means nothing what was committed when a proposal was made."""
    identities: int = 4
    """How many forgotten proposals a log remembers."""


def copier(ways: Ways) -> Copier:
    """With what is part of a state in such a search."""
    left_out = TIMERS | TWICE_THERE | OUT_OF_REACH
    left_out |= frozenset() if ways.ticks else {"heard"}
    left_out |= frozenset() if ways.repeats else {"_heard_commit_index"}
    return Copier(left_out=left_out, shared=SHARED)


COPIERS = {
    (ticks, repeats): copier(Ways(ticks=ticks, repeats=repeats))
    for ticks in (False, True)
    for repeats in (False, True)
}
COPIER = COPIERS[True, True]


class NoChance:
    """Stands in for a random source: every time-out is as short as can be."""

    def randrange(self, start: int, _stop: int) -> int:
        return start


def named(entries: Any) -> History:
    """What the history says of these entries."""
    return tuple((e.term, e.proposal_id or ("+" if e.membership else "")) for e in entries)


class Disk(msgspec.Struct, frozen=True):
    """What survives a crash: whole saves only, as in the real file."""

    hard_state: HardState = HardState()
    snapshot: Snapshot | None = None
    entries: tuple[Entry, ...] = ()

    @property
    def base_index(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.meta.index

    @property
    def forgotten(self) -> History:
        """What the snapshot stands for, which is what the application made of it."""
        return _told_by(self.snapshot)

    @property
    def history(self) -> History:
        return self.forgotten + named(self.entries)

    def after(self, ready: Ready) -> Disk:
        """With what `ready` wants saved."""
        disk = self
        if ready.snapshot is not None:
            disk = Disk(self.hard_state, ready.snapshot)
        entries = disk.entries
        if ready.entries:
            first = ready.entries[0].index - disk.base_index
            assert 0 < first <= len(entries) + 1, f"a hole on the disk before {ready.entries[0]}"
            entries = entries[: first - 1] + ready.entries
        return Disk(ready.hard_state or disk.hard_state, disk.snapshot, entries)

    def compacted(self, snapshot: Snapshot) -> Disk:
        """With `snapshot` in the place of the entries it stands for."""
        gone = snapshot.meta.index - self.base_index
        return Disk(self.hard_state, snapshot, self.entries[gone:])


def _told_by(snapshot: Snapshot | None) -> History:
    if snapshot is None:
        return ()
    return msgspec.msgpack.decode(snapshot.state, type=History)


class Outcome(msgspec.Struct, frozen=True):
    """What an event led to."""

    member: Member
    sent: tuple[Message, ...] = ()
    reads: tuple[ReadResult, ...] = ()
    error: str = ""


class Member:
    """Never changed: every event makes another one. `saving` is what is on its way to the disk."""

    def __init__(
        self,
        name: str,
        founders: tuple[str, ...],
        node: Node,
        disk: Disk,
        saving: Ready | None,
        ways: Ways,
    ) -> None:
        self.name = name
        self.founders = founders
        self.node = node
        self.disk = disk
        self.saving = saving
        self.ways = ways

    @classmethod
    def started(cls, name: str, founders: tuple[str, ...], disk: Disk, ways: Ways) -> Member:
        node = Node(
            me=name,
            members=founders,
            rng=NoChance(),  # type: ignore[arg-type]
            timing=NO_TIME,
            hard_state=disk.hard_state,
            snapshot=None if disk.snapshot is None else disk.snapshot.meta,
            entries=disk.entries,
            identities_max=ways.identities,
        )
        return cls(name, founders, node, disk, None, ways)

    def key(self) -> Hashable:
        own = COPIERS[self.ways.ticks, self.ways.repeats]
        return (own.key(self.node), self.disk, self.saving, self.founders)

    def renamed(self, names: dict[str, str]) -> Member:
        parts = (self.founders, self.node, self.disk, self.saving)
        return Member(names[self.name], *COPIER.renamed(parts, names), self.ways)

    @property
    def history(self) -> History:
        """Everything its log stands for."""
        log = self.node.log
        newer = None if self.saving is None else self.saving.snapshot
        forgotten = self.disk.forgotten if newer is None else _told_by(newer)
        assert len(forgotten) == log.base_index, f"{forgotten} is not all up to {log.base_index}"
        return forgotten + named(log.entries(log.first_index, log.last_index))

    # -- events ------------------------------------------------------------------------------

    def after(self, event: tuple[Any, ...]) -> Outcome:
        """What becomes of this member by `event`: a name and its arguments."""
        kind, *arguments = event
        if kind == "crash":
            return Outcome(self.started(self.name, self.founders, self.disk, self.ways))
        turn = _Turn(self)
        try:
            getattr(turn, kind)(*arguments)
            turn.drain()
            after = turn.member()
            check(after)
        except Exception as error:  # noqa: BLE001
            # Whatever a member raises in here, no disk has lost anything: it is a finding.
            return Outcome(self, error=f"{self.name}, {kind}: {type(error).__name__}: {error}")
        return Outcome(after, tuple(turn.sent), tuple(turn.reads))


def check(member: Member) -> None:
    """What must hold of a member by itself."""
    ids = [name for _, name in member.history if name not in {"", "+"}]
    assert len(ids) == len(set(ids)), f"a proposal stands twice in the log: {ids}"
    if member.node.role is Role.LEADER:
        own_vote = HardState(member.node.term, member.name)
        assert member.disk.hard_state == own_vote, "it leads, but its vote is not on its disk"


class _Turn:
    """One event under way; its public methods are the events."""

    def __init__(self, before: Member) -> None:
        self._before = before
        self.node: Node = COPIER.copy(before.node)
        self.disk = before.disk
        self.saving = before.saving
        under_way = () if before.saving is None else before.saving.committed
        self.delivered = before.node.log.delivered_index - len(under_way)
        self.sent: list[Message] = []
        self.reads: list[ReadResult] = []

    def member(self) -> Member:
        before = self._before
        return Member(before.name, before.founders, self.node, self.disk, self.saving, before.ways)

    def deliver(self, message: Message) -> None:
        self.node.step(message)

    def elect(self) -> None:
        """Its time-out has passed; asking beforehand only makes fewer elections possible."""
        self.node._begin_election()

    def campaign(self) -> None:
        """The same with all that really happens before."""
        self.node.tick()

    def beat(self) -> None:
        self.node.tick()

    def propose(self, proposal_id: str, since: int | None) -> None:
        self.node.propose(proposal_id, b"", since)

    def read(self, read_id: str) -> None:
        self.node.read(read_id)

    def transfer(self, target: str) -> None:
        self.node.transfer(target)

    def change(self, change: Change) -> None:
        self.node.change_membership(change)

    def compact(self) -> None:
        """It forgets all that it has delivered; the file changes at once or not at all."""
        log = self.node.log
        meta = self.node.snapshot_at(log.delivered_index)
        history = self.disk.forgotten + named(log.entries(log.first_index, meta.index))
        snapshot = Snapshot(meta, msgspec.msgpack.encode(history))
        self.disk = self.disk.compacted(snapshot)
        self.node.compact(meta)

    def saved(self) -> None:
        """The disk has taken what was on its way."""
        ready, self.saving = self.saving, None
        assert ready is not None
        self.disk = self.disk.after(ready)
        self._finish(ready)

    def drain(self) -> None:
        """Do what the member wants done, as far as its disk lets it."""
        while self.saving is None and (ready := self.node.ready()) is not None:
            self.sent += ready.early
            if not ready.must_save:
                self._finish(ready)
            elif self._before.ways.slow_disks:
                self.saving = ready
            else:
                self.disk = self.disk.after(ready)
                self._finish(ready)
        if self.saving is not None:
            self.sent += self.node.take_early()

    def _finish(self, ready: Ready) -> None:
        self.sent += ready.messages
        self.node.saved(ready)
        self.reads += ready.reads
        if ready.snapshot is not None:
            assert ready.snapshot.meta.index > self.delivered, "a snapshot of what it has already"
            self.delivered = ready.snapshot.meta.index
        base = self.disk.base_index
        for entry in ready.committed:
            assert entry.index == self.delivered + 1, f"{entry.index} after {self.delivered}"
            assert entry in self.disk.entries[entry.index - base - 1 :][:1], (
                f"entry {entry.index} is delivered, but it is not on this disk"
            )
            self.delivered = entry.index
        if ready.snapshot_wanted and self.disk.snapshot is not None:
            self.node.provide_snapshot(ready.snapshot_wanted, self.disk.snapshot.state)
