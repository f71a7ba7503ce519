"""A whole Raft group in one process: real members, a network and disks that the test moves by hand.

Every step is followed by `check`, which compares what the members believe with what really is on
the disks: that has more teeth than to wait for two members to contradict each other.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from notebookos_ext.cluster.consensus.messages import (
    Entry,
    HardState,
    Message,
)
from notebookos_ext.cluster.consensus.node import Node
from notebookos_ext.cluster.consensus.quorum import majority
from notebookos_ext.cluster.consensus.ready import Proposed, Ready, Role, Timing


class Disk:
    """What survives a crash: exactly what was saved, whole batches only (as the real file does)."""

    def __init__(self) -> None:
        self.hard_state = HardState()
        self.entries: list[Entry] = []

    def save(self, ready: Ready) -> None:
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state
        if ready.entries:
            del self.entries[ready.entries[0].index - 1 :]
            assert ready.entries[0].index == len(self.entries) + 1, "a hole on the disk"
            self.entries += ready.entries


class Member:
    """A member's process, alive or not, and its disk."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.disk = Disk()
        self.node: Node | None = None
        self.saving: Ready | None = None
        self.delivered: list[Entry] = []


class Group:
    """`names` in the order of their rank; `cut` holds (sender, addressee) pairs that lose all."""

    def __init__(
        self, names: Iterable[str] = "abc", *, seed: int = 0, timing: Timing | None = None
    ) -> None:
        self.names = tuple(names)
        self.rng = random.Random(seed)
        self.timing = timing or Timing()
        self.members = {name: Member(name) for name in self.names}
        self.network: list[Message] = []
        self.cut: set[tuple[str, str]] = set()
        self.node_class: type[Node] = Node
        self.committed: dict[int, Entry] = {}
        self.commit_term: dict[int, int] = {}
        self.index_by_id: dict[str, int] = {}
        self.leader_of_term: dict[int, str] = {}
        self.votes_on_disk: set[tuple[str, int, str]] = set()
        self.known_entries: dict[tuple[int, int], tuple[Entry, int]] = {}
        self.known_lengths: dict[str, tuple[int, int]] = {}
        self.open_reads: dict[str, int] = {}
        self.read_results: dict[str, int] = {}
        self.turn: Callable[[str], None] = self.pump_if_idle
        """What a member does after each message; a test may make it slower."""
        for name in self.names:
            self.start(name)

    # -- looking ---------------------------------------------------------------------------

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
        return [entry.payload.decode() for entry in self.members[name].delivered if entry.payload]

    def on_disk(self, name: str) -> list[tuple[int, str]]:
        return [(entry.term, entry.payload.decode()) for entry in self.members[name].disk.entries]

    # -- members ---------------------------------------------------------------------------

    def start(self, name: str) -> None:
        member = self.members[name]
        member.node = self.node_class(
            me=name,
            members=self.names,
            rng=random.Random(self.rng.random()),
            timing=self.timing,
            hard_state=member.disk.hard_state,
            entries=member.disk.entries,
        )
        member.saving = None
        member.delivered = []
        self.known_lengths.pop(name, None)

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
        outcome = self.node(name).propose(text, text.encode())
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
        if ready.hard_state is not None and ready.hard_state.vote:
            self.votes_on_disk.add((name, ready.hard_state.term, ready.hard_state.vote))
        if crash_before_sending:
            self.crash(name)
            self.check()
            return
        member.saving = None
        self.send(ready.messages)
        node = self.node(name)
        node.saved(ready)
        self.check()
        for entry in ready.committed:
            assert entry in member.disk.entries[entry.index - 1 : entry.index], "not on its disk"
        member.delivered += ready.committed
        for result in ready.reads:
            asked_at = self.open_reads[result.read_id]
            assert result.index >= asked_at, f"stale read {result} of {name}, was at {asked_at}"
            self.read_results.setdefault(result.read_id, result.index)
        self.check()

    def pump(self, name: str) -> None:
        while self.begin_save(name):
            self.finish_save(name)

    def pump_if_idle(self, name: str) -> None:
        if self.members[name].saving is None:
            self.pump(name)

    def deliver(self, message: Message) -> None:
        node = self.members[message.to].node
        if node is not None:
            node.step(message)
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
        for name in self.up:
            node = self.node(name)
            if node.role is Role.LEADER:
                self._check_leader(name, node)
            self._check_log(name, node)
            self._check_commit(name, node)

    def _check_leader(self, name: str, node: Node) -> None:
        first = self.leader_of_term.setdefault(node.term, name)
        assert first == name, f"{first} and {name} lead in term {node.term}"
        voters = [m for m in self.names if (m, node.term, name) in self.votes_on_disk]
        assert len(voters) >= majority(len(self.names)), (
            f"{name} leads in term {node.term} by the votes of {voters}"
        )
        for index, entry in self.committed.items():
            if node.term > self.commit_term[index]:
                assert node.log.matches(index, entry.term), f"leader {name} lacks {entry}"

    def _check_log(self, name: str, node: Node) -> None:
        length = (node.log.last_index, node.log.last_term)
        if self.known_lengths.get(name) == length:
            return
        self.known_lengths[name] = length
        previous_term = 0
        for entry in node.log.entries(1, node.log.last_index):
            known = self.known_entries.setdefault((entry.index, entry.term), (entry, previous_term))
            assert known == (entry, previous_term), f"logs differ at {entry} of {name}"
            previous_term = entry.term

    def _check_commit(self, name: str, node: Node) -> None:
        for index in range(len(self.committed) + 1, node.log.commit_index + 1):
            entry = node.log.entries(index, index)[0]
            holders = [
                m.name
                for m in self.members.values()
                if len(m.disk.entries) >= index and m.disk.entries[index - 1] == entry
            ]
            assert len(holders) >= majority(len(self.names)), (
                f"{name} holds {entry} committed, which only {holders} have on disk"
            )
            if entry.is_proposal:
                assert entry.proposal_id not in self.index_by_id, f"{entry} committed twice"
                self.index_by_id[entry.proposal_id] = index
            self.committed[index] = entry
            self.commit_term[index] = node.term
        for position, entry in enumerate(self.members[name].delivered[-3:]):
            index = len(self.members[name].delivered[:-3]) + position + 1
            assert entry == self.committed[index], f"{name} was given {entry} at {index}"
