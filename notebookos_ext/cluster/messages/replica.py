"""What a host agent and a replica say to each other, over a socket pair that only they hold."""

from __future__ import annotations

import msgspec

from notebookos_ext.cluster.entries import Delta
from notebookos_ext.cluster.model import CellId, DeviceId, Outcome, ReplicaId

# ---- replica → host agent -------------------------------------------------------------------


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
    names: tuple[str, ...] = ()
    """Of a commit: whose values alone were not kept; empty: what the commit said counts for
    nothing.
    """


class StoreBack(msgspec.Struct, frozen=True, tag=True):
    """The checkpoint store works again: apply and commit now what could not be."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End politely."""


AgentMessage = (
    Apply | Prepare | Lead | Interrupt | Park | Committed | Chunk | AgentFailure | StoreBack | Stop
)


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
