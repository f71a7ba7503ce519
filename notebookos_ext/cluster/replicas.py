"""The life of a replica as a table, and a kernel as its replicas, open attempt and history."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

import msgspec

from notebookos_ext.cluster.election import Election
from notebookos_ext.cluster.hosts import NOTHING, Share
from notebookos_ext.cluster.model import (
    Cell,
    CellId,
    DeviceId,
    HeldName,
    HostId,
    KernelId,
    KernelSpec,
    KernelState,
    ReplicaId,
    ReplicaState,
    replica_id,
)
from notebookos_ext.cluster.queueing import WaitingCell
from notebookos_ext.errors import Defect

LOST, STARTING, IDLE = ReplicaState.LOST, ReplicaState.STARTING, ReplicaState.IDLE
EXECUTING, STOPPING = ReplicaState.EXECUTING, ReplicaState.STOPPING

RELAUNCH_WAIT_MAX_S = 30.0
YOUNG_S = 5.0
"""A replica that ends this soon after it started counts as one that cannot start."""
STORY_LENGTH = 12


class Step(enum.StrEnum):
    """What can happen to a replica."""

    LAUNCHED = "launched"
    STARTED = "started"
    CHOSEN = "chosen"
    """It is to be the executor of an attempt."""
    RETURNED = "returned"
    """Its attempt ended or was refused."""
    STOPPED = "stopped"
    DIED = "died"


TRANSITIONS: dict[tuple[ReplicaState, Step], ReplicaState] = {
    (LOST, Step.LAUNCHED): STARTING,
    (STARTING, Step.STARTED): IDLE,
    (IDLE, Step.CHOSEN): EXECUTING,
    (EXECUTING, Step.RETURNED): IDLE,
    (STARTING, Step.DIED): LOST,
    (IDLE, Step.DIED): LOST,
    (EXECUTING, Step.DIED): LOST,
    (STARTING, Step.STOPPED): STOPPING,
    (IDLE, Step.STOPPED): STOPPING,
    (EXECUTING, Step.STOPPED): STOPPING,
    (STOPPING, Step.LAUNCHED): STARTING,
}
"""Everything that may happen; a replica begins LOST, because there is no process of it yet."""


@dataclass(slots=True, eq=False)
class Replica:
    """One process of a kernel, over all its lives on its host."""

    id: ReplicaId
    number: int
    host: HostId
    state: ReplicaState = LOST
    pid: int | None = None
    devices: tuple[DeviceId, ...] = ()
    """What the present process was last bound to; it may not be able to change them."""
    started_at: float = 0.0
    failures: int = 0
    relaunch_at: float = 0.0
    lost_reason: str = ""
    share: Share = NOTHING
    """What it promises of its host."""
    story: deque[tuple[float, Step, ReplicaState]] = field(
        default_factory=lambda: deque(maxlen=STORY_LENGTH)
    )

    def step(self, step: Step, at: float) -> None:
        """Move on by the table. Raises Defect, which tells what happened before, for all else."""
        following = TRANSITIONS.get((self.state, step))
        if following is None:
            told = (f"{when:g} s: {what}, so {then}" for when, what, then in self.story)
            before = "; ".join(told) or "nothing happened to it before"
            raise Defect(f"replica {self.id} is {self.state} and cannot be {step} ({before})")
        self.story.append((at, step, following))
        self.state = following
        if following is not IDLE and following is not EXECUTING:
            self.pid = None
            self.devices = ()

    def can(self, step: Step) -> bool:
        """Whether the table allows the step now."""
        return (self.state, step) in TRANSITIONS

    def plan_relaunch(self, at: float) -> None:
        """Note, before it is LOST, when it may be launched again.

        At once after a good life; after 1, 2, 4 … 30 s when it could not start or did not last.
        """
        if self.state is STARTING:
            self.failures += 1
            self.relaunch_at = at + relaunch_wait_s(self.failures)
        elif at - self.started_at < YOUNG_S:
            self.relaunch_at = at + relaunch_wait_s(self.failures)
            self.failures += 1
        else:
            self.failures = 0
            self.relaunch_at = at


def relaunch_wait_s(failures: int) -> float:
    """How long to wait after so many failures in a row."""
    return 0.0 if failures == 0 else min(RELAUNCH_WAIT_MAX_S, 2.0 ** min(failures - 1, 10))


class Phase(enum.StrEnum):
    """How far the open attempt of a kernel is."""

    STARTING = "starting"
    RUNNING = "running"
    CLOSING = "closing"
    """Its executor is gone (or the cell was taken back); LOST is being committed."""


@dataclass(slots=True, eq=False)
class Attempt:
    """The open attempt of a kernel; there is at most one."""

    number: int
    waiting: WaitingCell
    """The cell, with its place in the queue should the attempt be refused."""
    replica: ReplicaId
    host: HostId
    devices: tuple[DeviceId, ...]
    since: float
    phase: Phase = Phase.STARTING
    cancelled: bool = False
    retry: bool = False
    """The cell's code had not begun when the executor was lost: it is tried again."""

    @property
    def cell(self) -> Cell:
        """What it runs."""
        return self.waiting.cell


