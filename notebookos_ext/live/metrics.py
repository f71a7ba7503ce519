"""Prometheus metrics of the cluster, under Jupyter's own /metrics: the paper's quantities.

Counters and histograms follow the scheduler's events; gauges are set with each tick, so that a busy
scheduler does not count its hosts for every cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from notebookos_ext.cluster import actions, events
from notebookos_ext.cluster.accounting import CellUsage, Meter
from notebookos_ext.cluster.consensus.ready import Role
from notebookos_ext.cluster.consensus.replicated_log import MemberStatus
from notebookos_ext.cluster.model import (
    HostId,
    HostState,
    KernelId,
    KernelState,
    ReplicaId,
    ReplicaState,
)
from notebookos_ext.cluster.state import ClusterView

WAIT_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)
MEMBERS_TOLD_MAX = 300
"""Members with series of their own: each has nine, and all are written at every scrape."""
RUN_BUCKETS_S = (0.01, 0.1, 1, 10, 60, 300, 1800, 3600, 4 * 3600, 24 * 3600)


class Metrics:
    """An `Observer`. One per registry: names can be registered once."""

    def __init__(self, view: ClusterView, registry: CollectorRegistry) -> None:
        self._view = view
        self._meter = Meter()
        self._executors: dict[KernelId, ReplicaId] = {}
        self._hosts = Gauge("notebookos_hosts", "Hosts by state.", ["state"], registry=registry)
        self._gpus = Gauge(
            "notebookos_gpus_provisioned", "GPUs of the hosts that are ready.", registry=registry
        )
        self._bound = Gauge(
            "notebookos_gpus_bound", "GPUs that a cell holds, releases included.", registry=registry
        )
        self._subscribed = Gauge(
            "notebookos_subscription_ratio",
            "GPUs that kernels may ask for, over all their replicas, per provisioned GPU.",
            registry=registry,
        )
        self._kernels = Gauge(
            "notebookos_kernels", "Kernels by state.", ["state"], registry=registry
        )
        self._replicas = Gauge(
            "notebookos_replicas", "Replicas by state.", ["state"], registry=registry
        )
        self._prewarmed = Gauge(
            "notebookos_prewarmed_replicas",
            "Pre-warmed replicas that are ready.",
            registry=registry,
        )
        self._launches = Counter(
            "notebookos_replica_launches",
            "Replicas that were launched: out of a host's pool (yes), or not (no).",
            ["prewarmed"],
            registry=registry,
        )
        self._elections = Counter(
            "notebookos_elections", "Elections of executors that were called.", registry=registry
        )
        self._waiting = Gauge(
            "notebookos_cells_waiting", "Cells that have not started.", registry=registry
        )
        self._cells = Counter(
            "notebookos_cells", "Cells that ended, by outcome.", ["outcome"], registry=registry
        )
        self._wait = Histogram(
            "notebookos_cell_wait_seconds",
            "From a cell's submission to the start of its code, election included.",
            ["gpus"],
            buckets=WAIT_BUCKETS_S,
            registry=registry,
        )
        self._run = Histogram(
            "notebookos_cell_run_seconds",
            "From the start of a cell's code to its end.",
            ["gpus"],
            buckets=RUN_BUCKETS_S,
            registry=registry,
        )
        self._gpu_seconds = Counter(
            "notebookos_gpu_seconds_bound", "GPU-seconds that cells held.", registry=registry
        )
        self._attempts = Counter(
            "notebookos_attempts",
            "Attempts that began: the last executor again, or another replica.",
            ["executor"],
            registry=registry,
        )
        self._refused = Counter(
            "notebookos_attempts_refused", "Attempts that could not begin.", registry=registry
        )
        self._lost = Counter(
            "notebookos_replicas_lost", "Replicas whose process ended unasked.", registry=registry
        )
        self._hosts_asked = Counter(
            "notebookos_hosts_requested", "Times that more hosts were asked for.", registry=registry
        )

        self._members = Gauge(
            "notebookos_members", "Members of Raft groups by role.", ["role"], registry=registry
        )
        self._log_bytes = Gauge(
            "notebookos_log_bytes", "Bytes of all members' logs on disk.", registry=registry
        )
        self._behind = Gauge(
            "notebookos_entries_behind",
            "Log entries that the member furthest behind has not delivered.",
            registry=registry,
        )
        self._leader_changes = Gauge(
            "notebookos_leader_changes",
            "Changes of leaders that the members now open have seen.",
            registry=registry,
        )
        self._each_member = _EachMember(registry)

    def note_members(self, told: Mapping[HostId, Mapping[KernelId, MemberStatus]]) -> None:
        """How the members of all kernels' Raft groups are, as their hosts just told."""
        members = [status for statuses in told.values() for status in statuses.values()]
        for role in Role:
            count = sum(member.role is role for member in members)
            self._members.labels(role=role.value).set(count)
        self._log_bytes.set(sum(member.log_bytes for member in members))
        self._behind.set(max(map(_entries_behind, members), default=0))
        self._leader_changes.set(sum(member.leader_changes for member in members))
        self._each_member.note(told)

    def observe(self, event: events.Event, answers: Sequence[actions.Action]) -> None:
        """See `Observer`."""
        for record in self._meter.observe(event, answers):
            if isinstance(record, CellUsage):
                self._cell(record)
        for action in answers:
            self._action(action)
        match event:
            case events.AttemptRefused():
                self._refused.inc()
            case events.ReplicaLost():
                self._lost.inc()
            case events.KernelStopped():
                self._executors.pop(event.kernel, None)
            case events.Ticked():
                self._gauge()
            case _:
                pass

    def _action(self, action: actions.Action) -> None:
        if isinstance(action, actions.StartAttempt):
            known = self._executors.get(action.kernel)
            if known is not None:
                same = "same" if known == action.replica else "other"
                self._attempts.labels(executor=same).inc()
            self._executors[action.kernel] = action.replica
        elif isinstance(action, actions.StartReplica):
            self._launches.labels(prewarmed="yes" if action.prewarmed else "no").inc()
        elif isinstance(action, actions.CallElection):
            self._elections.inc()
        elif isinstance(action, actions.RequestHosts):
            self._hosts_asked.inc()

    def _cell(self, record: CellUsage) -> None:
        if record.released_at is not None:
            self._gpu_seconds.inc(record.gpus * max(0.0, record.released_at - record.bound_at))
        if record.gpus and record.released_at is not None:
            # It was counted when it ended, before its GPUs were free.
            return
        gpus = str(record.gpus)
        self._cells.labels(outcome=record.outcome.value).inc()
        self._wait.labels(gpus=gpus).observe(max(0.0, record.started_at - record.submitted_at))
        self._run.labels(gpus=gpus).observe(max(0.0, record.ended_at - record.started_at))

    def _gauge(self) -> None:
        view = self._view
        hosts = list(view.hosts.values())
        kernels = list(view.kernels.values())
        replicas = [replica for kernel in kernels for replica in kernel.replicas]
        provisioned = len({d.device for host in view.ready_hosts for d in host.spec.devices})
        subscribed = sum(kernel.gpus_per_cell * len(kernel.replicas) for kernel in kernels)
        for host_state in HostState:
            count = sum(host.state is host_state for host in hosts)
            self._hosts.labels(state=host_state.value).set(count)
        for kernel_state in KernelState:
            count = sum(kernel.state is kernel_state for kernel in kernels)
            self._kernels.labels(state=kernel_state.value).set(count)
        for replica_state in ReplicaState:
            count = sum(replica.state is replica_state for replica in replicas)
            self._replicas.labels(state=replica_state.value).set(count)
        self._prewarmed.set(sum(host.prewarmed for host in hosts if host.ready))
        self._gpus.set(provisioned)
        self._bound.set(len(view.bindings))
        self._subscribed.set(subscribed / provisioned if provisioned else 0.0)
        self._waiting.set(len(view.waiting))


