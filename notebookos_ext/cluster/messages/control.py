"""What a controller and a host agent say to each other on the control connection.

Requests travel in a `ToAgent` with a sequence number and are answered by a `FromAgent` with the
same one; number 0 marks a notice that nobody answers.
"""

from __future__ import annotations

import msgspec

from notebookos_ext.cluster.consensus.replicated_log import MemberStatus
from notebookos_ext.cluster.entries import ChunkRef
from notebookos_ext.cluster.model import (
    CellId,
    DeviceId,
    HeldName,
    HostId,
    HostSpec,
    KernelId,
    Outcome,
    ReplicaId,
)
from notebookos_ext.cluster.snapshots import StoredState

PROTOCOL_VERSION = 1


# ---- controller → host agent: requests -------------------------------------------------------


class Attach(msgspec.Struct, frozen=True, tag=True):
    """First request on a control connection: adopt this agent and start (or renew) its lease.

    `proof` answers the agent's Challenge with the cluster token. A second controller takes over
    from
    the first, whose connection is closed.
    """

    proof: bytes
    controller: str
    lease_s: float
    version: int = PROTOCOL_VERSION


class RenewLease(msgspec.Struct, frozen=True, tag=True):
    """The controller is alive. An agent whose lease runs out ends its replicas and itself."""

    lease_s: float


class SetPeers(msgspec.Struct, frozen=True, tag=True):
    """Where the other agents' peer transports listen, and which of them are lost right now."""

    addresses: dict[str, str]
    lost: tuple[HostId, ...]


class OpenKernel(msgspec.Struct, frozen=True, tag=True):
    """Create or recover this host's member of the kernel's Raft group; idempotent."""

    kernel: KernelId
    members: tuple[HostId, ...]
    log_key: bytes
    campaign: bool
    """True on the host whose member should lead at first."""
    is_new: bool = True
    """The group is being founded; else the host must have its log, or answers LogLost."""


class JoinGroup(msgspec.Struct, frozen=True, tag=True):
    """Have a member of the kernel's group here that did not found it. Answered by Joined.

    It learns nothing before AddLearner was asked of a host that votes.
    """

    kernel: KernelId
    log_key: bytes


class AddLearner(msgspec.Struct, frozen=True, tag=True):
    """Let `member`, from Joined, learn the log; it takes the place of what its host had before."""

    kernel: KernelId
    member: str


class ChangeMembers(msgspec.Struct, frozen=True, tag=True):
    """Make these hosts' members the voters, and take all others out. Answered by MembersAre."""

    kernel: KernelId
    members: tuple[HostId, ...]


class ForgetLearner(msgspec.Struct, frozen=True, tag=True):
    """Take the host's member out of the group unless it votes."""

    kernel: KernelId
    host: HostId


class PrepareGroup(msgspec.Struct, frozen=True, tag=True):
    """Give up the kernel's group here, and put the log of a new one of this member alone on disk.

    It has the key `log_key` and everything that the member knows. Until SwitchGroup nothing is
    committed by either. Answered by GroupPrepared; a Failure leaves the old group as it was.
    """

    kernel: KernelId
    log_key: bytes


class SwitchGroup(msgspec.Struct, frozen=True, tag=True):
    """Go on in the group that was prepared with this key, and delete the logs of all others."""

    kernel: KernelId
    log_key: bytes


class NewEpoch(msgspec.Struct, frozen=True, tag=True):
    """Commit an EpochEntry."""

    kernel: KernelId
    epoch: int


class LaunchReplica(msgspec.Struct, frozen=True, tag=True):
    """Fork a replica from the template of `python`; idempotent by (replica, launch).

    Answered as soon as the process exists; ReplicaReady or ReplicaExited follows as a notice.
    """

    kernel: KernelId
    replica: ReplicaId
    epoch: int
    launch: int
    """Counts the launches of this replica, so that a late notice about an older process is told
    apart.
    """
    python: str
    """Path of the interpreter of the kernelspec."""
    env: dict[str, str]
    cwd: str
    session_key: bytes
    """The Jupyter session key, shared by router and replicas so that frames pass unsigned-again."""
    options: dict[str, str | int | float | bool]
    """Settings of the replica: `sync`, `reply_budget_ms`, `inline_bytes`, `block_bytes`, …"""
    prewarmed: bool = False
    """Make one of the host's pre-warmed replicas this one, unless there is none any more."""