class MigrationReason(enum.StrEnum):
    """Why a replica moves; people read it."""

    CELL = "no host of the kernel could run its cell"
    BY_HAND = "it was asked for"
    DRAIN = "its host is being emptied"
    REBALANCING = "ahead of the kernel's next cell"
    REPLICA_COUNT = "the kernel's replica count was changed"


class MigrationPhase(enum.StrEnum):
    """How far a migration is; the old replica serves until the members have changed."""

    STARTING = "starting"
    """The new replica starts and catches up with the log."""
    CAUGHT_UP = "caught-up"
    """It could take over, but the old one runs a cell."""
    CHANGING = "changing"
    """The group's members are being changed; what comes of it is known only by the answer."""


@dataclass(slots=True, eq=False)
class Migration:
    """A replica on its way to another host, or one more, or one less."""

    reason: MigrationReason
    since: float
    victim: ReplicaId | None
    """The replica that goes; None when one is added."""
    newcomer: Replica | None
    """The replica that comes; None when one is taken away."""
    cell: CellId | None = None
    """The cell that waits for it."""
    phase: MigrationPhase = MigrationPhase.STARTING
    members: tuple[HostId, ...] = ()
    """While CHANGING: those that were asked for."""

    @property
    def target(self) -> HostId | None:
        """Where the newcomer lives."""
        return self.newcomer.host if self.newcomer is not None else None

    @property
    def replaces(self) -> ReplicaId | None:
        """The replica that must not be chosen any more."""
        return self.victim if self.phase is MigrationPhase.CHANGING else None


