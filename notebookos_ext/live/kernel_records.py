"""What the live side knows of each kernel beyond the scheduler's state: how to launch it, what ran.

Belongs to the controller's thread; others see it only through values made there.
"""

from __future__ import annotations

import collections
import dataclasses
import secrets
from typing import Any, Literal

import msgspec

from notebookos_ext.cluster.model import (
    CellId,
    DeviceId,
    HeldName,
    HostId,
    KernelId,
    KernelSpec,
    Outcome,
    ReplicaId,
)
from notebookos_ext.cluster.snapshots import StoredState
from notebookos_ext.storage.kept_kernels import (
    FORMAT,
    FORMAT_WITH_STORED,
    KeptKernel,
    KeptSession,
)

CELLS_KEPT = 20
LINE_CHARACTERS = 80
LOG_KEY_BYTES = 32


CellState = Literal["waiting", "running", "done", "failed", "lost", "aborted", "rejected"]


class LaunchPlan(msgspec.Struct, frozen=True):
    """How to launch a replica of a kernel; the same for each of them."""

    name: str
    """Name of the kernelspec."""
    python: str
    env: dict[str, str]
    cwd: str
    session_key: bytes
    sync: str = ""
    """What is committed before a cell's reply goes out; empty: as the cluster does."""


@dataclasses.dataclass(slots=True)
class ReplicaProcess:
    """The present process of a replica that answers."""

    host: HostId
    pid: int
    applied: int = 0
    committed: int = 0
    held: tuple[HeldName, ...] = ()
    pending: tuple[str, ...] = ()

    @property
    def lag(self) -> int:
        """Committed log entries that it has not applied."""
        return max(0, self.committed - self.applied)


@dataclasses.dataclass(slots=True)
class CellRecord:
    """One cell, from its arrival to its end. Times are the clock's `now()`."""

    cell: CellId
    code: str
    gpus: int
    gpus_reason: str
    submitted: float
    notebook_cell: str = ""
    """The cell's id in its notebook, where the client says it."""
    estimate_ms: int | None = None
    """How much longer it was likely to wait when that was last said."""
    state: CellState = "waiting"
    replica: ReplicaId | None = None
    host: HostId | None = None
    devices: tuple[DeviceId, ...] = ()
    started: float | None = None
    ended: float | None = None
    outcome: Outcome | None = None
    """What the log says of its attempt, which may be there before its reply is."""
    attempt: int = 0
    """The number of the attempt that runs or ran it."""

    def begin(
        self,
        attempt: int,
        replica: ReplicaId,
        host: HostId,
        devices: tuple[DeviceId, ...],
        at: float,
    ) -> None:
        """The replica runs it from now on."""
        self.state = "running"
        self.attempt = attempt
        self.replica = replica
        self.host = host
        self.devices = devices
        self.started = at

    def end(self, state: CellState, at: float) -> None:
        """It is over."""
        self.state = state
        self.ended = at


@dataclasses.dataclass(slots=True)
class OpenAttempt:
    """An attempt that the controller carries out for the scheduler."""

    cell: CellId
    attempt: int
    replica: ReplicaId
    host: HostId
    begun: bool = False
    given_up: bool = False
    """The scheduler had it closed: its cell must not be started any more."""
    outcome: Outcome | None = None
    """What its log says, once an agent reported it."""


@dataclasses.dataclass(slots=True)
class Restoration:
    """A kernel on its way out of the checkpoint store."""

    since: float
    size_bytes: int
    """How much the store has of it …"""
    fetched_bytes: int = 0
    """… and how much of that its first replica has loaded."""