class StartPrewarmed(msgspec.Struct, frozen=True, tag=True):
    """Start so many pre-warmed replicas, of the interpreter that was launched last.

    Answered at once; PrewarmedReady or PrewarmedExited follows as a notice for each.
    """

    count: int


class StopPrewarmed(msgspec.Struct, frozen=True, tag=True):
    """End so many pre-warmed replicas; no notice follows."""

    count: int


class StopReplica(msgspec.Struct, frozen=True, tag=True):
    """End a replica: politely, then by force after `grace_s`."""

    replica: ReplicaId
    grace_s: float


class InterruptReplica(msgspec.Struct, frozen=True, tag=True):
    """Interrupt the replica's process; of cells only `cell`, if one is named."""

    replica: ReplicaId
    cell: CellId | None = None


class CastBallot(msgspec.Struct, frozen=True, tag=True):
    """Commit the replica's ballot: LEAD if this host could bind so many GPUs for it, else YIELD.

    Binds nothing. Answered by Done; BallotCommitted follows from every host of the kernel.
    """

    kernel: KernelId
    cell: CellId
    attempt: int
    replica: ReplicaId
    gpus: int


class BeginAttempt(msgspec.Struct, frozen=True, tag=True):
    """Bind `devices`, bring the replica up to date, commit LEAD, make the devices visible.

    Answered by AttemptBegun or AttemptNotBegun; after the latter nothing is bound.
    """

    kernel: KernelId
    cell: CellId
    attempt: int
    replica: ReplicaId
    devices: tuple[DeviceId, ...]


class LoseAttempt(msgspec.Struct, frozen=True, tag=True):
    """Commit LOST for an attempt whose executor is gone. Answered by Done or Failure."""

    kernel: KernelId
    cell: CellId
    attempt: int
    replica: ReplicaId


class ReleaseDevices(msgspec.Struct, frozen=True, tag=True):
    """Park the replica's device memory and give the devices back. Answered by DevicesReleased."""

    kernel: KernelId
    cell: CellId
    attempt: int
    replica: ReplicaId
    devices: tuple[DeviceId, ...]


class CloseMember(msgspec.Struct, frozen=True, tag=True):
    """End the kernel on this host: its replica, its member and, with `delete`, its log."""

    kernel: KernelId
    delete: bool


class ReadMembers(msgspec.Struct, frozen=True, tag=True):
    """Ask how the members of this host are. Answered by MemberReports."""

    with_store: bool = False
    """And how much the kernels' logs name of the checkpoint store, which takes some reading."""


class ReadChunks(msgspec.Struct, frozen=True, tag=True):
    """Ask which chunks this host's logs and snapshots name. Answered by NamedChunks.

    Before a sweep of the store every host that has a log of any kernel must be asked: what only the
    log of an absent host names would be lost. Refused while a kernel here has no majority: then it
    is not known what its log names.
    """


class SweepStore(msgspec.Struct, frozen=True, tag=True):
    """Delete chunks that are not among `named` and that nobody wrote or asked for lately.

    One host per store is told. Answered by StoreSwept.
    """

    named: tuple[str, ...]
    older_than_s: float
    dry_run: bool = False
    """Only say what would be deleted."""


class KeepState(msgspec.Struct, frozen=True, tag=True):
    """Put all that the kernel's log amounts to into the checkpoint store; the kernel stays.

    Answered by StateKept when the store has it. Refused when the kernel is not at rest in `epoch`,
    or keeps changing; and when something of it cannot travel, unless it is to be left out.
    """

    kernel: KernelId
    epoch: int
    leave_held_out: bool = False


class RestoreState(msgspec.Struct, frozen=True, tag=True):
    """Let the log of a new group begin with what StateKept told; idempotent. Answered by Done.

    The group's members must be open.
    """

    kernel: KernelId
    state: StoredState


class ReadStore(msgspec.Struct, frozen=True, tag=True):
    """Ask how the checkpoint store is. Answered by StoreReport."""


class ReadInventory(msgspec.Struct, frozen=True, tag=True):
    """Ask for the devices' present use. Answered by Inventory."""


