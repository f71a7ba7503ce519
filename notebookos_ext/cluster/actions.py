"""Everything that the scheduler can ask for. What it asks is already reserved in its state; a
failure is one more event.
"""

from __future__ import annotations

import msgspec

from notebookos_ext.cluster.model import CellId, DeviceId, HostId, KernelId, ReplicaId


class StartReplica(msgspec.Struct, frozen=True, tag=True):
    """Launch `replica` on `host`; `members` are all hosts of the kernel's Raft group, in replica
    order.

    Answered by ReplicaStarted or ReplicaLost.
    """

    kernel: KernelId
    replica: ReplicaId
    host: HostId
    members: tuple[HostId, ...]
    epoch: int


class StopReplica(msgspec.Struct, frozen=True, tag=True):
    """End the replica's process; no event follows."""

    kernel: KernelId
    replica: ReplicaId
    host: HostId


class RequestHosts(msgspec.Struct, frozen=True, tag=True):
    """The cluster should have `count` hosts in all (absolute); the backend clamps it. Answered by
    HostJoined.
    """

    count: int
    reason: str


class KernelStarted(msgspec.Struct, frozen=True, tag=True):
    """The first replica of the kernel (or of its new epoch) answers: clients can be served."""

    kernel: KernelId


class KernelRejected(msgspec.Struct, frozen=True, tag=True):
    """The kernel cannot be had; nothing of it remains."""

    kernel: KernelId
    reason: str


class StartEpoch(msgspec.Struct, frozen=True, tag=True):
    """Commit a new epoch in the kernel's log, before the replicas of the new epoch are launched."""

    kernel: KernelId
    epoch: int
    members: tuple[HostId, ...]


class CloseKernel(msgspec.Struct, frozen=True, tag=True):
    """End the kernel everywhere and delete its log; no event follows."""

    kernel: KernelId
    members: tuple[HostId, ...]


class StartAttempt(msgspec.Struct, frozen=True, tag=True):
    """Bind `devices` on `host` and commit LEAD(cell, attempt, replica).

    Answered by AttemptStarted or AttemptRefused. An empty `devices` binds nothing.
    """

    kernel: KernelId
    cell: CellId
    attempt: int
    replica: ReplicaId
    host: HostId
    devices: tuple[DeviceId, ...]


class CloseAttempt(msgspec.Struct, frozen=True, tag=True):
    """Commit LOST(cell, attempt) through the agents of `members` that are left.

    Answered by AttemptClosed. The router then ends the cell with ExecutorLost and `reason`, unless
    `ends_cell` is False: its code had not begun, and it was cancelled before or is tried again.
    """

    kernel: KernelId
    cell: CellId
    attempt: int
    members: tuple[HostId, ...]
    reason: str
    ends_cell: bool = True


class ReleaseGpus(msgspec.Struct, frozen=True, tag=True):
    """Park what lives on the devices in host memory and give them back. Answer: GpusReleased."""

    kernel: KernelId
    cell: CellId
    attempt: int
    replica: ReplicaId
    host: HostId
    devices: tuple[DeviceId, ...]


class CellWaiting(msgspec.Struct, frozen=True, tag=True):
    """The cell waits at `position` (from 1) for `reason`; said again whenever either changes."""

    kernel: KernelId
    cell: CellId
    position: int
    reason: str


class CellRejected(msgspec.Struct, frozen=True, tag=True):
    """The cell can never run (more GPUs than any host has): the router answers it with an error."""

    kernel: KernelId
    cell: CellId
    reason: str
    hint: str = ""


class CellAborted(msgspec.Struct, frozen=True, tag=True):
    """The cell was cancelled before it started; the router answers it as aborted."""

    kernel: KernelId
    cell: CellId
    reason: str


Action = (
    StartReplica
    | StopReplica
    | RequestHosts
    | KernelStarted
    | KernelRejected
    | StartEpoch
    | CloseKernel
    | StartAttempt
    | CloseAttempt
    | ReleaseGpus
    | CellWaiting
    | CellRejected
    | CellAborted
)
