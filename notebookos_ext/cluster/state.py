"""The whole cluster in memory, and `ClusterView`, the face of it that nobody can write through.

Only the scheduler's handlers change what is here; policies, the REST layer and tests look.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from notebookos_ext.cluster.gpus import Binding, GpuPool
from notebookos_ext.cluster.hosts import Host, HostsByLoad, Share, host_order, share_of
from notebookos_ext.cluster.load import Launches, Scaling
from notebookos_ext.cluster.model import CellId, DeviceId, HostId, KernelId, ReplicaId
from notebookos_ext.cluster.options import Options
from notebookos_ext.cluster.queueing import WaitingCell, WaitingQueue
from notebookos_ext.cluster.replicas import Kernel, Phase, Replica
from notebookos_ext.errors import NotFound


class ClusterState:
    """What the scheduler knows and has promised."""

    def __init__(self, *, max_hosts: int, options: Options) -> None:
        self.max_hosts = max_hosts
        self.options = options
        self.sessions_reserve = False
        """The policy sets GPUs apart for as long as a kernel lives."""
        self.stores_after_cells = False
        """The policy starts a replica for each cell, and sets GPUs apart while it starts."""
        self.short: dict[KernelId, None] = {}
        """Kernels that have fewer GPUs reserved than they should."""
        self.still_released: dict[KernelId, int] = {}
        """The last attempts of kernels that were gone before their GPUs were given back."""
        self.over_quota: dict[str, set[KernelId]] = {}
        """Kernels whose cell waits for other cells of its user to end, by user."""
        self.idle: dict[KernelId, None] = {}
        """Kernels in the order in which something last happened to them."""
        self.hosts: dict[HostId, Host] = {}
        self.kernels: dict[KernelId, Kernel] = {}
        self.most_gpus = 0
        """The most GPUs that any known host has, lost ones included; 0 without hosts."""
        self.pool = GpuPool()
        self.queue = WaitingQueue()
        self.lost: dict[ReplicaId, Replica] = {}
        """Replicas on living hosts whose relaunch is due at their `relaunch_at`."""
        self.without_hosts: dict[KernelId, None] = {}
        """Kernels that wait for hosts, oldest first."""
        self.hosts_requested = 0
        self.hosts_requested_at = 0.0
        self.kept: dict[int, tuple[DeviceId, ...]] = {}
        """Free devices that are kept for protected cells, by these cells' order, oldest first."""
        self.dirty: set[KernelId] = set()
        """Kernels whose waiting cells must be looked at before this event is done."""
        self.by_load = HostsByLoad()
        self.draining: dict[HostId, None] = {}
        """Hosts that are to be emptied."""
        self.moving: dict[KernelId, None] = {}
        """Kernels with a migration."""
        self.prewarmed_changed: set[HostId] = set()
        """Hosts whose pool of pre-warmed replicas has changed."""
        self.active: dict[KernelId, None] = {}
        """Kernels with cells that used GPUs, the latest active last."""
        self.scaling = Scaling()
        self.launches = Launches()
        self.to_resize: dict[KernelId, None] = {}
        """Kernels that have another number of replicas than they should."""
        self.recount: set[KernelId] = set()
        """Kernels that may have lost their majority in this event, or got it back."""
        self.without_majority: dict[KernelId, None] = {}
        """Kernels that have too few members left to commit anything."""

    def ready_hosts(self) -> list[Host]:
        """Hosts whose agent answers, by name."""
        return sorted(
            (host for host in self.hosts.values() if host.ready),
            key=lambda host: host_order(host.id),
        )

    @property
    def waiting(self) -> tuple[WaitingCell, ...]:
        """Cells that have not started, oldest first."""
        return tuple(self.queue)

    def note_active(self, kernel: Kernel, gpus: int, at: float) -> None:
        """A cell of the kernel that uses GPUs has arrived or ended."""
        kernel.gpus_active_at, kernel.gpus_active = at, gpus
        self.active.pop(kernel.id, None)
        self.active[kernel.id] = None

    def note_idle(self, kernel: Kernel, at: float) -> None:
        """Something happened to the kernel; only what happens no more is idle."""
        kernel.active_at = at
        if self.options.idle_s:
            self.idle.pop(kernel.id, None)
            self.idle[kernel.id] = None

    def carry(self, kernel: Kernel, replica: Replica, count: int) -> None:
        """The replica's host carries it, as one of `count`."""
        replica.share = share_of(kernel.spec, count)
        host = self.hosts[replica.host]
        host.add(replica.id, replica.share)
        self.by_load.note(host)

    def drop(self, replica: Replica) -> None:
        """The replica's host no longer carries it."""
        host = self.hosts[replica.host]
        host.remove(replica.id, replica.share)
        replica.share = Share()
        self.by_load.note(host)

    def promise_anew(self, kernel: Kernel) -> None:
        """What the kernel may need, or the number of its replicas, has changed."""
        for replica in kernel.replicas:
            if replica.id in self.hosts[replica.host].replicas:
                self.drop(replica)
                self.carry(kernel, replica, len(kernel.replicas))

    @property
    def ready_count(self) -> int:
        """How many hosts' agents answer."""
        return sum(host.ready for host in self.hosts.values())

    def find_replica(self, replica: ReplicaId) -> tuple[Kernel, Replica] | None:
        """The replica of that id and its kernel."""
        kernel = self.kernels.get(KernelId(replica.rpartition(":")[0]))
        found = kernel.replica(replica) if kernel is not None else None
        return (kernel, found) if kernel is not None and found is not None else None


