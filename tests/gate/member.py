"""One member of a searched group: a real `Node` and its disk, and what each event makes of them.

There is no time. A time-out may happen whenever the search wants it; a tick of a leader sends
heartbeats, and ends its leadership if nobody has answered since the tick before; a follower defends
its leader against nobody. All this allows more than the real timers do, never less.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec
from gate.copying import Copier

from notebookos_ext.cluster.consensus.messages import Entry, HardState, Message
from notebookos_ext.cluster.consensus.node import Node
from notebookos_ext.cluster.consensus.reads import ReadResult
from notebookos_ext.cluster.consensus.ready import Ready, Role, Timing

NO_TIME = Timing(
    election_ticks=0, heartbeat_ticks=1, retry_ticks=0, stagger_ticks=0, rest_ticks=1_000_000
)
TIMERS = frozenset(
    {"_silent_ticks", "_idle_ticks", "_timeout_ticks", "_window_ticks", "_transfer_ticks"}
)
TWICE_THERE = frozenset({"_log"})
"""The node has the same."""
OUT_OF_REACH = frozenset({"_in_flight", "_in_flight_bytes"})
"""Far from their limits within any bounds."""
SHARED = frozenset({"_rng", "_timing", "_handlers"})
COPIER = Copier(left_out=TIMERS | TWICE_THERE | OUT_OF_REACH, shared=SHARED)
WITHOUT_TICKS = Copier(left_out=TIMERS | TWICE_THERE | OUT_OF_REACH | {"heard"}, shared=SHARED)
"""Who was heard means nothing to a leader whose time does not pass."""


class Ways(msgspec.Struct, frozen=True):
    """What can happen to the members of one search."""

    slow_disks: bool = False
    """Saves end when the search says so, else at once."""
    ticks: bool = False


class NoChance:
    """Stands in for a random source: every time-out is as short as can be."""

    def randrange(self, start: int, _stop: int) -> int:
        return start


class Disk(msgspec.Struct, frozen=True):
    """What survives a crash: whole saves only, as in the real file."""

    hard_state: HardState = HardState()
    entries: tuple[Entry, ...] = ()

    def after(self, ready: Ready) -> Disk:
        """With what `ready` wants saved."""
        entries = self.entries
        if ready.entries:
            first = ready.entries[0].index
            if first > len(entries) + 1:
                raise AssertionError(f"entry {first} is saved, but the disk ends at {len(entries)}")
            entries = entries[: first - 1] + ready.entries
        return Disk(ready.hard_state or self.hard_state, entries)


class Outcome(msgspec.Struct, frozen=True):
    """What an event led to."""

    member: Member
    sent: tuple[Message, ...] = ()
    reads: tuple[ReadResult, ...] = ()
    error: str = ""


class Member:
    """Never changed: every event makes another one. `saving` is what is on its way to the disk."""

    def __init__(self, name: str, node: Node, disk: Disk, saving: Ready | None, ways: Ways):
        self.name = name
        self.node = node
        self.disk = disk
        self.saving = saving
        self.ways = ways

    @classmethod
    def started(cls, name: str, names: tuple[str, ...], disk: Disk, ways: Ways) -> Member:
        node = Node(
            me=name,
            members=names,
            rng=NoChance(),  # type: ignore[arg-type]
            timing=NO_TIME,
            hard_state=disk.hard_state,
            entries=disk.entries,
        )
        return cls(name, node, disk, None, ways)

    def key(self) -> Hashable:
        copier = COPIER if self.ways.ticks else WITHOUT_TICKS
        return (copier.key(self.node), self.disk, self.saving)

    def renamed(self, names: dict[str, str]) -> Member:
        node, disk, saving = COPIER.renamed((self.node, self.disk, self.saving), names)
        return Member(names[self.name], node, disk, saving, self.ways)

    # -- events ------------------------------------------------------------------------------

    def after(self, event: tuple[Any, ...]) -> Outcome:
        """What becomes of this member by `event`: a name and its arguments."""
        kind, *arguments = event
        if kind == "crash":
            return Outcome(self.started(self.name, self.node.members, self.disk, self.ways))
        turn = _Turn(self)
        try:
            getattr(turn, kind)(*arguments)
            if kind != "saved":
                turn.drain()
            turn.check()
        except Exception as error:  # noqa: BLE001
            # Whatever a member raises in here, no disk has lost anything: it is a finding.
            return Outcome(self, error=f"{self.name}, {kind}: {type(error).__name__}: {error}")
        return Outcome(turn.member(), tuple(turn.sent), tuple(turn.reads))


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
        return Member(self._before.name, self.node, self.disk, self.saving, self._before.ways)

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

    def propose(self, proposal_id: str) -> None:
        self.node.propose(proposal_id, b"")

    def read(self, read_id: str) -> None:
        self.node.read(read_id)

    def transfer(self, target: str) -> None:
        self.node.transfer(target)

    def saved(self) -> None:
        """The disk has taken what was on its way."""
        ready, self.saving = self.saving, None
        assert ready is not None
        self.disk = self.disk.after(ready)
        self._finish(ready)
        self.drain()

    def drain(self) -> None:
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
        for entry in ready.committed:
            assert entry.index == self.delivered + 1, f"{entry.index} after {self.delivered}"
            assert entry.index <= len(self.disk.entries), f"{entry.index} is not on this disk"
            assert self.disk.entries[entry.index - 1] == entry, f"the disk differs at {entry.index}"
            self.delivered = entry.index

    def check(self) -> None:
        """What must hold of a member by itself."""
        log = self.node.log
        ids = [e.proposal_id for e in log.entries(1, log.last_index) if e.is_proposal]
        assert len(ids) == len(set(ids)), f"a proposal stands twice in the log: {ids}"
        if self.node.role is Role.LEADER:
            assert self.disk.hard_state.term >= self.node.term, "it leads in a term not on disk"
