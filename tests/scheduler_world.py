"""A small world around a scheduler: hosts, agents and a router that answer in any order.

It carries out the scheduler's actions, keeps its own account of who holds which device and folds
LEAD and LOST with the ledger that agents use; it never looks into the scheduler to decide what is
true. The scheduler's own invariants are checked after every event.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from builders import host_spec

from notebookos_ext.cluster import actions as a
from notebookos_ext.cluster import events as e
from notebookos_ext.cluster.entries import ClosedEntry, EpochEntry, LeadEntry
from notebookos_ext.cluster.invariants import check
from notebookos_ext.cluster.ledger import Ledger
from notebookos_ext.cluster.model import (
    Cell,
    CellId,
    DeviceId,
    ExecutorPreference,
    HeldName,
    HostId,
    KernelId,
    KernelSpec,
    Outcome,
    ReplicaId,
)
from notebookos_ext.cluster.policies.base import Run
from notebookos_ext.cluster.scheduler import Scheduler

HOSTS = [HostId(f"host-{n}") for n in range(1, 7)]
KERNELS = [KernelId(name) for name in ("k", "l", "m")]
SHARED = {  # virtual hosts 5 and 6 list the same devices
    HostId("host-5"): ["real-0", "real-1"],
    HostId("host-6"): ["real-0", "real-1"],
}
Key = tuple[KernelId, CellId]
ENDS = [Outcome.DONE, Outcome.DONE, Outcome.FAILED]


@dataclass
class World:
    """What agents and router would know."""

    scheduler: Scheduler = field(default_factory=lambda: Scheduler(max_hosts=6))
    now: float = 0.0
    incarnations: dict[HostId, int] = field(default_factory=dict)
    up: set[HostId] = field(default_factory=set)
    kernels: dict[KernelId, int] = field(default_factory=dict)
    """Kernel to its epoch."""
    ledgers: dict[KernelId, Ledger] = field(default_factory=dict)
    highest: dict[KernelId, int] = field(default_factory=dict)
    starting: dict[ReplicaId, a.StartReplica] = field(default_factory=dict)
    living: dict[ReplicaId, HostId] = field(default_factory=dict)
    beginning: list[a.StartAttempt] = field(default_factory=list)
    running: list[a.StartAttempt] = field(default_factory=list)
    closing: list[a.CloseAttempt] = field(default_factory=list)
    releasing: list[a.ReleaseGpus] = field(default_factory=list)
    locks: dict[DeviceId, tuple[KernelId, int, HostId]] = field(default_factory=dict)
    told: dict[Key, str] = field(default_factory=dict)
    """Cells that have not ended: `submitted`, `waiting`, `begun`."""
    cells: int = 0
    past: list[e.Event] = field(default_factory=list)
    groups: dict[KernelId, tuple[HostId, ...]] = field(default_factory=dict)
    """Who votes in each kernel's group."""
    learners: set[tuple[KernelId, HostId]] = field(default_factory=set)
    changes: dict[KernelId, a.ChangeMembers] = field(default_factory=dict)
    storing: dict[KernelId, a.StoreKernel] = field(default_factory=dict)
    stored: set[KernelId] = field(default_factory=set)
    warm: dict[HostId, int] = field(default_factory=dict)
    warming: list[HostId] = field(default_factory=list)
    ballots: list[tuple[a.CallElection, ReplicaId]] = field(default_factory=list)
    leaving: list[a.ReleaseHost] = field(default_factory=list)
    moved: int = 0
    logs: dict[KernelId, set[HostId]] = field(default_factory=dict)
    """Hosts that have a usable log of each kernel's present group."""
    old_logs: set[tuple[KernelId, HostId]] = field(default_factory=set)
    """Logs of groups that were left behind."""
    removed: set[HostId] = field(default_factory=set)
    """Hosts that went for good, and what they had with them."""
    going_on: dict[KernelId, a.GoOnUnprotected] = field(default_factory=dict)
    went_on: int = 0

    def say(self, event: e.Event) -> None:
        self.past.append(event)
        actions = self.scheduler.handle(event)
        check(self.scheduler.state)
        for action in actions:
            if isinstance(action, a.MajorityLost | a.GoOnUnprotected):
                self.carry_out_loss(action)
            else:
                self.carry_out(action)

    # ---- carrying out

    def carry_out(self, action: a.Action) -> None:
        match action:
            case a.StartReplica():
                assert action.host in self.up
                assert action.replica not in self.living
                assert action.epoch == self.ledgers[action.kernel].epoch
                assert self.groups.setdefault(action.kernel, action.members) == action.members
                assert action.kernel not in self.storing
                if action.prewarmed:
                    assert self.warm[action.host] > 0
                    self.warm[action.host] -= 1
                if action.learner:
                    assert action.host not in action.members
                    self.learners.add((action.kernel, action.host))
                else:
                    assert action.host in action.members
                assert (action.kernel, action.host) not in self.old_logs
                self.logs.setdefault(action.kernel, set(action.members))
                self.starting[action.replica] = action
            case a.StopReplica():
                self.starting.pop(action.replica, None)
                self.living.pop(action.replica, None)
            case a.StartEpoch():
                assert self.ledgers[action.kernel].accept(EpochEntry(action.epoch))
                self.drop_attempts(action.kernel)
            case a.CloseKernel():
                self.leave_behind(action.kernel, action.members)
                self.groups.pop(action.kernel, None)
                self.going_on.pop(action.kernel, None)
                self.changes.pop(action.kernel, None)
                self.storing.pop(action.kernel, None)
                self.stored.discard(action.kernel)
                self.learners = {x for x in self.learners if x[0] != action.kernel}
                self.ledgers[action.kernel] = Ledger()
                self.drop_attempts(action.kernel)
            case a.StartAttempt():
                self.start_attempt(action)
            case a.CloseAttempt():
                self.close_attempt(action)
            case a.ReleaseGpus():
                assert action.host in self.up
                self.releasing.append(action)
            case a.CellWaiting():
                assert action.reason
                assert action.position >= 1
                assert self.told[action.kernel, action.cell] in ("submitted", "waiting")
                self.told[action.kernel, action.cell] = "waiting"
            case a.CellRejected() | a.CellAborted():
                del self.told[action.kernel, action.cell]
            case _:
                self.carry_out_move(action)

    def carry_out_loss(self, action: a.MajorityLost | a.GoOnUnprotected) -> None:
        assert not self.can_commit(action.kernel)
        if isinstance(action, a.MajorityLost):
            assert action.reason
            return
        assert action.members == self.groups[action.kernel]
        assert action.hosts
        assert action.kernel not in self.going_on
        assert action.kernel not in self.storing
        # A change under way is given up: nobody may carry it out in the new group.
        self.changes.pop(action.kernel, None)
        self.going_on[action.kernel] = action

    def carry_out_move(self, action: a.Action) -> None:
        match action:
            case a.ChangeMembers():
                for host in action.members:
                    known = host in self.groups[action.kernel]
                    assert known or (action.kernel, host) in self.learners
                assert action.kernel not in self.changes
                self.changes[action.kernel] = action
            case a.CloseMember():
                assert action.host not in self.groups.get(action.kernel, ())
                assert action.members == self.groups.get(action.kernel, ())
                self.learners.discard((action.kernel, action.host))
                self.logs.get(action.kernel, set()).discard(action.host)
                self.old_logs.discard((action.kernel, action.host))
                assert not [
                    r
                    for r, host in self.living.items()
                    if host == action.host and r.startswith(f"{action.kernel}:")
                ]
            case a.StoreKernel():
                assert action.members == self.groups[action.kernel]
                assert action.kernel not in self.changes
                self.storing[action.kernel] = action
            case a.RestoreKernel():
                self.stored.discard(action.kernel)
                assert action.kernel not in self.groups
                ledger = self.ledgers[action.kernel]
                if action.epoch > ledger.epoch:
                    assert ledger.accept(EpochEntry(action.epoch))
            case a.StartPrewarmed():
                assert action.host in self.up
                self.warming += [action.host] * action.count
            case a.StopPrewarmed():
                assert self.warm[action.host] >= action.count
                self.warm[action.host] -= action.count
            case a.CallElection():
                assert action.voters
                assert action.attempt > self.highest.get(action.kernel, 0)
                self.ballots += [(action, voter) for voter in action.voters]
            case a.MigrationEnded():
                self.moved += action.moved
            case a.ReleaseHost():
                assert action.host not in self.living.values()
                assert action.host not in [x.host for x in self.starting.values()]
                assert action.host not in [who[2] for who in self.locks.values()]
                self.leaving.append(action)

    def can_commit(self, kernel: KernelId) -> bool:
        """Whether a majority of the group, or of what it is being changed to, has its logs."""
        asked = self.changes[kernel].members if kernel in self.changes else ()
        learnt = {host for name, host in self.learners if name == kernel}
        logs = self.up & (self.logs.get(kernel, set()) | learnt)
        return any(
            2 * len(logs & set(members)) > len(members)
            for members in (self.groups[kernel], asked)
            if members
        )

    def leave_behind(self, kernel: KernelId, members: tuple[HostId, ...]) -> None:
        """The group is closed; a host that is away keeps its log, which nobody may open."""
        self.old_logs -= {(kernel, host) for host in members if host in self.up}
        self.old_logs |= {
            (kernel, host) for host in self.logs.pop(kernel, set()) if host not in self.up
        }

    def start_attempt(self, action: a.StartAttempt) -> None:
        assert action.attempt > self.highest.get(action.kernel, 0), "an attempt number came back"
        self.highest[action.kernel] = action.attempt
        assert not [x for x in self.beginning + self.running if x.kernel == action.kernel]
        assert self.told[action.kernel, action.cell] in ("submitted", "waiting")
        self.told[action.kernel, action.cell] = "begun"
        for device in action.devices:
            assert device not in self.locks, "a device was bound twice"
            self.locks[device] = (action.kernel, action.attempt, action.host)
        self.beginning.append(action)

    def close_attempt(self, action: a.CloseAttempt) -> None:
        number = (action.kernel, action.attempt)
        self.beginning = [x for x in self.beginning if (x.kernel, x.attempt) != number]
        self.running = [x for x in self.running if (x.kernel, x.attempt) != number]
        key = (action.kernel, action.cell)
        if action.ends_cell:
            del self.told[key]
        elif key in self.told:
            self.told[key] = "submitted"
        if action.members:
            self.closing.append(action)
        else:
            self.keep(action.kernel)

    def lose(self, kernel: KernelId, cell: CellId, attempt: int, replica: ReplicaId) -> None:
        ledger = self.ledgers[kernel]
        ledger.accept(ClosedEntry(ledger.epoch, cell, attempt, replica, Outcome.LOST, None))

    def keep(self, kernel: KernelId) -> None:
        """What is reserved stays the kernel's own without being given back after each cell."""
        if self.scheduler.policy.keeps_gpus:
            self.locks = {d: who for d, who in self.locks.items() if who[0] != kernel}

    def drop_attempts(self, kernel: KernelId) -> None:
        self.keep(kernel)
        self.beginning = [x for x in self.beginning if x.kernel != kernel]
        self.running = [x for x in self.running if x.kernel != kernel]
        self.closing = [x for x in self.closing if x.kernel != kernel]
        for key in [key for key in self.told if key[0] == kernel]:
            assert self.told[key] != "waiting", "a waiting cell was forgotten by a restart"
            del self.told[key]

    def unlock(self, kernel: KernelId, attempt: int) -> None:
        self.locks = {d: who for d, who in self.locks.items() if who[:2] != (kernel, attempt)}

    # ---- what happens

    def change_members(self, kernel: KernelId, *, done: bool) -> None:
        action = self.changes.pop(kernel)
        if done:
            gone = set(self.groups[kernel]) - set(action.members)
            self.learners -= {(kernel, host) for host in action.members}
            self.learners |= {(kernel, host) for host in gone}
            new = set(action.members) - set(self.groups[kernel]) - self.removed
            self.logs[kernel] = self.logs[kernel] - gone | new
            self.groups[kernel] = action.members
        reason = "" if done else "no majority answered"
        self.say(e.MembersChanged(kernel, self.groups[kernel], reason, self.now))

    def lose_log(self, kernel: KernelId, host: HostId) -> None:
        """The host opens its member and finds no log."""
        self.logs[kernel].discard(host)
        self.say(e.MemberLost(kernel, host, "its disk was replaced", self.now))

    def lost_logs(self) -> list[tuple[KernelId, HostId]]:
        return [
            (kernel, host)
            for kernel, members in self.groups.items()
            for host in members
            if host in self.up and host not in self.logs.get(kernel, {host})
        ]

    def learn_log(self, kernel: KernelId, host: HostId) -> None:
        """A member that was lost can learn the log only from a majority that has it."""
        if self.can_commit(kernel):
            self.logs[kernel].add(host)
            self.say(e.MemberBack(kernel, host, self.now))

    def go_on(self, kernel: KernelId, rng: random.Random, *, done: bool) -> None:
        """The survivor that knows most, which is any of them, founds a group of its own."""
        action = self.going_on.pop(kernel)
        able = [host for host in action.hosts if host in self.up]
        if not (done and able):
            self.say(e.WentOnUnprotected(kernel, None, "nobody answered", self.now))
            return
        host = rng.choice(able)
        self.went_on += 1
        self.old_logs |= {(kernel, old) for old in self.logs.get(kernel, ()) if old not in self.up}
        learnt = [x for x in self.learners if x[0] == kernel and x[1] not in self.up]
        self.old_logs |= {x for x in learnt if x[1] not in self.removed}
        self.logs[kernel] = {host}
        self.groups[kernel] = (host,)
        self.learners = {x for x in self.learners if x != (kernel, host) and x not in learnt}
        self.say(e.WentOnUnprotected(kernel, host, "", self.now))

    def ask_to_go_on(self, rng: random.Random) -> None:
        self.say(e.UnprotectedRequested(rng.choice(list(self.kernels)), self.now))

    def store(self, kernel: KernelId, *, done: bool) -> None:
        action = self.storing.pop(kernel)
        done = done and kernel in self.groups
        if done:
            self.starting = {r: x for r, x in self.starting.items() if x.kernel != kernel}
            self.living = {r: h for r, h in self.living.items() if not r.startswith(f"{kernel}:")}
            self.leave_behind(kernel, self.groups.pop(kernel))
            self.stored.add(kernel)
        reason = "" if done else "the store is full"
        self.say(e.KernelStored(action.kernel, done, reason, self.now))

    def warmed(self, rng: random.Random) -> None:
        host = self.warming.pop(rng.randrange(len(self.warming)))
        if rng.random() < 0.8:
            self.warm[host] = self.warm.get(host, 0) + 1
            self.say(e.PrewarmedStarted(host, self.incarnation(host), self.now))
        else:
            self.say(e.PrewarmedLost(host, self.incarnation(host), False, "no memory", self.now))

    def vote(self, rng: random.Random) -> None:
        action, voter = self.ballots.pop(rng.randrange(len(self.ballots)))
        host = self.living.get(voter)
        if host is None:
            return
        free = [
            d.device for d in self.scheduler.view.pool.devices(host) if d.device not in self.locks
        ]
        lead = len(free) >= action.gpus and rng.random() < 0.8
        devices = tuple(free[: action.gpus]) if lead else ()
        kernel, cell, number = action.kernel, action.cell, action.attempt
        self.say(e.BallotCast(kernel, cell, number, voter, lead, devices, "", self.now))

    def move(self, rng: random.Random) -> None:
        kernel = rng.choice(list(self.kernels))
        replica = rng.choice([None, *[r for r in self.living if r.startswith(f"{kernel}:")]])
        target = rng.choice([None, None, *HOSTS])
        self.say(e.MigrationRequested(kernel, replica, target, self.now))

    def prefer(self, rng: random.Random) -> None:
        kernel = rng.choice(list(self.kernels))
        replica = rng.choice([None, *[r for r in self.living if r.startswith(f"{kernel}:")]])
        self.say(e.ExecutorPreferred(kernel, replica, self.now))

    def drain(self, rng: random.Random) -> None:
        host = rng.choice(sorted(self.up))
        if rng.random() < 0.5:
            self.say(e.HostDrainRequested(host, self.now, rng.random() < 0.5))
        else:
            self.say(e.HostDrainCancelled(host, self.now))

    def remove(self, host: HostId) -> None:
        """It leaves for good, with its logs, with or without having been asked to."""
        self.forget_host(host)
        self.removed.add(host)
        self.old_logs = {x for x in self.old_logs if x[1] != host}
        for logs in self.logs.values():
            logs.discard(host)
        self.say(e.HostRemoved(host, self.incarnation(host), self.now))

    def incarnation(self, host: HostId) -> str:
        return str(self.incarnations[host])

    def join(self, host: HostId) -> None:
        self.incarnations[host] = self.incarnations.get(host, 0) + 1
        self.up.add(host)
        self.removed.discard(host)
        gpus = {"host-1": 0, "host-2": 4}.get(host, 2)
        if not self.scheduler.policy.keeps_gpus:
            # While one of two hosts that share devices is lost, the other's kernels reserve them.
            gpus = SHARED.get(host, gpus)
        spec = host_spec(host, gpus, incarnation=self.incarnation(host))
        self.say(e.HostJoined(spec, self.now))

    def lose_host(self, host: HostId) -> None:
        self.forget_host(host)
        self.say(e.HostLost(host, self.incarnation(host), "gone", self.now))

    def forget_host(self, host: HostId) -> None:
        self.up.discard(host)
        self.leaving = [x for x in self.leaving if x.host != host]
        self.warming = [x for x in self.warming if x != host]
        self.warm.pop(host, None)
        self.starting = {r: x for r, x in self.starting.items() if x.host != host}
        self.living = {r: h for r, h in self.living.items() if h != host}
        self.locks = {d: who for d, who in self.locks.items() if who[2] != host}
        self.releasing = [x for x in self.releasing if x.host != host]

    def kill(self, replica: ReplicaId) -> None:
        host = self.living.pop(replica, None) or self.starting.pop(replica).host
        self.say(e.ReplicaLost(replica, host, self.incarnation(host), "killed", self.now))

    def replica_starts(self, replica: ReplicaId) -> None:
        action = self.starting.pop(replica)
        self.living[replica] = action.host
        self.say(e.ReplicaStarted(replica, action.host, self.incarnation(action.host), 1, self.now))

    def begin(self, action: a.StartAttempt) -> None:
        self.beginning.remove(action)
        ledger = self.ledgers[action.kernel]
        if ledger.lead is not None:
            # LOST could not be committed when nobody was left; agents do it before the next LEAD.
            older = ledger.lead
            assert older.attempt < action.attempt
            assert older.attempt not in [
                x.attempt for x in self.closing if x.kernel == action.kernel
            ]
            self.lose(action.kernel, older.cell, older.attempt, older.replica)
        lead = LeadEntry(ledger.epoch, action.cell, action.attempt, action.replica)
        assert ledger.accept(lead), "the scheduler began an attempt that agents would not count"
        self.running.append(action)
        self.say(e.AttemptStarted(action.kernel, action.cell, action.attempt, self.now))

    def refuse(self, action: a.StartAttempt, *, busy: bool, recycle: bool) -> None:
        self.beginning.remove(action)
        self.unlock(action.kernel, action.attempt)
        if (action.kernel, action.cell) in self.told:
            self.told[action.kernel, action.cell] = "submitted"
        devices = action.devices[:1] if busy else ()
        self.say(
            e.AttemptRefused(
                action.kernel, action.cell, action.attempt, "no", devices, recycle, self.now
            )
        )

    def end(self, action: a.StartAttempt, outcome: Outcome) -> None:
        self.running.remove(action)
        self.keep(action.kernel)
        ledger = self.ledgers[action.kernel]
        closed = ClosedEntry(
            ledger.epoch, action.cell, action.attempt, action.replica, outcome, None
        )
        assert ledger.accept(closed)
        del self.told[action.kernel, action.cell]
        self.say(e.AttemptClosed(action.kernel, action.cell, action.attempt, outcome, self.now))

    def closed(self, action: a.CloseAttempt) -> None:
        self.closing.remove(action)
        self.keep(action.kernel)
        ledger = self.ledgers[action.kernel]
        lead = ledger.lead
        if lead is not None and lead.attempt == action.attempt:
            self.lose(action.kernel, action.cell, action.attempt, lead.replica)
        self.say(
            e.AttemptClosed(action.kernel, action.cell, action.attempt, Outcome.LOST, self.now)
        )

    def released(self, action: a.ReleaseGpus) -> None:
        self.releasing.remove(action)
        self.unlock(action.kernel, action.attempt)
        self.say(e.GpusReleased(action.kernel, action.cell, action.attempt, self.now))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.say(e.Ticked(self.now))

    def request(self, kernel: KernelId, replicas: int, preference: ExecutorPreference) -> None:
        self.kernels[kernel] = 0
        self.ledgers[kernel] = Ledger()
        # A kernel of this id may have been there before; its numbers need not go on.
        self.highest[kernel] = 0
        spec = KernelSpec(kernel, replicas, 1, executor_preference=preference)
        self.say(e.KernelRequested(spec, self.now))

    def stop(self, kernel: KernelId) -> None:
        del self.kernels[kernel]
        self.say(e.KernelStopped(kernel, self.now))
        self.drop_attempts(kernel)
        # What hosts that are away still have of it is nobody's business any more.
        self.old_logs = {x for x in self.old_logs if x[0] != kernel}

    def restart(self, kernel: KernelId) -> None:
        self.say(e.KernelRestarted(kernel, self.now))

    def submit(self, kernel: KernelId, gpus: int, replica: int | None) -> None:
        self.cells += 1
        cell = CellId(f"c{self.cells}")
        self.told[kernel, cell] = "submitted"
        self.say(e.CellSubmitted(Cell(kernel, cell, gpus, "", replica), self.now))

    def cancel(self, kernel: KernelId, cell: CellId) -> None:
        self.say(e.CellCancelled(kernel, cell, self.now))

    # ---- chance

    def step(self, rng: random.Random) -> None:
        """One thing that can happen now, likelier ones more often."""
        moves = [(weight, move) for weight, move, possible in self._moves(rng) if possible]
        weights = [weight for weight, _ in moves]
        rng.choices([move for _, move in moves], weights)[0]()

    def _moves(self, rng: random.Random) -> list[tuple[float, Callable[[], None], object]]:
        return [
            (8, lambda: self._submit_some(rng), self.kernels),
            (12, lambda: self._answer_attempt(rng), self.beginning),
            (8, lambda: self.end(rng.choice(self.running), rng.choice(ENDS)), self.running),
            (6, lambda: self.released(rng.choice(self.releasing)), self.releasing),
            (6, lambda: self.closed(rng.choice(self.closing)), self.closing),
            (8, lambda: self.replica_starts(rng.choice(list(self.starting))), self.starting),
            (1, lambda: self.kill(rng.choice(list(self.starting))), self.starting),
            (1, lambda: self.kill(rng.choice(list(self.living))), self.living),
            (1, lambda: self.names_change(rng), self.living),
            (1, lambda: self.cancel(*rng.choice(list(self.told))), self.told),
            (2, lambda: self.tick(rng.choice([0.5, 1.0, 1.0, 5.0, 40.0])), True),
            (0.5, lambda: self.change_host(rng.choice(HOSTS)), True),
            (2, lambda: self._request_some(rng), len(self.kernels) < len(KERNELS)),
            (0.5, lambda: self.restart(rng.choice(list(self.kernels))), self.kernels),
            (0.2, lambda: self.stop(rng.choice(list(self.kernels))), self.kernels),
            (0.5, lambda: self._settings(rng), self.kernels),
            (1, lambda: self.hear_again(rng), self.past),
            (
                8,
                lambda: self.change_members(
                    rng.choice(list(self.changes)), done=rng.random() < 0.7
                ),
                self.changes,
            ),
            (
                6,
                lambda: self.store(rng.choice(list(self.storing)), done=rng.random() < 0.8),
                self.storing,
            ),
            (3, lambda: self.warmed(rng), self.warming),
            (
                0.3,
                lambda: self.lose_log(*rng.choice(self._members_up())),
                self._members_up(),
            ),
            (2, lambda: self.learn_log(*rng.choice(self.lost_logs())), self.lost_logs()),
            (1, lambda: self.ask_to_go_on(rng), self.kernels),
            (
                6,
                lambda: self.go_on(rng.choice(list(self.going_on)), rng, done=rng.random() < 0.8),
                self.going_on,
            ),
            (16, lambda: self.vote(rng), self.ballots),
            (
                0.3,
                lambda: self.say(e.KernelNeeded(rng.choice(list(self.stored)), self.now)),
                self.stored,
            ),
            (1, lambda: self.move(rng), self.kernels),
            (0.5, lambda: self.drain(rng), self.up),
            (0.5, lambda: self.prefer(rng), self.kernels),
            (0.1, lambda: self.remove(rng.choice(sorted(self.up))), self.up),
            (4, lambda: self.remove(rng.choice(self.leaving).host), self.leaving),
        ]

    def _members_up(self) -> list[tuple[KernelId, HostId]]:
        return [
            (kernel, host)
            for kernel, members in self.groups.items()
            for host in members
            if host in self.up and host in self.logs.get(kernel, ())
        ]

    def _submit_some(self, rng: random.Random) -> None:
        kernel = rng.choice(list(self.kernels))
        self.submit(kernel, rng.choice([0, 1, 1, 2, 2, 4, 5]), rng.choice([None, None, None, 1, 3]))

    def _answer_attempt(self, rng: random.Random) -> None:
        action = rng.choice(self.beginning)
        how = rng.choice(["begin"] * 5 + ["busy", "recycle", "refuse"])
        if how == "begin":
            self.begin(action)
        else:
            self.refuse(action, busy=how == "busy", recycle=how == "recycle")

    def _request_some(self, rng: random.Random) -> None:
        kernel = rng.choice([kernel for kernel in KERNELS if kernel not in self.kernels])
        self.request(kernel, rng.choice([1, 3, 3, 5]), rng.choice(list(ExecutorPreference)))

    def _settings(self, rng: random.Random) -> None:
        kernel, count = rng.choice(list(self.kernels)), rng.choice([1, 3, 5])
        self.say(e.KernelSettingsChanged(kernel, 1, count, self.now))

    def change_host(self, host: HostId) -> None:
        if host in self.up:
            self.lose_host(host)
        else:
            self.join(host)

    def names_change(self, rng: random.Random) -> None:
        replica = rng.choice(list(self.living))
        kernel = KernelId(replica.split(":")[0])
        some = rng.random() < 0.6
        if rng.random() < 0.5:
            names = (HeldName("sock", "socket", "open"),) if some else ()
            self.say(e.HoldChanged(kernel, replica, names, self.now))
        else:
            pending = ("model",) if some else ()
            self.say(e.DurabilityChanged(kernel, replica, pending, self.now))

    def hear_again(self, rng: random.Random) -> None:
        """Late words about closed attempts and past lives of hosts change nothing."""
        event = rng.choice(self.past[-200:])
        if not self._is_late(event):
            return
        actions = self.scheduler.handle(event)
        check(self.scheduler.state)
        for action in actions:
            # Time went on, so reasons may be said anew; nothing else follows.
            assert isinstance(action, a.CellWaiting), f"{event} led to {action}"

    def _is_late(self, event: e.Event) -> bool:
        if isinstance(event, e.HostLost | e.HostRemoved):
            return event.incarnation != str(self.incarnations[event.host])
        if isinstance(event, e.ReplicaStarted | e.ReplicaLost):
            return event.incarnation != str(self.incarnations[event.host])
        if isinstance(event, e.AttemptStarted | e.AttemptRefused | e.AttemptClosed):
            known = [*self.beginning, *self.running, *self.closing]
            return (event.kernel, event.attempt) not in [(x.kernel, x.attempt) for x in known]
        if isinstance(event, e.GpusReleased):
            return (event.kernel, event.attempt) not in [who[:2] for who in self.locks.values()]
        return False

    # ---- what must be true

    def examine(self) -> None:
        """Between two events."""
        busy = {(x.kernel, x.cell) for x in self.closing}
        for key, state in self.told.items():
            assert state != "submitted" or key in busy, f"nobody was told about {key}"
        bound = {d for d, b in self.scheduler.view.bindings.items() if not b.reserved}
        assert bound == set(self.locks), "a GPU leaked"
        self._nobody_waits_in_vain()

    def calm_down(self) -> None:
        """Once the storm is over everything ends: no cell, binding or attempt is left behind."""
        for host in HOSTS:
            if host not in self.up:
                self.join(host)
            self.say(e.HostDrainCancelled(host, self.now))
        for _ in range(400):
            while self.ballots:
                self.vote(random.Random(len(self.past)))
            self._calm_step()
            state = self.scheduler.state
            rest = (
                self.told,
                self.locks,
                self.starting,
                state.lost,
                state.moving,
                self.storing,
                self.going_on,
                state.without_majority,
            )
            if not any(rest):
                break
        assert not self.told, f"these cells never ended: {self.told}"
        assert not self.locks
        assert not self.scheduler.state.lost
        assert not self.scheduler.view.waiting
        assert all(b.reserved for b in self.scheduler.view.bindings.values())
        assert not self.learners, f"nobody closed the members {self.learners}"
        kept = {x for x in self.old_logs if x[0] in self.kernels}
        assert not kept, f"nobody deleted the old logs {kept}"
        assert not self.scheduler.view.without_majority
        for kernel in self.scheduler.view.kernels.values():
            assert self.groups.get(kernel.id, ()) == kernel.members

    def _calm_step(self) -> None:
        self._calm_groups()
        for replica in list(self.starting):
            if replica in self.starting:
                self.replica_starts(replica)
        for close in list(self.closing):
            self.closed(close)
        for release in list(self.releasing):
            self.released(release)
        for start in list(self.beginning):
            self.begin(start)
        for start in list(self.running):
            self.end(start, Outcome.DONE)
        for storing in list(self.storing):
            self.store(storing, done=True)
        for changing in list(self.changes):
            self.change_members(changing, done=True)
        for kernel in list(self.scheduler.view.kernels.values()):
            if kernel.held_by is not None:
                self.say(e.HoldChanged(kernel.id, kernel.held_by, (), self.now))
            if kernel.pending_on is not None:
                self.say(e.DurabilityChanged(kernel.id, kernel.pending_on, (), self.now))
        self.tick(5.0)
        self.examine()

    def _calm_groups(self) -> None:
        for kernel in list(self.going_on):
            self.go_on(kernel, random.Random(len(self.past)), done=True)
        for kernel, host in self.lost_logs():
            self.learn_log(kernel, host)
        for kernel in list(self.scheduler.view.without_majority):
            # What waiting does not bring back, going on does, or a restart.
            self.say(e.UnprotectedRequested(kernel, self.now))
            if kernel in self.scheduler.view.without_majority and kernel not in self.going_on:
                self.restart(kernel)

    def _nobody_waits_in_vain(self) -> None:
        """No cell waits that could run, unless GPUs are kept for older ones."""
        scheduler = self.scheduler
        if scheduler.state.queue.protected:
            return
        for waiting in scheduler.view.waiting:
            kernel = scheduler.view.kernel(waiting.cell.kernel)
            choice = scheduler.policy.choose(scheduler.view, kernel, waiting, kept=(), at=self.now)
            assert not isinstance(choice, Run), f"{waiting.cell.cell} could run and waits"
