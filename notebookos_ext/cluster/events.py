"""Everything that can happen to the scheduler. Each event has `at`, in seconds of the caller's
clock.
"""

from __future__ import annotations

import msgspec

from notebookos_ext.cluster.model import (
    Cell,
    CellId,
    DeviceId,
    HeldName,
    HostId,
    HostSpec,
    KernelId,
    KernelSpec,
    Outcome,
    ReplicaId,
)


class HostJoined(msgspec.Struct, frozen=True, tag=True):
    """An agent is there; a known host id with a new incarnation means that the old one is gone."""

    spec: HostSpec
    at: float


class HostLost(msgspec.Struct, frozen=True, tag=True):
    """The agent's process ended or its lease expired; all its replicas and bindings are gone."""

    host: HostId
    incarnation: str
    reason: str
    at: float


class HostRemoved(msgspec.Struct, frozen=True, tag=True):
    """The host is gone for good, with its logs: it was released, or somebody took it away."""

    host: HostId
    incarnation: str
    at: float


class HostDrainRequested(msgspec.Struct, frozen=True, tag=True):
    """Take everything off the host: nothing new goes there, and what is there moves.

    With `release`, it is given back once it is empty.
    """

    host: HostId
    at: float
    release: bool = False


class HostDrainCancelled(msgspec.Struct, frozen=True, tag=True):
    """The host is to be used like any other again; what has moved does not come back."""

    host: HostId
    at: float


class HostsUnavailable(msgspec.Struct, frozen=True, tag=True):
    """The backend has no more hosts to give for now; asked again after a while."""

    reason: str
    at: float


class PrewarmedStarted(msgspec.Struct, frozen=True, tag=True):
    """One more pre-warmed replica of the host is ready to be used."""

    host: HostId
    incarnation: str
    at: float


class PrewarmedLost(msgspec.Struct, frozen=True, tag=True):
    """A pre-warmed replica ended, if `ready`, or could not be started."""

    host: HostId
    incarnation: str
    ready: bool
    reason: str
    at: float


class KernelRequested(msgspec.Struct, frozen=True, tag=True):
    """A client asked for a new kernel."""

    spec: KernelSpec
    at: float


class KernelRevived(msgspec.Struct, frozen=True, tag=True):
    """A kernel of an earlier controller, whose log its hosts have kept, is wanted again.

    `members` are the hosts of its Raft group in replica order; `epoch` has begun or was about to;
    attempts up to `last_attempt` may be in its log. With `stored`, there are no members: its
    namespace is in the store alone.
    """

    spec: KernelSpec
    members: tuple[HostId, ...]
    epoch: int
    last_attempt: int
    at: float
    former: tuple[HostId, ...] = ()
    """Hosts that may still have a log of a group that the kernel has left behind."""
    stored: bool = False
    unprotected: bool = False
    """It went on after the loss of a majority, and did not have its replicas again."""


class KernelStopped(msgspec.Struct, frozen=True, tag=True):
    """The user shut the kernel down (or its server does)."""

    kernel: KernelId
    at: float


class KernelRestarted(msgspec.Struct, frozen=True, tag=True):
    """The user restarted the kernel: a new epoch with an empty namespace; waiting cells are
    aborted.

    The replica count of `spec` takes effect when the number of hosts allows it.
    """

    kernel: KernelId
    at: float


class KernelSettingsChanged(msgspec.Struct, frozen=True, tag=True):
    """New per-notebook settings; None leaves one as it is.

    GPUs per cell and the longest wait apply to the next cell, replicas as soon as hosts allow, type
    and memory to replicas that are placed from now on.
    """

    kernel: KernelId
    gpus_per_cell: int | None
    replica_count: int | None
    at: float
    gpu_type: str | None = None
    gpu_memory_bytes: int | None = None
    memory_bytes: int | None = None
    gpu_wait_s: float | None = None


class MigrationRequested(msgspec.Struct, frozen=True, tag=True):
    """Somebody asks that a replica moves; None leaves the choice to us."""

    kernel: KernelId
    replica: ReplicaId | None
    target: HostId | None
    at: float


class ExecutorPreferred(msgspec.Struct, frozen=True, tag=True):
    """Somebody wants this replica to run the next cell that it can; None takes that back."""

    kernel: KernelId
    replica: ReplicaId | None
    at: float


class MembersChanged(msgspec.Struct, frozen=True, tag=True):
    """The voters of the kernel's group are `members` now; `reason` says why not those asked for."""

    kernel: KernelId
    members: tuple[HostId, ...]
    reason: str
    at: float


class MemberLost(msgspec.Struct, frozen=True, tag=True):
    """The host has no usable log of the kernel any more: its member cannot vote."""

    kernel: KernelId
    host: HostId
    reason: str
    at: float


class MemberBack(msgspec.Struct, frozen=True, tag=True):
    """A member that was lost has learnt the log again from the others, and votes."""

    kernel: KernelId
    host: HostId
    at: float


