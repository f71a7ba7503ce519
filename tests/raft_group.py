"""A whole Raft group in one process: real members, a network and disks that the test moves by hand.

Every step is followed by the checks of `raft_invariants`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import msgspec
from raft_invariants import Invariants

from notebookos_ext.cluster.consensus.log import IDENTITIES_MAX
from notebookos_ext.cluster.consensus.membership import Change, Changed, ChangeKind
from notebookos_ext.cluster.consensus.messages import (
    Entry,
    HardState,
    Message,
    SnapshotChunk,
    VoteAnswer,
)
from notebookos_ext.cluster.consensus.node import Node
from notebookos_ext.cluster.consensus.ready import Proposed, Ready, Role, Timing
from notebookos_ext.cluster.consensus.snapshot import OutgoingSnapshot, Snapshot, SnapshotMeta


class Disk:
    """What survives a crash: exactly what was saved, whole saves only (as the real file does)."""

    def __init__(self) -> None:
        self.hard_state = HardState()
        self.snapshot: Snapshot | None = None
        self.entries: list[Entry] = []

    @property
    def base_index(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.meta.index

    @property
    def meta(self) -> SnapshotMeta | None:
        return None if self.snapshot is None else self.snapshot.meta

    def save(self, ready: Ready) -> None:
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state
        if ready.snapshot is not None:
            self.snapshot = ready.snapshot
            self.entries.clear()
        if ready.entries:
            del self.entries[ready.entries[0].index - self.base_index - 1 :]
            expected = self.base_index + len(self.entries) + 1
            assert ready.entries[0].index == expected, "a hole on the disk"
            self.entries += ready.entries

    def compact(self, snapshot: Snapshot) -> None:
        """Put a snapshot made here in the place of what it stands for."""
        del self.entries[: snapshot.meta.index - self.base_index]
        self.snapshot = snapshot


class Application:
    """What a snapshot is made of: the proposals so far, and up to which entry."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.index = 0
        self.proposals: list[str] = []
        if snapshot is not None:
            self.restore(snapshot)

    def restore(self, snapshot: Snapshot) -> None:
        self.index = snapshot.meta.index
        self.proposals = msgspec.msgpack.decode(snapshot.state, type=list[str])

    def apply(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            assert entry.index == self.index + 1, f"{entry} after {self.index}"
            self.index = entry.index
            if entry.is_proposal:
                self.proposals.append(entry.proposal_id)

    @property
    def state(self) -> bytes:
        return msgspec.msgpack.encode(self.proposals)


class Member:
    """A member's process, alive or not, and its disk."""

    def __init__(self, name: str, founders: tuple[str, ...]) -> None:
        self.name = name
        self.founders = founders
        self.disk = Disk()
        self.node: Node | None = None
        self.saving: Ready | None = None
        self.delivered: list[Entry] = []
        self.application = Application()
        self.restored_at = 0
        """Where the snapshot ends that its application took over last."""


class Group:
    """`names` in the order of their rank; `cut` holds (sender, addressee) pairs that lose all."""

    def __init__(
        self,
        names: Iterable[str] = "abc",
        *,
        seed: int = 0,
        timing: Timing | None = None,
        identities_max: int = IDENTITIES_MAX,
    ) -> None:
        founders = tuple(names)
        self.rng = random.Random(seed)
        self.timing = timing or Timing()
        self.identities_max = identities_max
        self.members = {name: Member(name, founders) for name in founders}
        self.network: list[Message] = []
        self.cut: set[tuple[str, str]] = set()
        self.node_class: type[Node] = Node
        self.invariants = Invariants()
        self.since: dict[str, int] = {}
        self.expired: set[str] = set()
        self.open_reads: dict[str, int] = {}
        self.read_results: dict[str, int] = {}
        self.provides_snapshots = True
        self.turn: Callable[[str], None] = self.pump_if_idle
        """What a member does after each message; a test may make it slower."""
        for name in founders:
            self.start(name)

    # -- looking ---------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.members)

    @property
    def committed(self) -> dict[int, Entry]:
        return self.invariants.committed

    @property
    def index_by_id(self) -> dict[str, int]:
        return self.invariants.index_by_id

    def node(self, name: str) -> Node:
        node = self.members[name].node
        assert node is not None, f"{name} is down"
        return node

    @property
    def up(self) -> list[str]:
        return [name for name in self.names if self.members[name].node is not None]

    def leaders(self) -> list[str]:
        return [name for name in self.up if self.node(name).role is Role.LEADER]

    def payloads(self, name: str) -> list[str]:
        """What the application of a member has been given, also by snapshots."""
        return self.members[name].application.proposals

    def on_disk(self, name: str) -> list[tuple[int, str]]:
        return [(entry.term, entry.payload.decode()) for entry in self.members[name].disk.entries]

    # -- members ---------------------------------------------------------------------------

    def start(self, name: str) -> None:
        member = self.members[name]
        member.node = self.node_class(
            me=name,
            members=member.founders,
            rng=random.Random(self.rng.random()),
            timing=self.timing,
            hard_state=member.disk.hard_state,
            snapshot=member.disk.meta,
            entries=member.disk.entries,
            identities_max=self.identities_max,
        )
        member.saving = None
        member.delivered = []
        member.application = Application(member.disk.snapshot)
        self.invariants.restarted(name)

    def join(self, name: str) -> None:
        """A new member with an empty disk, which nobody knows of yet."""
        assert name not in self.members, f"{name} was a member before"
        self.members[name] = Member(name, ())
        self.start(name)

    def change(self, name: str, kind: ChangeKind, member: str) -> Changed:
        outcome = self.node(name).change_membership(Change(kind, member))
        self.pump(name)
        return outcome

    def compact(self, name: str, *, crash_between: bool = False) -> None:
        """Make a snapshot of all that the application was given, and forget what it stands for."""
        member = self.members[name]
        node = self.node(name)
        snapshot = Snapshot(node.snapshot_at(member.application.index), member.application.state)
        member.disk.compact(snapshot)
        if crash_between:
            self.crash(name)
        else:
            node.compact(snapshot.meta)
        self.check()

    def crash(self, name: str) -> None:
        """Everything that was not saved is gone; what was sent is on its way."""
        self.members[name].node = None
        self.members[name].saving = None

    def restart(self, name: str) -> None:
        self.crash(name)
        self.start(name)

    def tick(self, name: str, count: int = 1) -> None:
        for _ in range(count):
            self.node(name).tick()
            self.pump(name)

    def tick_all(self, count: int = 1) -> None:
        for _ in range(count):
            for name in self.up:
                self.tick(name)
            self.settle()

    def propose(self, name: str, text: str) -> Proposed:
        outcome = self.offer(name, text)
        self.pump(name)
        return outcome

    def offer(self, name: str, text: str) -> Proposed:
        """Propose, but do nothing about it yet."""
        node = self.node(name)
        since = self.since.setdefault(text, node.heard_commit_index)
        outcome = node.propose(text, text.encode(), since)
        if outcome is Proposed.COMMITTED:
            assert text in self.index_by_id, f"{name} believes {text} committed"
        return outcome

    def read(self, name: str, read_id: str) -> bool:
        self.open_reads[read_id] = max(self.committed, default=0)
        led = self.node(name).read(read_id)
        self.pump(name)
        return led

    def campaign(self, name: str) -> None:
        self.node(name).campaign()
        self.pump(name)

    def elect(self, name: str) -> None:
        self.campaign(name)
        self.settle()
        assert self.leaders() == [name], self.leaders()

    def lose(self, lost: str, *, seen_by: Iterable[str] | None = None) -> None:
        for name in self.up if seen_by is None else seen_by:
            if name != lost:
                self.node(name).member_lost(lost)
                self.pump(name)

    def find(self, back: str) -> None:
        for name in self.up:
            self.node(name).member_back(back)
            self.pump(name)

    # -- one member's turn -----------------------------------------------------------------

    def send(self, messages: Iterable[Message]) -> None:
        messages = tuple(messages)
        for message in messages:
            if isinstance(message, VoteAnswer):
                self.invariants.answered(self.members[message.sender], message)
        self.network += [m for m in messages if (m.sender, m.to) not in self.cut]

    def begin_save(self, name: str) -> bool:
        """Take what the member wants done, up to the moment when its disk begins to write."""
        member = self.members[name]
        assert member.saving is None
        member.saving = self.node(name).ready()
        if member.saving is not None:
            self.send(member.saving.early)
        self.check()
        return member.saving is not None

    def finish_save(self, name: str, *, crash_before_sending: bool = False) -> None:
        member = self.members[name]
        ready = member.saving
        assert ready is not None
        member.disk.save(ready)
        if ready.hard_state is not None:
            self.invariants.vote_saved(name, ready.hard_state)
        if crash_before_sending:
            self.crash(name)
            self.check()
            return
        member.saving = None
        self.send(ready.messages)
        node = self.node(name)
        node.saved(ready)
        self.check()
        self._hand_on(member, ready)
        if ready.snapshot_wanted and self.provides_snapshots:
            assert member.disk.snapshot is not None
            node.provide_snapshot(member.disk.base_index, member.disk.snapshot.state)
        self.check()

    def _hand_on(self, member: Member, ready: Ready) -> None:
        """What an application and its users see."""
        application = member.application
        if ready.snapshot is not None:
            assert ready.snapshot.meta.index > application.index, "a snapshot took it back"
            application.restore(ready.snapshot)
            member.restored_at = application.index
        self.invariants.delivered(member, ready.committed)
        application.apply(ready.committed)
        member.delivered += ready.committed
        if ready.snapshot is not None or ready.committed:
            expected = self.invariants.proposals_up_to(application.index)
            assert application.proposals == expected, f"{member.name} applied something else"
        self.expired.update(ready.expired)
        for result in ready.reads:
            asked_at = self.open_reads[result.read_id]
            assert result.index >= asked_at, f"stale read {result} of {member.name}: {asked_at}"
            self.read_results.setdefault(result.read_id, result.index)

    def pump(self, name: str) -> None:
        while self.begin_save(name):
            self.finish_save(name)

    def pump_if_idle(self, name: str) -> None:
        if self.members[name].saving is None:
            self.pump(name)

    def deliver(self, message: Message) -> None:
        member = self.members.get(message.to)
        if member is not None and member.node is not None:
            member.node.step(message)
            self.check()
            self.turn(message.to)

    # -- the network -----------------------------------------------------------------------

    def take(
        self,
        kind: type[Message] | None = None,
        *,
        sender: str | None = None,
        to: str | None = None,
        where: Callable[[Message], bool] = lambda message: True,
    ) -> list[Message]:
        """Take messages out of the network, to lose them or to deliver them later."""
        taken = [
            m
            for m in self.network
            if (kind is None or isinstance(m, kind))
            and sender in {None, m.sender}
            and to in {None, m.to}
            and where(m)
        ]
        self.network = [m for m in self.network if not any(m is t for t in taken)]
        return taken

    def deliver_next(self, **selection: object) -> Message:
        """Deliver the oldest message of that kind."""
        taken = self.take(**selection)  # type: ignore[arg-type]
        assert taken, f"no such message in flight: {selection}, but {self.network}"
        self.network = taken[1:] + self.network
        self.deliver(taken[0])
        return taken[0]

    def settle(self, limit: int = 20_000) -> None:
        """Deliver in order until nobody says anything more."""
        for name in self.up:
            self.pump_if_idle(name)
        for _ in range(limit):
            if not self.network:
                return
            self.deliver(self.network.pop(0))
        raise AssertionError("the group does not come to rest")

    def settle_until(self, kind: type[Message]) -> None:
        """Deliver in order until a message of this kind is next."""
        while self.network and not isinstance(self.network[0], kind):
            self.deliver(self.network.pop(0))

    def snapshot_piece(self, sender: str, to: str) -> SnapshotChunk:
        """The whole snapshot of `sender`, as one piece of the present term."""
        snapshot = self.members[sender].disk.snapshot
        assert snapshot is not None
        term = self.node(sender).term
        return OutgoingSnapshot(snapshot).chunk(sender=sender, to=to, term=term, offset=0)

    def isolate(self, *names: str) -> None:
        """Cut `names` off from all others."""
        for one in names:
            for other in self.names:
                if other not in names:
                    self.cut |= {(one, other), (other, one)}
        self.network = [m for m in self.network if (m.sender, m.to) not in self.cut]

    def heal(self) -> None:
        self.cut.clear()

    # -- what must hold --------------------------------------------------------------------

    def check(self) -> None:
        self.invariants.check(self.members.values())
