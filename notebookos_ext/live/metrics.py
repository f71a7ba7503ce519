"""Prometheus metrics of the cluster, under Jupyter's own /metrics: the paper's quantities.

Counters and histograms follow the scheduler's events; gauges are set with each tick, so that a busy
scheduler does not count its hosts for every cell.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from notebookos_ext.cluster import actions, events
from notebookos_ext.cluster.accounting import CellUsage, Meter
from notebookos_ext.cluster.consensus.ready import Role
from notebookos_ext.cluster.consensus.replicated_log import MemberStatus
from notebookos_ext.cluster.model import HostState, KernelId, KernelState, ReplicaId, ReplicaState
from notebookos_ext.cluster.state import ClusterView

WAIT_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)
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

    def note_members(self, members: Sequence[MemberStatus]) -> None:
        """How the members of all kernels' Raft groups are, as their hosts just told."""
        for role in Role:
            count = sum(member.role is role for member in members)
            self._members.labels(role=role.value).set(count)
        self._log_bytes.set(sum(member.log_bytes for member in members))
        self._behind.set(max((m.last_index - m.delivered_index for m in members), default=0))
        self._leader_changes.set(sum(member.leader_changes for member in members))

    def observe(self, event: events.Event, answers: Sequence[actions.Action]) -> None:
        """See `Observer`."""
        for record in self._meter.observe(event, answers):
            if isinstance(record, CellUsage):
                self._cell(record)
        for action in answers:
            if isinstance(action, actions.StartAttempt):
                known = self._executors.get(action.kernel)
                if known is not None:
                    same = "same" if known == action.replica else "other"
                    self._attempts.labels(executor=same).inc()
                self._executors[action.kernel] = action.replica
            elif isinstance(action, actions.RequestHosts):
                self._hosts_asked.inc()
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
        self._gpus.set(provisioned)
        self._bound.set(len(view.bindings))
        self._subscribed.set(subscribed / provisioned if provisioned else 0.0)
        self._waiting.set(len(view.waiting))
