"""The life of a replica as a table, and a kernel as its replicas, open attempt and history."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

import msgspec

from notebookos_ext.cluster.model import (
    Cell,
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


@dataclass(slots=True)
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
    story: deque[str] = field(default_factory=lambda: deque(maxlen=STORY_LENGTH))

    def step(self, step: Step, at: float) -> None:
        """Move on by the table. Raises Defect, which tells what happened before, for all else."""
        following = TRANSITIONS.get((self.state, step))
        if following is None:
            before = "; ".join(self.story) or "nothing happened to it before"
            raise Defect(f"replica {self.id} is {self.state} and cannot be {step} ({before})")
        self.story.append(f"{at:g} s: {step}, so {following}")
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


@dataclass(slots=True)
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


@dataclass(slots=True)
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
    last_attempt: int = 0
    last_executor: ReplicaId | None = None
    waiting: list[WaitingCell] = field(default_factory=list)
    """Its cells that have not started, in their order."""
    held_by: ReplicaId | None = None
    held: tuple[HeldName, ...] = ()
    pending_on: ReplicaId | None = None
    pending: tuple[str, ...] = ()

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
        if not self.placed:
            return KernelState.WAITING_FOR_HOSTS
        if self.attempt is not None:
            return KernelState.BUSY
        if not any(replica.state in (IDLE, EXECUTING) for replica in self.replicas):
            return KernelState.STARTING
        return KernelState.QUEUED if self.waiting else KernelState.IDLE

    def replica(self, replica: ReplicaId) -> Replica | None:
        """Its replica of that id."""
        return next((r for r in self.replicas if r.id == replica), None)

    def set_gpus_per_cell(self, gpus: int) -> None:
        """From the next cell on."""
        self.spec = msgspec.structs.replace(self.spec, gpus_per_cell=gpus)

    def settle(self, members: tuple[HostId, ...]) -> None:
        """Give it hosts, and with them its replicas, none of which has a process yet."""
        self.members = members
        self.replicas = tuple(
            Replica(replica_id(self.id, number), number, host)
            for number, host in enumerate(members, start=1)
        )

    def forget_namespace(self) -> None:
        """What was known of the names of the epoch that is over."""
        self.started = False
        self.last_executor = None
        self.held_by, self.held = None, ()
        self.pending_on, self.pending = None, ()

    def forget_names_of(self, replica: ReplicaId) -> None:
        """The replica's process is gone, and what only it had with it; nobody can wait for that."""
        if self.held_by == replica:
            self.held_by, self.held = None, ()
        if self.pending_on == replica:
            self.pending_on, self.pending = None, ()
