"""The router's words: what it asks its sockets to do, and what it tells the controller."""

from __future__ import annotations

from typing import Any

import msgspec

from notebookos_ext.cluster.channels import Made
from notebookos_ext.cluster.model import CellId, KernelId, ReplicaId

# ---- to the sockets ------------------------------------------------------------------------------


class ToReplica(msgspec.Struct, frozen=True):
    """Send `frames` (a client's, unchanged) to a replica under the client's own identity."""

    replica: ReplicaId
    channel: str
    identity: bytes
    frames: tuple[bytes, ...]


class PrepareReplica(msgspec.Struct, frozen=True):
    """Connect the client's shell and stdin to a replica now: a cell is about to run there."""

    replica: ReplicaId
    identity: bytes


class ToClient(msgspec.Struct, frozen=True):
    """Send a replica's frames to a client; the first frame is the client's identity."""

    channel: str
    frames: tuple[bytes, ...]


class Publish(msgspec.Struct, frozen=True):
    """Send a replica's frames to every subscriber."""

    frames: tuple[bytes, ...]


class Answer(msgspec.Struct, frozen=True):
    """Send a message of the router's own to one client."""

    channel: str
    identities: tuple[bytes, ...]
    message: Made


class Announce(msgspec.Struct, frozen=True):
    """Publish a message of the router's own."""

    message: Made


class Probe(msgspec.Struct, frozen=True):
    """Send a kernel_info_request of the router's own with this `msg_id` to a replica's shell."""

    replica: ReplicaId
    msg_id: str


Output = ToReplica | PrepareReplica | ToClient | Publish | Answer | Announce | Probe

# ---- to the controller ---------------------------------------------------------------------------


class CellArrived(msgspec.Struct, frozen=True, tag=True):
    """A cell is at the head of its kernel's queue and wants an executor.

    The next one of the kernel is said only after this one's reply and idle went out.
    """

    kernel: KernelId
    cell: CellId
    code: str
    metadata: dict[str, Any]
    silent: bool
    near: ReplicaId | None = None
    """The replica where a subshell works or, since the last cell, a debugger or a comm began."""


class CellReplied(msgspec.Struct, frozen=True, tag=True):
    """The executor's reply went to the client; `status` is ok, error or aborted."""

    kernel: KernelId
    cell: CellId
    attempt: int
    status: str


class InterruptAsked(msgspec.Struct, frozen=True, tag=True):
    """A client sent interrupt_request; it is answered by the router."""

    kernel: KernelId


class ShutdownAsked(msgspec.Struct, frozen=True, tag=True):
    """A client sent shutdown_request; it is answered by the router and reaches no replica."""

    kernel: KernelId
    restart: bool


class InputWaiting(msgspec.Struct, frozen=True, tag=True):
    """The cell asks its client for input (True), or no longer does (False)."""

    kernel: KernelId
    cell: CellId
    waiting: bool


class Activity(msgspec.Struct, frozen=True, tag=True):
    """A client used the kernel: any request but kernel_info, which browsers send by themselves."""

    kernel: KernelId


class ReplicaNeeded(msgspec.Struct, frozen=True, tag=True):
    """A client wants something that is no cell of a kernel of which no replica runs."""

    kernel: KernelId


class Described(msgspec.Struct, frozen=True, tag=True):
    """A replica has said who the kernel is: the content of its kernel_info_reply."""

    kernel: KernelId
    content: dict[str, Any]


RouterEvent = (
    CellArrived
    | CellReplied
    | InterruptAsked
    | ShutdownAsked
    | InputWaiting
    | Activity
    | ReplicaNeeded
    | Described
)
