"""The JSON that the browser and the command line see; twin of `src/wire.ts`.

Samples of every shape are in `tests/testdata/wire/`, read by pytest and by jest. Times are seconds
since the Unix epoch; durations are `_ms`.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class BindingView(msgspec.Struct, frozen=True):
    """Who holds a device."""

    kernel_id: str
    replica_id: str
    cell_id: str
    since: float
    releasing: bool


class DeviceView(msgspec.Struct, frozen=True):
    """One GPU of a host; readings are None where they cannot be had."""

    id: str
    index: int
    kind: Literal["cuda", "simulated"]
    name: str
    memory_bytes: int
    memory_used_bytes: int | None
    utilization_percent: float | None
    temperature_c: float | None
    power_w: float | None
    shared_with: tuple[str, ...]
    """Other virtual hosts of the same machine that list this device."""
    binding: BindingView | None


class HostView(msgspec.Struct, frozen=True):
    """One host."""

    id: str
    state: Literal["ready", "lost"]
    draining: bool
    """Nothing new goes there, and what is there moves."""
    leaving: bool
    """It is given back once it is empty."""
    machine: str
    pid: int
    devices: tuple[DeviceView, ...]
    replica_count: int
    gpu_type: str
    """What its GPUs are called, such as H200; empty where they are of several types."""
    memory_bytes: int
    """Of the machine; 0: not stated."""


class MemberView(msgspec.Struct, frozen=True):
    """The vote and the log that a replica's host keeps for its kernel, read some seconds ago.

    Indices count log entries. `failure` says why it takes no part; empty while it does.
    """

    role: Literal["follower", "pre-candidate", "candidate", "leader"]
    votes: bool
    """False for one that still learns the log."""
    term: int
    last_index: int
    commit_index: int
    applied_index: int
    snapshot_index: int
    """A snapshot stands for the log up to here; 0: there is none."""
    log_bytes: int
    leader_changes: int
    failure: str


class ReplicaView(msgspec.Struct, frozen=True):
    """One replica of a kernel. `lag` counts committed log entries that it has not applied."""

    id: str
    number: int
    host_id: str
    state: Literal["starting", "idle", "executing", "lost", "stopping"]
    pid: int | None
    lag: int
    executor: bool
    """Runs the present cell or, between cells, ran the last one."""
    member: MemberView | None
    """None until its host has told."""


class HeldNameView(msgspec.Struct, frozen=True):
    """A name that cannot travel."""

    name: str
    type_name: str
    reason: str


class CellView(msgspec.Struct, frozen=True):
    """A cell that runs or ran."""

    cell_id: str
    notebook_cell_id: str
    """The cell's id in its notebook; empty where the client did not say it."""
    code: str
    """Its first line, shortened."""
    gpus: int
    gpus_reason: str
    replica_id: str | None
    host_id: str | None
    devices: tuple[int, ...]
    """Indices of the devices on its host."""
    device_kind: Literal["cuda", "simulated"] | None
    state: Literal["waiting", "running", "done", "failed", "lost", "aborted", "rejected"]
    submitted: float
    waited_ms: float | None
    ran_ms: float | None


class MigrationView(msgspec.Struct, frozen=True):
    """A replica on its way to another host; `replica_id` is None when one is only added, `target`
    when one is only taken away.
    """

    replica_id: str | None
    target: str | None
    phase: Literal["starting", "caught-up", "changing"]
    reason: str
    since: float


class StoredView(msgspec.Struct, frozen=True):
    """A kernel that is in the checkpoint store, or on its way back from there."""

    since: float
    """When it was stored; while it is restored, when that began."""
    size_bytes: int
    """Its namespace in the store; 0 when that is empty."""
    restoring: bool
    fetched_bytes: int
    """How much of it its first replica has loaded."""


