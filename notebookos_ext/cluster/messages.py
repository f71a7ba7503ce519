"""What the processes say to each other: controller ↔ host agent, and host agent ↔ replica.

Every message is one msgpack-encoded tagged struct in a length-prefixed frame (4 bytes, big endian).
Requests travel in an `Envelope` with a sequence number and are answered by one with the same
number;
number 0 marks a notice that nobody answers.
"""

from __future__ import annotations

import msgspec

from notebookos_ext.cluster.entries import Delta
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

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 64 * 1024 * 1024


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


class StopReplica(msgspec.Struct, frozen=True, tag=True):
    """End a replica: politely, then by force after `grace_s`."""

    replica: ReplicaId
    grace_s: float


class InterruptReplica(msgspec.Struct, frozen=True, tag=True):
    """Interrupt the replica's process; of cells only `cell`, if one is named."""

    replica: ReplicaId
    cell: CellId | None = None


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
    | NewEpoch
    | LaunchReplica
    | StopReplica
    | InterruptReplica
    | BeginAttempt
    | LoseAttempt
    | ReleaseDevices
    | CloseMember
    | ReadInventory
    | StopAgent
)


# ---- host agent → controller: answers --------------------------------------------------------


class Challenge(msgspec.Struct, frozen=True, tag=True):
    """Sent by the agent when a connection opens; `Attach.proof` is HMAC-SHA-256(token, nonce)."""

    nonce: bytes


class Done(msgspec.Struct, frozen=True, tag=True):
    """It is done."""


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
    | AttemptBegun
    | AttemptNotBegun
    | DevicesReleased
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
    """How far a replica has applied the log, against what is committed (both are log indices)."""

    kernel: KernelId
    replica: ReplicaId
    applied: int
    committed: int


class AgentWarning(msgspec.Struct, frozen=True, tag=True):
    """Something the user should know: a full disk, a store that cannot be written."""

    kernel: KernelId | None
    message: str


AgentNotice = (
    ReplicaReady | ReplicaExited | AttemptEnded | NamespaceReport | ReplicaProgress | AgentWarning
)


class ToAgent(msgspec.Struct, frozen=True, array_like=True):
    """Envelope of the control connection, controller to agent."""

    sequence: int
    body: AgentRequest


class FromAgent(msgspec.Struct, frozen=True, array_like=True):
    """Envelope of the control connection, agent to controller; sequence 0 for notices."""

    sequence: int
    body: AgentAnswer | AgentNotice


# ---- replica → host agent, over a socket pair that only these two hold -----------------------


class ReplicaHello(msgspec.Struct, frozen=True, tag=True):
    """First message: the process exists, with its interpreter and pickle library."""

    pid: int
    python: str
    cloudpickle: str


class ReplicaServing(msgspec.Struct, frozen=True, tag=True):
    """The kernel's channels are bound at `endpoints`."""

    endpoints: dict[str, str]


class StoreChunk(msgspec.Struct, frozen=True, tag=True):
    """Put a chunk into the store; on the same connection before the message that needs it."""

    digest: str
    data: bytes


class FetchChunk(msgspec.Struct, frozen=True, tag=True):
    """Ask for a chunk. Answered by Chunk or AgentFailure."""

    digest: str


class CommitAttempt(msgspec.Struct, frozen=True, tag=True):
    """The cell's code ended with `delta`. Answered by Committed or AgentFailure."""

    cell: CellId
    attempt: int
    outcome: Outcome
    delta: Delta


class CommitState(msgspec.Struct, frozen=True, tag=True):
    """Changes outside a cell, or late large parts. Answered by Committed or AgentFailure."""

    after_attempt: int
    delta: Delta


class Applied(msgspec.Struct, frozen=True, tag=True):
    """The namespace holds everything up to log index `index`."""

    index: int


class LeadAnswer(msgspec.Struct, frozen=True, tag=True):
    """Answer to Lead: the replica is ready to run the cell, or why it is not."""

    accepted: bool
    reason: str = ""
    recycle: bool = False