class UnprotectedRequested(msgspec.Struct, frozen=True, tag=True):
    """Somebody asks that a kernel without a majority goes on with what is left of it."""

    kernel: KernelId
    at: float


class WentOnUnprotected(msgspec.Struct, frozen=True, tag=True):
    """A new group of `host` alone holds what its member knew; None: there is none, for `reason`."""

    kernel: KernelId
    host: HostId | None
    reason: str
    at: float


class KernelNeeded(msgspec.Struct, frozen=True, tag=True):
    """A client wants something of the kernel, and it is no cell.

    One that is in the store alone is brought back; any other does not count as idle.
    """

    kernel: KernelId
    at: float


class KernelStored(msgspec.Struct, frozen=True, tag=True):
    """The store has the kernel's namespace and its replicas are gone; or, not `stored`, why not."""

    kernel: KernelId
    stored: bool
    reason: str
    at: float


class ReplicaStarted(msgspec.Struct, frozen=True, tag=True):
    """The replica answers and has applied the whole committed log."""

    replica: ReplicaId
    host: HostId
    incarnation: str
    pid: int
    at: float


class ReplicaLost(msgspec.Struct, frozen=True, tag=True):
    """The replica's process ended without being asked to, or could not be started."""

    replica: ReplicaId
    host: HostId
    incarnation: str
    reason: str
    at: float


class CellSubmitted(msgspec.Struct, frozen=True, tag=True):
    """The router has an execute_request at the head of the kernel's queue."""

    cell: Cell
    at: float


class CellCancelled(msgspec.Struct, frozen=True, tag=True):
    """An interrupt, restart or abort took back a cell that has not started."""

    kernel: KernelId
    cell: CellId
    at: float


class BallotCast(msgspec.Struct, frozen=True, tag=True):
    """A replica's ballot is committed: LEAD with the devices that its host would bind, or YIELD.

    Ballots come in the order of the kernel's log.
    """

    kernel: KernelId
    cell: CellId
    attempt: int
    replica: ReplicaId
    lead: bool
    devices: tuple[DeviceId, ...]
    reason: str
    at: float


class AttemptStarted(msgspec.Struct, frozen=True, tag=True):
    """LEAD is committed and the devices are bound: the replica is the executor."""

    kernel: KernelId
    cell: CellId
    attempt: int
    at: float


class AttemptRefused(msgspec.Struct, frozen=True, tag=True):
    """The attempt could not start; nothing of it is left behind.

    `busy` names devices that somebody outside this cluster uses. `recycle` asks for the replica to
    be
    restarted from the log first (its CUDA was initialised on other devices). Neither: try
    elsewhere.
    """

    kernel: KernelId
    cell: CellId
    attempt: int
    reason: str
    busy: tuple[DeviceId, ...]
    recycle: bool
    at: float


class AttemptClosed(msgspec.Struct, frozen=True, tag=True):
    """DONE, FAILED or LOST is committed (or, LOST, decided because no majority is left)."""

    kernel: KernelId
    cell: CellId
    attempt: int
    outcome: Outcome
    at: float


class GpusReleased(msgspec.Struct, frozen=True, tag=True):
    """The devices' memory is free (or measured as not) and others may bind them."""

    kernel: KernelId
    cell: CellId
    attempt: int
    at: float


class HoldChanged(msgspec.Struct, frozen=True, tag=True):
    """What cannot travel from `replica`; an empty `names` lifts the hold."""

    kernel: KernelId
    replica: ReplicaId
    names: tuple[HeldName, ...]
    at: float


class DurabilityChanged(msgspec.Struct, frozen=True, tag=True):
    """Names of `replica` whose newest value is not yet in the log and store; empty: all is durable.

    While it is not empty only `replica` can run the next cell; the scheduler waits for it rather
    than choose another (design 4.7).
    """

    kernel: KernelId
    replica: ReplicaId
    names: tuple[str, ...]
    at: float


class Ticked(msgspec.Struct, frozen=True, tag=True):
    """Time passes; at least once a second while anything waits."""

    at: float


Event = (
    HostJoined
    | HostLost
    | HostRemoved
    | HostDrainRequested
    | HostDrainCancelled
    | HostsUnavailable
    | PrewarmedStarted
    | PrewarmedLost
    | KernelRequested
    | KernelRevived
    | KernelStopped
    | KernelRestarted
    | KernelSettingsChanged
    | MigrationRequested
    | ExecutorPreferred
    | MembersChanged
    | MemberLost
    | MemberBack
    | UnprotectedRequested
    | WentOnUnprotected
    | KernelStored
    | KernelNeeded
    | ReplicaStarted
    | ReplicaLost
    | CellSubmitted
    | CellCancelled
    | BallotCast
    | AttemptStarted
    | AttemptRefused
    | AttemptClosed
    | GpusReleased
    | HoldChanged
    | DurabilityChanged
    | Ticked
)