class KernelView(msgspec.Struct, frozen=True):
    """One distributed kernel."""

    id: str
    name: str
    """Name of its kernelspec."""
    notebook_path: str
    state: Literal[
        "waiting-for-hosts",
        "starting",
        "idle",
        "queued",
        "busy",
        "stored",
        "no-majority",
        "stopping",
    ]
    epoch: int
    replica_count: int
    next_replica_count: int
    """What it is on the way to, one replica after the other; equal to `replica_count` if nothing
    changes.
    """
    gpus_per_cell: int
    gpu_type: str
    """Only hosts with GPUs of this type; empty: any."""
    gpu_memory_gib: float
    """What each of its GPUs must have; 0: any."""
    memory_gib: float
    """What the host of each replica must have; 0: any."""
    sync: str
    """What is committed before a cell's reply goes out; empty: as the cluster does."""
    next_sync: str
    """The same from the next restart on."""
    gpu_wait_s: float
    """The longest that a cell stands in line for GPUs before it is given up; 0: without limit."""
    replicas: tuple[ReplicaView, ...]
    held: tuple[HeldNameView, ...]
    not_durable: tuple[str, ...]
    store_bytes: int | None
    """What its log and snapshot name of the checkpoint store; None until a host has told."""
    preferred_replica: int | None
    """Number of the replica that is to run the next cell that it can."""
    migration: MigrationView | None
    stored: StoredView | None
    """None while it is on its hosts."""
    majority_lost: str | None
    """Why too few of its members are left to commit anything; None while enough are."""
    can_continue: bool
    """Whether it can go on unprotected with what is left, by POST …/continue-unprotected."""
    unprotected: bool
    """It went on so, and does not have all of its replicas again yet."""
    cells: tuple[CellView, ...]
    """The latest cells, newest first, at most 20."""


class WaitingView(msgspec.Struct, frozen=True):
    """A cell in the queue."""

    kernel_id: str
    notebook_path: str
    cell_id: str
    position: int
    gpus: int
    reason: str
    since: float
    estimate_ms: float | None
    """How much longer it is likely to wait; None when nothing can be said."""


class WarningView(msgspec.Struct, frozen=True):
    """Something the user should know."""

    kernel_id: str | None
    message: str
    at: float


class StoreView(msgspec.Struct, frozen=True):
    """The checkpoint store, as the hosts find it; counts are since their agents began."""

    kind: Literal["folder", "s3"]
    name: str
    """The folder, or `s3://bucket/prefix`."""
    works: bool
    """False while it cannot be written or read from some host; large variables are late then."""
    error: str
    """Why it does not work; empty while it does."""
    since: float | None
    """When it stopped to work; None while it works."""
    failing_hosts: tuple[str, ...]
    """Hosts from which it does not work."""
    waiting_chunks: int
    """Chunks on their way to it."""
    waiting_bytes: int
    put_bytes: int
    fetched_bytes: int


class ClusterView(msgspec.Struct, frozen=True):
    """GET notebookos/api/cluster."""

    version: str
    at: float
    backend: str
    policy: str
    durable: bool
    """False when the consensus engine may lose what it has acknowledged."""
    simulated: bool
    """True when the devices are simulated ones."""
    max_hosts: int
    """As many as the cluster may have."""
    store: StoreView
    hosts: tuple[HostView, ...]
    kernels: tuple[KernelView, ...]
    waiting: tuple[WaitingView, ...]
    warnings: tuple[WarningView, ...]


class KernelSettingsPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of PATCH notebookos/api/kernels/<id>; what is left out, or None, stays as it is.

    Types, memory and sync are as in `KernelView`, where empty and 0 are said to be any.
    """

    replica_count: int | None = None
    gpus_per_cell: int | None = None
    gpu_type: str | None = None
    gpu_memory_gib: float | None = None
    memory_gib: float | None = None
    sync: str | None = None
    gpu_wait_s: float | None = None


class MigrationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST notebookos/api/kernels/<id>/migration: the replica's number and the host's id.

    Where they are None the scheduler chooses.
    """

    replica: int | None = None
    target: str | None = None


class ExecutorRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of PUT notebookos/api/kernels/<id>/executor: the replica's number."""

    replica: int


class DrainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of PUT notebookos/api/hosts/<id>/drain; `release`: give the host back once it is
    empty.
    """

    release: bool = False


class SweepRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST notebookos/api/store/sweep; `dry_run`: say what would go, and delete nothing."""

    dry_run: bool = False


class SweepView(msgspec.Struct, frozen=True):
    """Answer to it: the chunks that went from the store, or would go."""

    dry_run: bool
    chunks: int
    size_bytes: int


class ExportRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST notebookos/api/kernels/<id>/export; `path` is absolute, on the server."""

    path: str
    overwrite: bool = False


class InspectionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST notebookos/api/state-files/inspection; `path` is absolute, on the server."""

    path: str


class ImportRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST notebookos/api/state-files/import.

    `digest` is that of an inspection: the user trusts this very file. With `notebook_path` the new
    kernel is that notebook's.
    """

    path: str
    digest: str
    kernel_name: str = "notebookos"
    notebook_path: str = ""


class StateFileView(msgspec.Struct, frozen=True):
    """What a file with a kernel's namespace has. `is_own`: this installation made it, unchanged."""

    digest: str
    is_own: bool
    size_bytes: int
    made_at: float
    version: str
    """Of NotebookOS."""
    kernel_id: str
    kernel_name: str
    notebook_path: str
    python: str
    """Version of the kernel's Python."""
    names: tuple[str, ...]
    left_out: tuple[str, ...]
    """Variables that cannot travel, and are not in it."""


class KernelSettingsResult(msgspec.Struct, frozen=True):
    """Answer to the PATCH: the kernel, and per changed setting when it takes effect."""

    kernel: KernelView
    effective: dict[str, Literal["next-cell", "soon", "next-placement", "next-restart"]]
    """`soon`: as soon as hosts allow; `next-placement`: for replicas that are placed from now on,
    by a move or a new start.
    """


class UsageSumView(msgspec.Struct, frozen=True):
    """What one user, notebook or kernel took. Waits are those of cells that bound GPUs."""

    name: str
    """The user, the notebook's path, or the kernel's id; empty for the sum of all."""
    cells: int
    gpu_cells: int
    gpu_seconds_bound: float
    gpu_seconds_used: float
    gpu_seconds_reserved: float
    """What a reservation would have held: the kernel's GPUs for as long as it lived."""
    gpu_seconds_saved: float
    at_once: int
    """GPU cells that started within a second of their submission."""
    wait_ms_mean: float | None
    wait_ms_p50: float | None
    wait_ms_p99: float | None
    wait_counts: tuple[int, ...]
    """GPU cells that waited up to each of `wait_bounds_ms`; last those that waited longer."""


class UsageView(msgspec.Struct, frozen=True):
    """GET notebookos/api/usage."""

    since: float
    until: float
    by: Literal["user", "notebook", "kernel"]
    wait_bounds_ms: tuple[float, ...]
    total: UsageSumView
    groups: tuple[UsageSumView, ...]
    """Largest in bound GPU-seconds first."""


class GpuPointView(msgspec.Struct, frozen=True):
    """A short time from `since` on: means over the part of it that is on record.

    None where none of it is, for instance because no server ran.
    """

    since: float
    provisioned: float | None
    bound: float | None
    bound_most: int | None


class TimelineView(msgspec.Struct, frozen=True):
    """GET notebookos/api/usage/timeline: GPUs that were there, and GPUs that were bound."""

    since: float
    until: float
    points: tuple[GpuPointView, ...]
    """Equally long parts of the window, oldest first; none when nothing is on record."""


class ErrorView(msgspec.Struct, frozen=True):
    """Every error answer."""

    message: str
    hint: str
    error: str
    """Class name in `errors.py`."""
