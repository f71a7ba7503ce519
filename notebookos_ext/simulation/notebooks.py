"""What the simulated world keeps of each kernel: its processes, its members, its open attempt."""

from __future__ import annotations

from dataclasses import dataclass, field

from notebookos_ext.cluster.actions import ChangeMembers, StartAttempt
from notebookos_ext.cluster.model import CellId, DeviceId, HostId, KernelId, ReplicaId


@dataclass(slots=True)
class Process:
    """The process of a replica."""

    replica: ReplicaId
    host: HostId
    life: int
    """A replica may be launched again: what is said of an earlier life counts no more."""
    ready: bool = False
    devices: tuple[DeviceId, ...] = ()
    """What it has set its GPUs up on."""
    fresh_at_s: float = 0.0
    """When it will have applied everything that cells before have changed."""


@dataclass(slots=True)
class Running:
    """The open attempt of a kernel, in its agents' eyes."""

    start: StartAttempt
    begun: bool = False


@dataclass(slots=True)
class Notebook:
    """One kernel."""

    kernel: KernelId
    checkpoint_bytes: int
    durations_s: dict[CellId, float] = field(default_factory=dict)
    """How long each submitted cell will run."""
    processes: dict[ReplicaId, Process] = field(default_factory=dict)
    members: tuple[HostId, ...] = ()
    changing: ChangeMembers | None = None
    """The change of its members that is under way."""
    open: Running | None = None
    has_state: bool = False
    stored_epoch: int = 0
    """The epoch that the store alone kept last."""
    last_attempt: int = 0


def kernel_of(replica: ReplicaId) -> KernelId:
    """The kernel that a replica belongs to."""
    return KernelId(replica.rpartition(":")[0])