class _EachMember:
    """Gauges of single members, by kernel and host: of those furthest behind, if there are many."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._untold = Gauge(
            "notebookos_members_untold",
            f"Members without gauges of their own, beyond the {MEMBERS_TOLD_MAX} furthest behind.",
            registry=registry,
        )
        self._role = Gauge(
            "notebookos_member_role",
            "1 for what a member is in its Raft group.",
            ["kernel", "host", "role"],
            registry=registry,
        )
        self._roles: dict[tuple[KernelId, HostId], str] = {}
        """The members told now, by kernel and host, and the role of each."""
        self._quantities: list[tuple[Gauge, Callable[[MemberStatus], int]]] = [
            (Gauge(f"notebookos_member_{name}", what, ["kernel", "host"], registry=registry), of)
            for name, what, of in (
                ("term", "Its newest term.", lambda m: m.term),
                ("last_index", "Its newest log entry.", lambda m: m.last_index),
                ("commit_index", "Up to where it knows of a commit.", lambda m: m.commit_index),
                ("applied_index", "Up to where it has delivered.", lambda m: m.delivered_index),
                ("entries_behind", "Log entries that it has not delivered.", _entries_behind),
                ("snapshot_index", "Up to where a snapshot stands.", lambda m: m.snapshot_index),
                ("log_bytes", "Bytes of its log on disk.", lambda m: m.log_bytes),
                ("leader_changes", "Leaders it saw since opened.", lambda m: m.leader_changes),
            )
        ]

    def note(self, told: Mapping[HostId, Mapping[KernelId, MemberStatus]]) -> None:
        """Show these members and no others.

        A scrape comes from another thread: what stays is there all the time.
        """
        members = [(host, member) for host, all_ in told.items() for member in all_.values()]
        members.sort(key=lambda item: (-_entries_behind(item[1]), item[1].kernel, item[0]))
        self._untold.set(max(len(members) - MEMBERS_TOLD_MAX, 0))
        roles: dict[tuple[KernelId, HostId], str] = {}
        for host, member in members[:MEMBERS_TOLD_MAX]:
            place = (member.kernel, host)
            roles[place] = member.role.value
            for gauge, of in self._quantities:
                gauge.labels(*place).set(of(member))
            self._role.labels(*place, member.role.value).set(1)
        for place, role in self._roles.items():
            if roles.get(place) != role:
                self._role.remove(*place, role)
            if place not in roles:
                for gauge, _ in self._quantities:
                    gauge.remove(*place)
        self._roles = roles


def _entries_behind(member: MemberStatus) -> int:
    return member.last_index - member.delivered_index
