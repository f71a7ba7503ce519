"""The nouns: ids, hosts, devices, kernels, replicas and cells. Frozen values, no behaviour beyond
arithmetic.
"""

from __future__ import annotations

import enum
from typing import NewType

import msgspec

HostId = NewType("HostId", str)
"""Stable name of a host, such as `host-2`; the same after the host comes back."""
KernelId = NewType("KernelId", str)
"""Jupyter's kernel id."""
ReplicaId = NewType("ReplicaId", str)
"""`<kernel id>:<number>`, numbers counting from 1; the same after the replica was relaunched."""
CellId = NewType("CellId", str)
"""The `msg_id` of the cell's execute_request."""
DeviceId = NewType("DeviceId", str)
"""UUID of a GPU, real (`GPU-…`) or simulated (`SIM-…`)."""

REPLICA_COUNTS = (1, 3, 5)
"""Replica counts a notebook may ask for; odd, so that a majority is worth its cost."""


class DeviceKind(enum.StrEnum):
    """What a device is; the user interface and the logs say `simulated` wherever it is so."""

    CUDA = "cuda"
    SIMULATED = "simulated"


class DeviceSpec(msgspec.Struct, frozen=True):
    """One GPU as the inventory names it."""

    device: DeviceId
    index: int
    kind: DeviceKind
    name: str
    memory_bytes: int


class HostSpec(msgspec.Struct, frozen=True):
    """A host as its agent describes it when it joins.

    The same device may be listed by several virtual hosts of one machine (they bind from one
    inventory); whoever binds it first has it.
    """

    host: HostId
    incarnation: str
    machine: str
    devices: tuple[DeviceSpec, ...]
    pid: int = 0
    millicpus: int = 0
    """Thousandths of processor cores; 0: not stated, so nothing is refused for want of them."""
    memory_bytes: int = 0
    """0: not stated."""
    gpu_type: str = ""
    """What its GPUs are called by those who ask for a type, such as `H200`."""
    labels: tuple[str, ...] = ()
    """Words that kernels can ask for, such as `ssd` or `zone=a`."""
    failure_domain: str = ""
    """Hosts of one domain (a rack, a zone) tend to fail together; empty: nothing is known."""


class ExecutorPreference(enum.StrEnum):
    """Which replica is preferred for the next cell among those that can run it."""

    LAST = "last"
    ROTATE = "rotate"
    """Never the last executor if another replica can run the cell: shows that replicas are equal.
    """


class KernelSpec(msgspec.Struct, frozen=True):
    """What the scheduler must know of a kernel when it is asked for."""

    kernel: KernelId
    replica_count: int = 3
    gpus_per_cell: int = 0
    notebook_path: str = ""
    display_name: str = ""
    executor_preference: ExecutorPreference = ExecutorPreference.LAST
    user: str = ""
    """Whose kernel it is, for quotas and fairness; empty: the kernel stands for itself."""
    priority: int = 0
    """Cells of a higher one are served first, but overtake others only so often."""
    millicpus: int = 0
    """What each of its replicas may need, in thousandths of cores; 0: not stated."""
    memory_bytes: int = 0
    """What each of its replicas may need; 0: not stated."""
    gpu_memory_bytes: int = 0
    """How much memory each of its GPUs must have; 0: any."""
    gpu_type: str = ""
    """Only hosts with GPUs of this type; empty: any."""
    labels: tuple[str, ...] = ()
    """Only hosts that have all of these."""
    gpu_wait_s: float = 0.0
    """The longest that a cell stands in line for GPUs before it is given up; 0: without limit."""


class Cell(msgspec.Struct, frozen=True):
    """One execute_request. `gpus` is what it needs while it runs; 0 binds nothing and never waits
    for a GPU.
    """

    kernel: KernelId
    cell: CellId
    gpus: int = 0
    gpus_reason: str = ""
    """Why it is (not) a GPU cell: `%%gpu`, cell metadata, or the rule's words; shown to the user.
    """
    replica_number: int | None = None
    """The replica the user chose for this cell (cell metadata), else None."""
    near: ReplicaId | None = None
    """Where the user's debugger, comm or subshell is: preferred, but not waited for."""


class HostState(enum.StrEnum):
    """Life of a host in the scheduler's view."""

    READY = "ready"
    LOST = "lost"


class ReplicaState(enum.StrEnum):
    """Life of a replica; the transition table is in `cluster/replicas.py`."""

    STARTING = "starting"
    IDLE = "idle"
    EXECUTING = "executing"
    LOST = "lost"
    """Its process or host is gone; it is relaunched as soon as its host is there."""
    STOPPING = "stopping"


class KernelState(enum.StrEnum):
    """Life of a kernel."""

    WAITING_FOR_HOSTS = "waiting-for-hosts"
    STARTING = "starting"
    IDLE = "idle"
    QUEUED = "queued"
    BUSY = "busy"
    NO_MAJORITY = "no-majority"
    """Too few of its members are left to commit anything, and have been for a while."""
    STORED = "stored"
    """Its namespace is in the checkpoint store, no replica runs, and nothing waits for one."""
    STOPPING = "stopping"


class Outcome(enum.StrEnum):
    """How an attempt ended; exactly one of them closes it (design section 4.3)."""

    DONE = "done"
    FAILED = "failed"
    """The user's code raised; its changes are kept and committed like those of a finished cell."""
    LOST = "lost"


class HeldName(msgspec.Struct, frozen=True):
    """A name of the namespace that cannot travel and holds the kernel to its executor."""

    name: str
    type_name: str
    reason: str


def replica_id(kernel: KernelId, number: int) -> ReplicaId:
    """The id of replica `number` (from 1) of `kernel`."""
    return ReplicaId(f"{kernel}:{number}")


def replica_number(replica: ReplicaId) -> int:
    """The number inside a replica id."""
    return int(replica.rsplit(":", 1)[1])
