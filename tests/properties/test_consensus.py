"""Whole groups under a random network, random crashes and random time; repeat one by its number.

`pytest "tests/properties/test_consensus.py::test_random_group[17]"`. What is checked after every
step stands in `tests/raft_group.py`.
"""

from __future__ import annotations

import os
import random

import pytest
from raft_group import Group

from notebookos_ext.cluster.consensus.messages import TimeoutNow
from notebookos_ext.cluster.consensus.ready import Timing

SEEDS = range(int(os.environ.get("NOTEBOOKOS_RAFT_SEEDS", "150")))
STEPS = 1_500


class Chaos:
    """One run: each step moves one thing in one member's world."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        names = self.rng.choice(["abc", "abc", "abcde", "ab"])
        # Short time-outs make elections, and so changes of mind, frequent.
        self.group = Group(
            names,
            seed=seed,
            timing=Timing(
                election_ticks=6, heartbeat_ticks=2, retry_ticks=3, stagger_ticks=1, rest_ticks=5
            ),
        )
        self.proposed = 0
        self.reads = 0
        self.acknowledged: set[str] = set()
        self.loss = self.rng.choice([0.0, 0.02, 0.15])
        self.doubling = self.rng.choice([0.0, 0.05])
        self.slowness = self.rng.choice([0.0, 0.3, 0.8])
        self.group.turn = self.move
        self.disorder = self.rng.choice([0.0, 0.3, 1.0])
        self.steps = [
            (self.deliver, 130),
            (self.tick, 24),
            (self.propose, 12),
            (self.retry, 2),
            (self.read, 2),
            (self.finish_save, 24),
            (self.crash, self.rng.choice([0, 1, 2])),
            (self.crash_in_save, self.rng.choice([0, 1, 2])),
            (self.start, 4),
            (self.campaign, self.rng.choice([0, 2])),
            (self.force_election, self.rng.choice([0, 3, 10])),
            (self.transfer, self.rng.choice([0, 1])),
            (self.partition, self.rng.choice([0, 1])),
            (self.strand_a_leader, self.rng.choice([0, 4])),
            (self.heal, self.rng.choice([2, 8])),
            (self.report_lost, 1),
            (self.report_back, 1),
        ]

    def run(self) -> None:
        moves = [move for move, weight in self.steps for _ in range(weight)]
        for _ in range(STEPS):
            self.rng.choice(moves)()
            self.acknowledge()
        self.recover()

    # -- steps -----------------------------------------------------------------------------

    def somebody(self) -> str | None:
        return self.rng.choice(self.group.up) if self.group.up else None

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

    def propose(self) -> None:
        leaders = self.group.leaders()
        # Also to leaders that nobody follows any more: their entries must vanish without a trace.
        name = self.rng.choice(leaders) if leaders and self.rng.random() < 0.5 else self.somebody()
        if name:
            self.proposed += 1
            text = f"p{self.proposed}"
            self.group.offer(name, text)
            self.move(name)

    def retry(self) -> None:
        if self.proposed and (name := self.somebody()):
            text = f"p{self.rng.randrange(self.proposed) + 1}"
            self.group.offer(name, text)
            self.move(name)

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
        """Before the disk has it, or after, but before anybody hears of it."""
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
        down = [name for name in self.group.names if name not in self.group.up]
        if down:
            self.group.start(self.rng.choice(down))

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
                self.group.offer(leader, f"p{self.proposed}")
            self.move(leader)

    def transfer(self) -> None:
        if name := self.somebody():
            self.group.node(name).transfer(self.rng.choice(self.group.names))
            self.move(name)

    def partition(self) -> None:
        pairs = [(one, two) for one in self.group.names for two in self.group.names if one != two]
        if self.rng.random() < 0.5:
            # One direction of one connection.
            self.group.cut.add(self.rng.choice(pairs))
        else:
            self.group.isolate(self.rng.choice(self.group.names))

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

    # -- what it is all for ----------------------------------------------------------------

    def acknowledge(self) -> None:
        for name in self.group.up:
            for entry in self.group.members[name].delivered[-5:]:
                if entry.is_proposal:
                    self.acknowledged.add(entry.proposal_id)

    def recover(self) -> None:
        """Once everything works again, the group must go on with all it ever acknowledged."""
        group = self.group
        group.turn = group.pump_if_idle
        group.heal()
        for name in group.names:
            if name not in group.up:
                group.start(name)
            elif group.members[name].saving is not None:
                group.finish_save(name)
        for name in group.names:
            group.find(name)
        group.settle()
        for _ in range(400):
            if self.has_committed_last():
                break
            group.tick_all()
        assert self.has_committed_last(), "no progress although everything works again"
        logs = {name: group.payloads(name) for name in group.names}
        assert len({tuple(log) for log in logs.values()}) == 1, logs
        (log, *_) = logs.values()
        assert len(set(log)) == len(log), "applied twice"
        assert self.acknowledged <= set(log), "acknowledged and lost"

    def has_committed_last(self) -> bool:
        group = self.group
        for leader in group.leaders()[-1:]:
            if "last" not in group.index_by_id:
                group.propose(leader, "last")
                group.settle()
        return all(group.payloads(name)[-1:] == ["last"] for name in group.names)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_group(seed: int) -> None:
    Chaos(seed).run()