class ClusterView:
    """Read-only: what the mappings hold is the scheduler's own, to look at and not to keep.

    Whoever hands it to another thread copies what it needs first.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self.hosts: Mapping[HostId, Host] = MappingProxyType(state.hosts)
        self.kernels: Mapping[KernelId, Kernel] = MappingProxyType(state.kernels)

    @property
    def max_hosts(self) -> int:
        """The most hosts that this cluster may have."""
        return self._state.max_hosts

    @property
    def no_more_hosts(self) -> str:
        """Why no more hosts can be had for now; empty when nothing is known against it."""
        return self._state.scaling.unavailable_reason

    @property
    def without_hosts(self) -> Mapping[KernelId, None]:
        """Kernels that wait for hosts, oldest first."""
        return self._state.without_hosts

    @property
    def without_majority(self) -> Mapping[KernelId, None]:
        """Kernels that have too few members left to commit anything."""
        return self._state.without_majority

    @property
    def options(self) -> Options:
        """What was chosen beyond the policy."""
        return self._state.options

    @property
    def most_gpus(self) -> int:
        """The most GPUs that any known host has, lost ones included; 0 without hosts."""
        return self._state.most_gpus

    @property
    def bindings(self) -> Mapping[DeviceId, Binding]:
        """Every bound device and who holds it."""
        return self._state.pool.bindings

    @property
    def ready_count(self) -> int:
        """How many hosts' agents answer."""
        return self._state.ready_count

    @property
    def by_load(self) -> HostsByLoad:
        """The hosts that may take something new, the least loaded first."""
        return self._state.by_load

    @property
    def pool(self) -> GpuPool:
        """The devices; to be asked only."""
        return self._state.pool

    @property
    def waiting(self) -> tuple[WaitingCell, ...]:
        """Cells that have not started, oldest first, with position and reason as last said."""
        return self._state.waiting

    @property
    def ready_hosts(self) -> list[Host]:
        """Hosts whose agent answers, by name."""
        return self._state.ready_hosts()

    def kernel(self, kernel: KernelId) -> Kernel:
        """One kernel. Raises NotFound."""
        found = self.kernels.get(kernel)
        if found is None:
            raise NotFound(f"there is no kernel {kernel}")
        return found

    def replica(self, replica: ReplicaId) -> tuple[Kernel, Replica]:
        """One replica and its kernel. Raises NotFound."""
        found = self._state.find_replica(replica)
        if found is None:
            raise NotFound(f"there is no replica {replica}")
        return found

    def executor(self, kernel: KernelId) -> ReplicaId | None:
        """Who runs the present cell or, between cells, ran the last one. Raises NotFound."""
        found = self.kernel(kernel)
        return found.attempt.replica if found.attempt is not None else found.last_executor

    def is_waiting(self, kernel: KernelId, cell: CellId) -> bool:
        """Whether the cell can still be taken back: it waits, or its attempt has not begun."""
        if self._state.queue.find(kernel, cell) is not None:
            return True
        found = self.kernels.get(kernel)
        return (
            found is not None
            and found.attempt is not None
            and found.attempt.cell.cell == cell
            and found.attempt.phase is Phase.STARTING
        )
