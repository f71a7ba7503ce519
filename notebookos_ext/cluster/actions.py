"""Everything that the scheduler can ask for. What it asks is already reserved in its state; a
failure is one more event.
"""

from __future__ import annotations

import msgspec

from notebookos_ext.cluster.model import CellId, DeviceId, HostId, KernelId, ReplicaId


class StartReplica(msgspec.Struct, frozen=True, tag=True):
    """Launch `replica` on `host`; `members` are all hosts of the kernel's Raft group, in replica
    order.

    With `learner`, `host` is none of `members`: first a member is opened on it that learns the log
    without a vote. With `prewarmed`, one of the host's pre-warmed replicas is made this one; where
    there is none (any more) it is launched as always. Answered by ReplicaStarted or ReplicaLost.
    """

    kernel: KernelId
    replica: ReplicaId
    host: HostId
    members: tuple[HostId, ...]
    epoch: int
    learner: bool = False
    prewarmed: bool = False


class StopReplica(msgspec.Struct, frozen=True, tag=True):
    """End the replica's process; no event follows."""

    kernel: KernelId
    replica: ReplicaId
    host: HostId


class ChangeMembers(msgspec.Struct, frozen=True, tag=True):
    """Make `members` the voters of the kernel's group: who is new has learnt the log before.

    Safe to repeat. Answered by MembersChanged, also when it could not be done.
    """

    kernel: KernelId
    members: tuple[HostId, ...]


class CloseMember(msgspec.Struct, frozen=True, tag=True):
    """End the kernel's member on `host`, which has no vote (any more), and delete its log there.

    `members` are the voters, through which a learner is taken out of the group. No event follows.
    """

    kernel: KernelId
    host: HostId
    members: tuple[HostId, ...]


class MajorityLost(msgspec.Struct, frozen=True, tag=True):
    """Tell the user that the kernel can commit nothing, why, and what can be done."""

    kernel: KernelId
    reason: str


class GoOnUnprotected(msgspec.Struct, frozen=True, tag=True):
    """Found a new group of one member with what the one of `hosts` knows that knows most.

    `hosts` are what is left of the group of `members`, in order of preference where they know as
    much. No other member of that group may ever count in the new one. Answered by
    WentOnUnprotected; when it could not be done, everything is as before.
    """

    kernel: KernelId
    hosts: tuple[HostId, ...]
    members: tuple[HostId, ...]


class MigrationEnded(msgspec.Struct, frozen=True, tag=True):
    """What came of moving `victim` (None: a replica was added) to `target` (None: one was taken
    away). Not `moved`: everything is as before, because of `reason`.
    """

    kernel: KernelId
    victim: ReplicaId | None
    newcomer: ReplicaId | None
    target: HostId | None
    moved: bool
    reason: str


class StoreKernel(msgspec.Struct, frozen=True, tag=True):
    """Keep the namespace in the checkpoint store alone, then end the kernel on all `members`.

    Answered by KernelStored; when it could not be done, everything is as before.
    """

    kernel: KernelId
    members: tuple[HostId, ...]
    epoch: int


class RestoreKernel(msgspec.Struct, frozen=True, tag=True):
    """Open a new group on `members` with the namespace that StoreKernel kept, or an empty one.

    An `epoch` later than the one that was stored begins with an empty namespace. The launches of
    its replicas follow. No event of its own.
    """

    kernel: KernelId
    members: tuple[HostId, ...]
    epoch: int


class StartPrewarmed(msgspec.Struct, frozen=True, tag=True):
    """Start so many more pre-warmed replicas on the host.

    Answered by PrewarmedStarted or PrewarmedLost for each.
    """

    host: HostId
    count: int


class StopPrewarmed(msgspec.Struct, frozen=True, tag=True):
    """End so many pre-warmed replicas of the host, which has as many; no event follows."""

    host: HostId
    count: int


class ReleaseHost(msgspec.Struct, frozen=True, tag=True):
    """Nothing is left on the host: end its agent, give it back. Answered by HostRemoved."""

    host: HostId
    incarnation: str
    reason: str


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


class CallElection(msgspec.Struct, frozen=True, tag=True):
    """Let the agents of `voters` vote on who runs the cell, by whether they can bind `gpus`.

    Each answers with BallotCast, in the order of the kernel's log, or is lost. A StartAttempt of
    this number follows for the winner.
    """

    kernel: KernelId
    cell: CellId
    attempt: int
    voters: tuple[ReplicaId, ...]
    gpus: int


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
    """The cell waits at `position` (from 1) for `reason`; said again whenever either changes.

    `estimate_ms` is how much longer it is likely to wait, judged by how long cells ran lately; None
    where that says nothing.
    """

    kernel: KernelId
    cell: CellId
    position: int
    reason: str
    estimate_ms: int | None = None


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
    | ChangeMembers
    | CloseMember
    | MajorityLost
    | GoOnUnprotected
    | MigrationEnded
    | StoreKernel
    | RestoreKernel
    | StartPrewarmed
    | StopPrewarmed
    | RequestHosts
    | ReleaseHost
    | KernelStarted
    | KernelRejected
    | StartEpoch
    | CloseKernel
    | StartAttempt
    | CallElection
    | CloseAttempt
    | ReleaseGpus
    | CellWaiting
    | CellRejected
    | CellAborted
)