class Parked(msgspec.Struct, frozen=True, tag=True):
    """Answer to Park: bytes that are still on the devices as the framework knows them."""

    residual_bytes: int


ReplicaMessage = (
    ReplicaHello
    | ReplicaServing
    | StoreChunk
    | FetchChunk
    | CommitAttempt
    | CommitState
    | Applied
    | LeadAnswer
    | Parked
)


# ---- host agent → replica --------------------------------------------------------------------


class Apply(msgspec.Struct, frozen=True, tag=True):
    """One committed delta, in log order, already verified. `own`: this very process computed it."""

    index: int
    delta: Delta | None
    attempt: int
    executor: ReplicaId | None
    own: bool


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Can this replica lead with `devices`? Answered by LeadAnswer, before LEAD is proposed."""

    devices: tuple[DeviceId, ...]
    visible: str
    """The value for CUDA_VISIBLE_DEVICES; empty hides every device."""
    simulated: bool


class Lead(msgspec.Struct, frozen=True, tag=True):
    """LEAD is committed: the next execute_request with `cell` as its msg_id is this attempt."""

    cell: CellId
    attempt: int


class Interrupt(msgspec.Struct, frozen=True, tag=True):
    """The user interrupts `cell`. Written before SIGINT is sent, which may come too early for it.

    A process that is not yet in the user's code ignores the signal and finds this instead.
    """

    cell: CellId


class Park(msgspec.Struct, frozen=True, tag=True):
    """Move what lives on the devices to host memory and empty the caches. Answered by Parked."""


class Committed(msgspec.Struct, frozen=True, tag=True):
    """The entry is in the log of a majority at `index`."""

    index: int


class Chunk(msgspec.Struct, frozen=True, tag=True):
    """A chunk from the store, its digest checked."""

    digest: str
    data: bytes


class AgentFailure(msgspec.Struct, frozen=True, tag=True):
    """The request failed; `retry` when the same request may succeed later."""

    error: str
    message: str
    retry: bool = False


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End politely."""


AgentMessage = Apply | Prepare | Lead | Interrupt | Park | Committed | Chunk | AgentFailure | Stop


class ToReplica(msgspec.Struct, frozen=True, array_like=True):
    """Envelope agent to replica; an answer carries the request's sequence, a request of the agent
    its own.
    """

    sequence: int
    body: AgentMessage


class FromReplica(msgspec.Struct, frozen=True, array_like=True):
    """Envelope replica to agent."""

    sequence: int
    body: ReplicaMessage


# ---- how processes are started ---------------------------------------------------------------


class AgentConfig(msgspec.Struct, frozen=True):
    """What a host agent is started with: a JSON file that the backend writes (mode 0600, no secrets
    in it).

    The agent listens on `<socket_folder>/<host>.control` and `<socket_folder>/<host>.peer`, both
    unix
    sockets in a private folder with a short path. `folder` keeps its members' logs and its own log
    file.
    """

    host: HostId
    machine: str
    folder: str
    socket_folder: str
    token_file: str
    """32 random bytes in hex, mode 0600: the cluster token that controllers and peers prove to
    know.
    """
    store_folder: str
    lock_folder: str
    """Device locks of this machine, shared by every cluster of the user (one file per real device).
    """
    gpus: str
    """`auto` (real ones when NVML finds any, else simulated), `simulated` or `none`."""
    simulated_gpus: int
    """Simulated devices of this virtual host."""
    hash_seed: int
    """PYTHONHASHSEED of every template and replica of the installation."""
    templates: tuple[str, ...]
    """Interpreters whose template is started at once."""
    preload: tuple[str, ...]
    """Modules that templates import before the first fork."""
    lease_s: float
    """Lease until the first controller attaches, then as the controller says."""


class ForkReplica(msgspec.Struct, frozen=True):
    """Agent to template, framed, with two file descriptors: the replica's end of its socket pair,
    and a log file.
    """

    launch: LaunchReplica
    socket_folder: str
    agent_pid: int
