"""One random life of a Raft group: what can happen to it, drawn by a seed, and what must follow.

Each step moves one thing: a message, a tick, a disk, a process, a connection, the membership. That
makes delay, loss, repetition and disorder of messages, one-way partitions, slow disks, clocks of
any speed, crashes around every save, lost disks and restarts at any moment. What must hold after
every step stands in `raft_invariants`; at the end everything works again, and the group must go on
with all it ever acknowledged.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from unittest import mock

from raft_group import Group

from notebookos_ext.cluster.consensus import leading, progress, snapshot
from notebookos_ext.cluster.consensus.membership import Change, ChangeKind, Membership
from notebookos_ext.cluster.consensus.messages import Append, ChangeRequest, TimeoutNow
from notebookos_ext.cluster.consensus.quorum import majority
from notebookos_ext.cluster.consensus.ready import Proposed, Timing

STEPS = 600
VOTERS_MAX = 5
MEMBERS_MAX = 12
# Short time-outs make elections, and so changes of mind, frequent.
TIMING = Timing(election_ticks=6, heartbeat_ticks=2, retry_ticks=3, stagger_ticks=1, rest_ticks=5)


@contextlib.contextmanager
def tiny_messages(rng: random.Random) -> Iterator[None]:
    """Batches, pieces and windows so small that every limit is met."""
    with contextlib.ExitStack() as stack:
        for module, name, sizes in (
            (leading, "APPEND_BYTES_MAX", (1, 8, 256_000)),
            (leading, "PROBE_BYTES_MAX", (1, 8, 32_000)),
            (progress, "IN_FLIGHT_MESSAGES_MAX", (1, 3, 64)),
            (snapshot, "CHUNK_BYTES_MAX", (40, 200, 64_000)),
        ):
            stack.enter_context(mock.patch.object(module, name, rng.choice(sizes)))
        yield


class Chaos:
    """One run. `steps` beyond the usual make longer logs."""

    def __init__(self, seed: int, steps: int = STEPS) -> None:
        self.rng = rng = random.Random(seed)
        self.steps = steps
        self.group = Group(
            rng.choice(["abc", "abc", "abcd", "abcde", "ab", "a"]),
            seed=seed,
            timing=TIMING,
            identities_max=rng.choice([2, 8, 4_096]),
        )
        self.group.turn = self.move
        self.spare_names = iter("fghijklmnopqrstuvwxyz")
        self.gone: set[str] = set()
        self.proposed = 0
        self.last = "last"
        """What is proposed at the end."""
        self.reads = 0
        self.compactions = 0
        self.loss = rng.choice([0.0, 0.02, 0.15])
        self.doubling = rng.choice([0.0, 0.05])
        self.slowness = rng.choice([0.0, 0.3, 0.8])
        self.disorder = rng.choice([0.0, 0.3, 1.0])
        changes = rng.choice([0, 4, 15])
        snapshots = rng.choice([0, 2, 10])
        self.weights = {
            self.deliver: 130,
            self.tick: 24,
            self.calm: rng.choice([0, 3]),
            self.propose: 12,
            self.retry: 3,
            self.read: 3,
            self.finish_save: 24,
            self.crash: rng.choice([0, 1, 2]),
            self.crash_in_save: rng.choice([0, 1, 2]),
            self.start: 4,
            self.campaign: rng.choice([0, 2]),
            self.force_election: rng.choice([0, 3, 10]),
            self.transfer: rng.choice([0, 1]),
            self.partition: rng.choice([0, 1]),
            self.strand_a_leader: rng.choice([0, 4]),
            self.heal: rng.choice([2, 8]),
            self.report_lost: 1,
            self.report_back: 1,
            self.compact: snapshots,
            self.withhold_snapshots: min(snapshots, 1),
            self.change_membership: changes,
            self.lose_disk: min(changes, 1),
        }

    def run(self) -> None:
        with tiny_messages(self.rng):
            moves, weights = list(self.weights), list(self.weights.values())
            for move in self.rng.choices(moves, weights, k=self.steps):
                move()
            self.recover()

    # -- steps -----------------------------------------------------------------------------

    def somebody(self) -> str | None:
        return self.rng.choice(self.group.up) if self.group.up else None

    def calm(self) -> None:
        """A while in which messages arrive and time passes for all alike."""
        for _ in range(4):
            for name in self.group.up:
                self.group.node(name).tick()
                self.move(name)
            for _ in range(min(len(self.group.network), 40)):
                self.group.deliver(self.group.network.pop(0))

    def leader_or_other(self) -> str | None:
        """Often a leader, also one that nobody follows any more: its entries leave no trace."""
        leaders = self.group.leaders()
        return self.rng.choice(leaders) if leaders and self.rng.random() < 0.5 else self.somebody()

    def deliver(self) -> None:
        network = self.group.network
        if not network:
            return
        position = 0
        if self.rng.random() < self.disorder:
            position = self.rng.randrange(len(network))
        message = network.pop(position)
        if self.rng.random() < self.loss:
            return
        if self.rng.random() < self.doubling:
            network.append(message)
        self.group.deliver(message)

    def move(self, name: str) -> None:
        """Let a member do what it wants; while its disk is slow, other things happen to it."""
        while self.group.members[name].saving is None:
            if not self.group.begin_save(name):
                return
            if self.rng.random() >= self.slowness:
                self.group.finish_save(name)

    def tick(self) -> None:
        if name := self.somebody():
            self.group.node(name).tick()
            self.move(name)

    def offer(self, name: str, number: int) -> None:
        if self.group.offer(name, f"p{number}") is not Proposed.EXPIRED:
            self.move(name)

    def propose(self) -> None:
        if name := self.leader_or_other():
            self.proposed += 1
            self.offer(name, self.proposed)

    def retry(self) -> None:
        if self.proposed and (name := self.somebody()):
            self.offer(name, self.rng.randrange(self.proposed) + 1)

    def read(self) -> None:
        if name := self.somebody():
            self.reads += 1
            read_id = f"r{self.reads}"
            self.group.open_reads[read_id] = len(self.group.committed)
            self.group.node(name).read(read_id)
            self.move(name)

    def saving(self) -> list[str]:
        return [name for name in self.group.up if self.group.members[name].saving is not None]

    def finish_save(self) -> None:
        for name in self.saving():
            self.group.send(self.group.node(name).take_early())
        if saving := self.saving():
            name = self.rng.choice(saving)
            self.group.finish_save(name)
            self.move(name)

    def crash(self) -> None:
        if name := self.somebody():
            self.group.crash(name)
            if self.rng.random() < 0.5:
                self.group.start(name)
                self.move(name)

    def crash_in_save(self) -> None:
        """Before the disk has it, or after, but before anybody hears of it.

        A write that was torn is the first of these: the log's file is cut to its last whole save.
        """
        if saving := self.saving():
            name = self.rng.choice(saving)
            if self.rng.random() < 0.5:
                self.group.crash(name)
            else:
                self.group.finish_save(name, crash_before_sending=True)
            if self.rng.random() < 0.7:
                self.group.start(name)

    def force_election(self) -> None:
        """An election that nobody can defend against, as after any handover."""
        if (name := self.somebody()) and (leader := self.group.node(name).leader):
            self.group.node(name).step(TimeoutNow(leader, name, self.group.node(name).term))
            self.move(name)

    def start(self) -> None:
        if down := self.startable():
            self.group.start(self.rng.choice(down))

    def startable(self) -> list[str]:
        return [name for name in self.group.names if name not in {*self.group.up, *self.gone}]

    def campaign(self) -> None:
        if name := self.somebody():
            self.group.node(name).campaign()
            self.move(name)

    def strand_a_leader(self) -> None:
        """A leader cut off with entries that others will replace."""
        if leaders := self.group.leaders():
            leader = self.rng.choice(leaders)
            self.group.isolate(leader)
            for _ in range(self.rng.randrange(1, 4)):
                self.proposed += 1
                self.offer(leader, self.proposed)

    def transfer(self) -> None:
        if name := self.somebody():
            self.group.node(name).transfer(self.rng.choice(self.group.names))
            self.move(name)

    def partition(self) -> None:
        names = self.group.names
        if self.rng.random() < 0.5 and len(names) > 1:
            # One direction of one connection.
            self.group.cut.add((*self.rng.sample(names, 2),))  # type: ignore[arg-type]
        else:
            self.group.isolate(self.rng.choice(names))

    def heal(self) -> None:
        self.group.heal()

    def report_lost(self) -> None:
        if name := self.somebody():
            self.group.node(name).member_lost(self.rng.choice(self.group.names))
            self.move(name)

    def report_back(self) -> None:
        if name := self.somebody():
            self.group.node(name).member_back(self.rng.choice(self.group.names))
            self.move(name)

    # -- snapshots and membership ----------------------------------------------------------

    def compact(self) -> None:
        if name := self.somebody():
            member = self.group.members[name]
            # While a leader's snapshot is being saved the application is not where the log is.
            if member.application.index > self.group.node(name).log.base_index:
                self.compactions += 1
                self.group.compact(name, crash_between=self.rng.random() < 0.2)

    def withhold_snapshots(self) -> None:
        """For a while no driver answers when a snapshot's state is wanted."""
        self.group.provides_snapshots = not self.group.provides_snapshots

    def change_membership(self) -> None:
        name = self.leader_or_other()
        if name is None or self.group.members[name].saving is not None:
            return
        group = self.group
        membership = group.node(name).log.membership
        kind = self.rng.choice(list(ChangeKind))
        if membership.learners and self.rng.random() < 0.5:
            kind = ChangeKind.PROMOTE
        if kind is ChangeKind.ADD_LEARNER:
            if len(group.names) >= MEMBERS_MAX or len(membership.voters) >= VOTERS_MAX:
                return
            strangers = [other for other in group.up if other not in membership.everybody]
            member = self.rng.choice(strangers) if strangers else next(self.spare_names)
            if not strangers:
                group.join(member)
        elif kind is ChangeKind.PROMOTE and membership.learners:
            member = self.rng.choice(membership.learners)
            if member in self.gone:
                # A leader may not know yet, and with the promotion a majority could be gone.
                return
        elif kind is ChangeKind.REMOVE and len(membership.voters) > 1:
            member = self.rng.choice(membership.everybody)
            rest = tuple(voter for voter in membership.voters if voter != member)
            if not self.can_decide(Membership(rest), self.gone):
                return
        else:
            return
        group.node(name).change_membership(Change(kind, member))
        self.move(name)

    def lose_disk(self) -> None:
        """A member is gone for good; whoever comes in its place is somebody else."""
        on_their_way = list(self.group.network)
        for saving in self.saving():
            ready = self.group.members[saving].saving
            on_their_way += ready.messages if ready else ()
        if any(isinstance(message, ChangeRequest) for message in on_their_way):
            # Decided by what was known before.
            return
        name = self.rng.choice(self.group.names)
        gone = {*self.gone, name}
        if all(self.can_decide(membership, gone) for membership in self.memberships()):
            self.group.crash(name)
            self.gone = gone

    @staticmethod
    def can_decide(membership: Membership, gone: set[str]) -> bool:
        there = [voter for voter in membership.voters if voter not in gone]
        return not membership.voters or len(there) >= majority(len(membership.voters))

    def memberships(self) -> list[Membership]:
        """Every membership that is in force somewhere, or may yet be."""
        group = self.group
        found = [group.node(name).log.membership for name in group.up]
        entries = [e for m in group.network if isinstance(m, Append) for e in m.entries]
        for member in group.members.values():
            entries += member.disk.entries
            if member.saving is not None:
                entries += member.saving.entries
            found.append(Membership(member.founders))
            if member.disk.meta is not None:
                found.append(member.disk.meta.membership)
        return [*found, *(e.membership for e in entries if e.membership is not None)]

    # -- what it is all for ----------------------------------------------------------------

    def recover(self) -> None:
        """Once everything works again, the group must go on with all it ever acknowledged."""
        group = self.group
        group.turn = group.pump_if_idle
        group.provides_snapshots = True
        group.heal()
        for name in self.saving():
            group.finish_save(name)
        for name in self.startable():
            group.start(name)
        for name in group.names:
            if name not in self.gone:
                group.find(name)
        group.settle()
        for _ in range(400):
            # Also a vote that was asked for before everything worked may still end a leadership.
            if self.has_committed_last() and group.leaders():
                return
            group.tick_all()
        raise AssertionError("no progress although everything works again")

    def has_committed_last(self) -> bool:
        group = self.group
        leaders = sorted(group.leaders(), key=lambda name: group.node(name).term)
        for leader in leaders[-1:]:
            if self.last not in group.index_by_id:
                if group.propose(leader, self.last) is Proposed.EXPIRED:
                    self.last += "+"
                group.settle()
            members = set(group.node(leader).members) - self.gone
            return all(group.payloads(name)[-1:] == [self.last] for name in members)
        return False