class KernelRecord:
    """Everything about one kernel that only the live side needs."""

    wanted_replicas: int = 0
    """What it is on the way to, if that was changed since it began."""
    unprotected: bool = False
    """It went on after the loss of a majority."""
    leaving: bool = False
    """Its group is being left behind: nothing waits for a majority of it any more."""
    notice: str = ""
    """What the next cell's output says first."""

    def __init__(self, spec: KernelSpec, plan: LaunchPlan) -> None:
        self.spec = spec
        self.plan = plan
        self.log_key = b""
        self.group = 0
        """Counts its Raft groups: what was begun for one must not be done to another."""
        self.begin_group()
        self.epoch = 0
        self.members: tuple[HostId, ...] = ()
        """Hosts of its Raft group, once it has some."""
        self.founded: set[HostId] = set()
        """Hosts whose member was opened with success: they have a log, and must not lose it."""
        self.relearning: set[HostId] = set()
        """Hosts that have lost their log and do not vote until they have learnt it again."""
        self.former: set[HostId] = set()
        """Hosts that were away when a group of the kernel was left behind, with its log."""
        self.stored: StoredState | None = None
        """Where the store has its namespace, while no log has it."""
        self.storing = False
        """It is on its way there."""
        self.restoration: Restoration | None = None
        """It is on its way back: no replica has answered since."""
        self.description: dict[str, Any] | None = None
        """What its replicas say of themselves: the content of a kernel_info_reply."""
        self.used_at = float("-inf")
        """When the scheduler was last told that a client used it."""
        self.life = 1
        """How many controllers have had it, this one included."""
        self.session: KeptSession | None = None
        self.gpus_per_cell = spec.gpus_per_cell
        self.next_sync = plan.sync
        """What the plan says from the next restart on."""
        self.launches: dict[ReplicaId, int] = {}
        self.processes: dict[ReplicaId, ReplicaProcess] = {}
        self.gpu_names: frozenset[str] = frozenset()
        self.executor: ReplicaId | None = None
        self.attempts: dict[int, OpenAttempt] = {}
        self.cells: collections.deque[CellRecord] = collections.deque(maxlen=CELLS_KEPT)
        self.answered = False
        """A replica has answered once: whatever happens, the kernel is brought back."""
        self.failed_launches = 0
        """Before any replica answered; many of them mean that none ever will."""
        self.closed = False
        """The scheduler knows it no longer."""
        self.rejected = ""
        """Why the scheduler would not have it."""

    def revive(self, kept: KeptKernel) -> None:
        """Take over from an earlier controller."""
        self.log_key = kept.log_key
        self.members = kept.members
        self.epoch = kept.epoch
        self.life = kept.lives + 1
        self.session = kept.session
        self.founded = set(kept.founded)
        self.relearning = set(kept.relearning)
        self.wanted_replicas, self.unprotected = kept.wanted_replicas, kept.unprotected
        self.former = set(kept.former)
        self.description = kept.description
        self.stored = kept.stored
        if self.stored is not None:
            # What a server that ended in the middle of bringing it back began counts for nothing.
            self.members = ()
            if kept.epoch > self.stored.epoch:
                self.stored = StoredState(
                    kernel=kept.spec.kernel,
                    key=b"",
                    epoch=kept.epoch,
                    at=self.stored.at,
                    replica_count=self.stored.replica_count,
                )
            self.gpu_names = frozenset(self.stored.gpu_names)
        # It has run before: it is brought back whatever happens.
        self.answered = True

    def kept(self) -> KeptKernel:
        """What a later controller must know of it."""
        return KeptKernel(
            spec=msgspec.structs.replace(self.spec, gpus_per_cell=self.gpus_per_cell),
            kernel_name=self.plan.name,
            cwd=self.plan.cwd,
            log_key=self.log_key,
            members=self.members,
            epoch=self.epoch,
            lives=self.life,
            founded=tuple(sorted(self.founded)),
            relearning=tuple(sorted(self.relearning)),
            former=tuple(sorted(self.former)),
            wanted_replicas=self.wanted_replicas,
            unprotected=self.unprotected and len(self.members) < self.wanted_replicas,
            session=self.session,
            stored=self.stored,
            description=self.description,
            format=FORMAT if self.stored is None else FORMAT_WITH_STORED,
        )

    @property
    def kernel(self) -> KernelId:
        """Its id."""
        return self.spec.kernel

    def lives(self, epoch: int) -> bool:
        """Whether what was asked for in this epoch is still wanted."""
        return not self.closed and self.epoch == epoch

    def has_group(self, group: int) -> bool:
        """Whether what was asked for while it had this group may still be done."""
        return not self.closed and self.group == group

    def next_launch(self, replica: ReplicaId) -> int:
        """A number that no earlier launch of this replica had."""
        self.launches[replica] = self.launches.get(replica, 0) + 1
        return self.launches[replica]

    def add_cell(self, cell: CellRecord) -> None:
        """Remember a cell, newest first."""
        self.cells.appendleft(cell)

    def cell(self, cell: CellId) -> CellRecord | None:
        """A cell that is still remembered."""
        return next((record for record in self.cells if record.cell == cell), None)

    @property
    def open_cell(self) -> CellRecord | None:
        """The cell that waits or runs, if any: a kernel has one at a time."""
        newest = self.cells[0] if self.cells else None
        return newest if newest is not None and newest.ended is None else None

    def begin_group(self) -> None:
        """Its next members form a new Raft group: nothing that was signed before counts in it."""
        self.group += 1
        self.leaving = False
        self.log_key = secrets.token_bytes(LOG_KEY_BYTES)
        self.founded = set()
        self.relearning = set()

    def go_on(self, log_key: bytes, host: HostId, members: tuple[HostId, ...]) -> None:
        """Its group is that of the member on `host` now; `members` were those of the old one."""
        self.group += 1
        self.log_key = log_key
        self.members = (host,)
        self.founded, self.relearning = {host}, set()
        self.former = (self.former | set(members)) - {host}
        self.unprotected = True

    def begin_epoch(self) -> None:
        """The namespace is empty again: forget what was said about its names."""
        self.gpu_names = frozenset()
        self.executor = None
        self.attempts.clear()


def first_line(code: str) -> str:
    """The first line that says something, shortened; what the sidebar calls a cell."""
    line = next((text.strip() for text in code.splitlines() if text.strip()), "")
    return line if len(line) <= LINE_CHARACTERS else line[: LINE_CHARACTERS - 1] + "…"