class StopAgent(msgspec.Struct, frozen=True, tag=True):
    """End all replicas and the agent itself; `delete_logs` when nothing must remain."""

    delete_logs: bool


AgentRequest = (
    Attach
    | RenewLease
    | SetPeers
    | OpenKernel
    | JoinGroup
    | AddLearner
    | ChangeMembers
    | ForgetLearner
    | PrepareGroup
    | SwitchGroup
    | NewEpoch
    | LaunchReplica
    | StartPrewarmed
    | StopPrewarmed
    | StopReplica
    | InterruptReplica
    | CastBallot
    | BeginAttempt
    | LoseAttempt
    | ReleaseDevices
    | CloseMember
    | ReadMembers
    | ReadChunks
    | SweepStore
    | ReadStore
    | KeepState
    | RestoreState
    | ReadInventory
    | StopAgent
)


# ---- host agent → controller: answers --------------------------------------------------------


class Challenge(msgspec.Struct, frozen=True, tag=True):
    """Sent by the agent when a connection opens; `Attach.proof` is HMAC-SHA-256(token, nonce)."""

    nonce: bytes


class Done(msgspec.Struct, frozen=True, tag=True):
    """It is done."""


class Joined(msgspec.Struct, frozen=True, tag=True):
    """This is what the host's member is called in the group."""

    member: str


class GroupPrepared(msgspec.Struct, frozen=True, tag=True):
    """The new group's log is on disk."""

    last_closed_attempt: int
    """The newest attempt whose end is known in it; 0 if there is none."""
    uncertain: int
    """Entries that are taken for committed and may not have been."""


class MembersAre(msgspec.Struct, frozen=True, tag=True):
    """The hosts whose members vote now."""

    members: tuple[HostId, ...]


class Failure(msgspec.Struct, frozen=True, tag=True):
    """It could not be done; `error` is a class name of `errors.py`."""

    error: str
    message: str
    hint: str = ""


class RunningReplica(msgspec.Struct, frozen=True):
    """A replica that an adopted agent already runs."""

    kernel: KernelId
    replica: ReplicaId
    epoch: int
    launch: int
    pid: int
    endpoints: dict[str, str]


class Attached(msgspec.Struct, frozen=True, tag=True):
    """The agent's description of itself and of what it already runs."""

    spec: HostSpec
    peer_address: str
    replicas: tuple[RunningReplica, ...]
    kernels: tuple[KernelId, ...]


class AttemptBegun(msgspec.Struct, frozen=True, tag=True):
    """LEAD is committed at `index`, the replica is the executor."""

    index: int


class AttemptNotBegun(msgspec.Struct, frozen=True, tag=True):
    """Nothing was bound. See `events.AttemptRefused`."""

    reason: str
    busy: tuple[DeviceId, ...] = ()
    recycle: bool = False


class DevicesReleased(msgspec.Struct, frozen=True, tag=True):
    """The devices are given back; `residual_bytes` is what their memory still holds of this
    replica.
    """

    residual_bytes: int


class MemberReports(msgspec.Struct, frozen=True, tag=True):
    """The members of this host as of now."""

    members: tuple[MemberStatus, ...]
    store_bytes: dict[KernelId, int] = {}
    """By kernel: the sizes of the chunks that its log and snapshot name, each counted once."""


class NamedChunks(msgspec.Struct, frozen=True, tag=True):
    """Digests of the chunks that this host's logs and snapshots name, and those on their way there.

    `kernels` are those that are open here.
    """

    digests: tuple[str, ...]
    kernels: tuple[KernelId, ...] = ()


class StoreSwept(msgspec.Struct, frozen=True, tag=True):
    """How much a sweep has freed."""

    chunks: int
    size_bytes: int


class StateKept(msgspec.Struct, frozen=True, tag=True):
    """The store has the kernel's state up to log entry `index`, signed with its log key.

    `document` is the snapshot itself; `chunks` are the digests of it and of all that it names.
    """

    epoch: int
    index: int
    document: tuple[ChunkRef, ...]
    chunks: tuple[str, ...]
    size_bytes: int