@dataclass(slots=True, eq=False)
class Kernel:
    """A distributed kernel."""

    spec: KernelSpec
    requested_at: float
    next_replica_count: int
    epoch: int = 0
    started: bool = False
    """A replica of this epoch has answered."""
    members: tuple[HostId, ...] = ()
    """Hosts of its Raft group in replica order; empty while it waits for hosts."""
    replicas: tuple[Replica, ...] = ()
    attempt: Attempt | None = None
    election: Election | None = None
    """Open for its first waiting cell."""
    last_attempt: int = 0
    last_executor: ReplicaId | None = None
    preferred: ReplicaId | None = None
    """Somebody wants this replica to run the next cell that it can."""
    waiting: list[WaitingCell] = field(default_factory=list)
    """Its cells that have not started, in their order."""
    held_by: ReplicaId | None = None
    held: tuple[HeldName, ...] = ()
    pending_on: ReplicaId | None = None
    pending: tuple[str, ...] = ()
    next_number: int = 1
    """The number of the replica that comes next; none is used twice in the life of a group."""
    migration: Migration | None = None
    moved_at: float = float("-inf")
    """When a replica was last moved ahead of its cells."""
    avoid: dict[HostId, float] = field(default_factory=dict)
    """Hosts to which a move failed, and until when they are not tried again."""
    stored: bool = False
    """Its namespace is in the store alone; no replica runs."""
    storing: bool = False
    """It is on its way there."""
    lost_members: dict[HostId, str] = field(default_factory=dict)
    """Members without a usable log, and why: they do not vote."""
    majority_lost_at: float | None = None
    """Since when too few members are left to commit anything; None: enough are."""
    majority_told: bool = False
    """That has lasted for so long that the user was told."""
    going_on: bool = False
    """A new group is being founded on what is left of it."""
    put_back: bool = False
    """It lost its majority on its way back from the store, and was sent back there once."""
    go_on_at: float = float("-inf")
    """When that may be tried again by itself."""
    went_on: bool = False
    """Its present group was founded on what was left of another."""
    former: set[HostId] = field(default_factory=set)
    """Hosts that are away and may still have a log of a group that was left behind."""
    restart_due: bool = False
    """It was restarted on its way there."""
    restoring: bool = False
    """It is on its way back: no replica has answered since."""
    active_at: float = 0.0
    """When a cell of it arrived or ended last."""
    gpus_active_at: float = float("-inf")
    """The same of cells with GPUs …"""
    gpus_active: int = 0
    """… and how many they asked for last."""

    @property
    def id(self) -> KernelId:
        """Jupyter's id."""
        return self.spec.kernel

    @property
    def gpus_per_cell(self) -> int:
        """What a cell gets that the simple rule calls a GPU cell."""
        return self.spec.gpus_per_cell

    @property
    def placed(self) -> bool:
        """Whether it has its hosts."""
        return bool(self.members)

    @property
    def state(self) -> KernelState:
        """The state that people see."""
        if self.stored and not self.waiting:
            return KernelState.STORED
        if not self.placed:
            return KernelState.WAITING_FOR_HOSTS
        if self.majority_told:
            return KernelState.NO_MAJORITY
        if self.attempt is not None:
            return KernelState.BUSY
        if not any(replica.state in (IDLE, EXECUTING) for replica in self.replicas):
            return KernelState.STARTING
        return KernelState.QUEUED if self.waiting else KernelState.IDLE

    def replica(self, replica: ReplicaId) -> Replica | None:
        """Its replica of that id, the one that is on its way included."""
        for found in self.replicas:
            if found.id == replica:
                return found
        newcomer = self.migration.newcomer if self.migration is not None else None
        return newcomer if newcomer is not None and newcomer.id == replica else None

    @property
    def is_unprotected(self) -> bool:
        """It went on after the loss of a majority and does not have its replicas yet."""
        return self.went_on and len(self.replicas) < self.next_replica_count

    def numbered(self, number: int) -> Replica | None:
        """Its replica of that number."""
        return next((r for r in self.replicas if r.number == number), None)

    @property
    def next_executor(self) -> ReplicaId | None:
        """The replica that somebody prefers, if it is still one of them."""
        return self.preferred if any(r.id == self.preferred for r in self.replicas) else None

    @property
    def user(self) -> str:
        """Whose fair share and quota its cells count towards."""
        return self.spec.user or self.spec.kernel

    def set_gpus_per_cell(self, gpus: int) -> None:
        """From the next cell on."""
        self.spec = msgspec.structs.replace(self.spec, gpus_per_cell=gpus)

    def settle(self, members: tuple[HostId, ...]) -> None:
        """Give it hosts, and with them its replicas, none of which has a process yet."""
        self.members = members
        self.lost_members, self.went_on, self.going_on = {}, False, False
        self.replicas = tuple(
            Replica(replica_id(self.id, number), number, host)
            for number, host in enumerate(members, start=1)
        )
        self.next_number = len(members) + 1
        self.preferred = None

    def newcomer(self, host: HostId) -> Replica:
        """A further replica of a number of its own, which is none of its members yet."""
        number, self.next_number = self.next_number, self.next_number + 1
        return Replica(replica_id(self.id, number), number, host)

    def forget_namespace(self) -> None:
        """What was known of the names of the epoch that is over."""
        self.started = False
        self.last_executor = self.preferred = None
        self.held_by, self.held = None, ()
        self.pending_on, self.pending = None, ()

    def forget_names_of(self, replica: ReplicaId) -> None:
        """The replica's process is gone, and what only it had with it; nobody can wait for that."""
        if self.held_by == replica:
            self.held_by, self.held = None, ()
        if self.pending_on == replica:
            self.pending_on, self.pending = None, ()