class StoreReport(msgspec.Struct, frozen=True, tag=True):
    """How the checkpoint store is as this host finds it; also a notice when that changes.

    Counts are those since the agent began.
    """

    works: bool
    error: str
    """Why it does not work; empty while it does."""
    since: float
    """When it stopped or began to work, in seconds since the Unix epoch."""
    waiting_chunks: int = 0
    """Chunks on their way to the store."""
    waiting_bytes: int = 0
    put_chunks: int = 0
    put_bytes: int = 0
    fetched_chunks: int = 0
    fetched_bytes: int = 0


class DeviceUse(msgspec.Struct, frozen=True):
    """One reading of a device; None where it cannot be measured."""

    device: DeviceId
    memory_used_bytes: int | None
    utilization_percent: float | None
    temperature_c: float | None
    power_w: float | None


class Inventory(msgspec.Struct, frozen=True, tag=True):
    """The present use of every device of this host."""

    devices: tuple[DeviceUse, ...]


AgentAnswer = (
    Challenge
    | Done
    | Failure
    | Attached
    | Joined
    | GroupPrepared
    | MembersAre
    | AttemptBegun
    | AttemptNotBegun
    | DevicesReleased
    | MemberReports
    | NamedChunks
    | StoreSwept
    | StoreReport
    | StateKept
    | Inventory
)


# ---- host agent → controller: notices --------------------------------------------------------


class ReplicaReady(msgspec.Struct, frozen=True, tag=True):
    """The replica has replayed the log and answers on its channels.

    `endpoints` maps shell, control, stdin, iopub and hb to ZMQ addresses on this machine.
    """

    kernel: KernelId
    replica: ReplicaId
    launch: int
    pid: int
    endpoints: dict[str, str]


class ReplicaExited(msgspec.Struct, frozen=True, tag=True):
    """The replica's process is gone. `requested`: by StopReplica or CloseMember."""

    kernel: KernelId
    replica: ReplicaId
    launch: int
    pid: int
    reason: str
    requested: bool


class PrewarmedReady(msgspec.Struct, frozen=True, tag=True):
    """One more pre-warmed replica can become whatever is launched."""

    pid: int


class PrewarmedExited(msgspec.Struct, frozen=True, tag=True):
    """A pre-warmed replica ended without being asked to, if `ready`, or could not be started."""

    ready: bool
    reason: str


class BallotCommitted(msgspec.Struct, frozen=True, tag=True):
    """A ballot is in the kernel's log and counts; each host tells them in the order of the log."""

    kernel: KernelId
    cell: CellId
    attempt: int
    replica: ReplicaId
    lead: bool
    devices: tuple[DeviceId, ...]
    reason: str


class AttemptEnded(msgspec.Struct, frozen=True, tag=True):
    """DONE, FAILED or LOST was committed; said by the executor's agent, or by who lost it."""

    kernel: KernelId
    cell: CellId
    attempt: int
    outcome: Outcome


class NamespaceReport(msgspec.Struct, frozen=True, tag=True):
    """After each delta of the executor: held names, names not yet durable, names that reach a GPU
    framework.
    """

    kernel: KernelId
    replica: ReplicaId
    held: tuple[HeldName, ...]
    pending: tuple[str, ...]
    gpu_names: tuple[str, ...]


class ReplicaProgress(msgspec.Struct, frozen=True, tag=True):
    """How far a replica has applied the log, against what is committed (both are log indices).

    `fetched_bytes`: what it got of the checkpoint store since its launch.
    """

    kernel: KernelId
    replica: ReplicaId
    applied: int
    committed: int
    fetched_bytes: int = 0


class AgentWarning(msgspec.Struct, frozen=True, tag=True):
    """Something the user should know: a full disk, a store that cannot be written."""

    kernel: KernelId | None
    message: str


AgentNotice = (
    ReplicaReady
    | ReplicaExited
    | PrewarmedReady
    | PrewarmedExited
    | BallotCommitted
    | AttemptEnded
    | NamespaceReport
    | ReplicaProgress
    | AgentWarning
    | StoreReport
)


class ToAgent(msgspec.Struct, frozen=True, array_like=True):
    """Envelope of the control connection, controller to agent."""

    sequence: int
    body: AgentRequest


class FromAgent(msgspec.Struct, frozen=True, array_like=True):
    """Envelope of the control connection, agent to controller; sequence 0 for notices."""

    sequence: int
    body: AgentAnswer | AgentNotice
