"""From the controller's insight to the JSON shapes: pure, and run on the controller's thread."""

from __future__ import annotations

from notebookos_ext.cluster.majority import refusal
from notebookos_ext.cluster.model import CellId, DeviceKind, HostId, KernelId, replica_number
from notebookos_ext.cluster.queueing import WaitingCell
from notebookos_ext.cluster.replicas import Kernel, Replica
from notebookos_ext.cluster.survivors import without_majority
from notebookos_ext.errors import NotFound
from notebookos_ext.handlers.models import (
    BindingView,
    CellView,
    ClusterView,
    DeviceView,
    HeldNameView,
    HostView,
    KernelView,
    MemberView,
    MigrationView,
    ReplicaView,
    StoredView,
    StoreView,
    WaitingView,
    WarningView,
)
from notebookos_ext.live.controller import Insight
from notebookos_ext.live.kernel_records import CellRecord, KernelRecord
from notebookos_ext.notebook_settings import GIB
from notebookos_ext.storage.addresses import S3Address

MB = 1_000_000


def cluster(insight: Insight, *, version: str) -> ClusterView:
    """The whole cluster."""
    hosts = tuple(
        _host(insight, host)
        for host in sorted(insight.view.hosts, key=lambda name: (len(name), name))
    )
    return ClusterView(
        version=version,
        at=insight.at,
        backend=insight.backend,
        policy=insight.policy,
        durable=insight.consensus_engine != "raftos",
        simulated=any(d.kind == "simulated" for host in hosts for d in host.devices),
        store=_store(insight),
        max_hosts=insight.view.max_hosts,
        hosts=hosts,
        kernels=tuple(
            _kernel(insight, record, insight.view.kernels[record.kernel])
            for record in insight.records.values()
            if record.kernel in insight.view.kernels
        ),
        waiting=tuple(
            WaitingView(
                kernel_id=waiting.cell.kernel,
                notebook_path=_notebook(insight, waiting.cell.kernel),
                cell_id=waiting.cell.cell,
                position=waiting.position,
                gpus=waiting.cell.gpus,
                reason=_reason(insight, waiting),
                since=waiting.since,
                estimate_ms=_estimate(insight, waiting.cell.kernel, waiting.cell.cell),
            )
            for waiting in insight.view.waiting
            if waiting.position
        ),
        warnings=tuple(
            WarningView(kernel_id=warned.kernel, message=warned.message, at=warned.at)
            for warned in insight.warnings
        ),
    )


def _store(insight: Insight) -> StoreView:
    reports = insight.stores
    failing = [host for host in sorted(reports) if not reports[host].works]
    return StoreView(
        kind="s3" if isinstance(insight.store, S3Address) else "folder",
        name=insight.store.name,
        works=not failing,
        error=reports[failing[0]].error if failing else "",
        since=min((reports[host].since for host in failing), default=None),
        failing_hosts=tuple(failing),
        waiting_chunks=sum(report.waiting_chunks for report in reports.values()),
        waiting_bytes=sum(report.waiting_bytes for report in reports.values()),
        put_bytes=sum(report.put_bytes for report in reports.values()),
        fetched_bytes=sum(report.fetched_bytes for report in reports.values()),
    )


def kernel(insight: Insight, kernel_id: str) -> KernelView:
    """One kernel. Raises NotFound."""
    found = KernelId(kernel_id)
    record = insight.records.get(found)
    if record is None or found not in insight.view.kernels:
        raise NotFound(f"there is no NotebookOS kernel {kernel_id}")
    return _kernel(insight, record, insight.view.kernels[found])


def host(insight: Insight, host_id: HostId) -> HostView:
    """One host. Raises NotFound."""
    if host_id not in insight.view.hosts:
        raise NotFound(f"there is no host {host_id}")
    return _host(insight, host_id)


def _host(insight: Insight, host: HostId) -> HostView:
    entry = insight.view.hosts[host]
    return HostView(
        id=host,
        state="ready" if entry.ready else "lost",
        draining=entry.draining,
        leaving=entry.release or entry.surplus or entry.releasing,
        machine=entry.spec.machine,
        pid=entry.spec.pid,
        devices=_devices(insight, host),
        replica_count=len(entry.replicas),
        gpu_type=entry.spec.gpu_type,
        memory_bytes=entry.spec.memory_bytes,
    )


def _devices(insight: Insight, host: HostId) -> tuple[DeviceView, ...]:
    views = []
    uses = insight.use.get(host, {})
    for spec in insight.view.hosts[host].spec.devices:
        binding = insight.view.bindings.get(spec.device)
        use = uses.get(spec.device)
        views.append(
            DeviceView(
                id=spec.device,
                index=spec.index,
                kind="simulated" if spec.kind is DeviceKind.SIMULATED else "cuda",
                name=spec.name,
                memory_bytes=spec.memory_bytes,
                memory_used_bytes=use.memory_used_bytes if use else None,
                utilization_percent=use.utilization_percent if use else None,
                temperature_c=use.temperature_c if use else None,
                power_w=use.power_w if use else None,
                shared_with=tuple(sorted(insight.view.pool.hosts_of(spec.device) - {host})),
                binding=None
                if binding is None
                else BindingView(
                    kernel_id=binding.kernel,
                    replica_id=binding.replica,
                    cell_id=binding.cell,
                    since=binding.since,
                    releasing=binding.releasing,
                ),
            )
        )
    return tuple(views)


def _kernel(insight: Insight, record: KernelRecord, entry: Kernel) -> KernelView:
    return KernelView(
        id=record.kernel,
        name=record.plan.name,
        notebook_path=_notebook(insight, record.kernel),
        state=entry.state.value,
        epoch=entry.epoch,
        # What it was asked for counts only until it has its hosts.
        replica_count=len(entry.replicas) or entry.spec.replica_count,
        next_replica_count=entry.next_replica_count,
        gpus_per_cell=record.gpus_per_cell,
        gpu_type=entry.spec.gpu_type,
        gpu_memory_gib=entry.spec.gpu_memory_bytes / GIB,
        memory_gib=entry.spec.memory_bytes / GIB,
        sync=record.plan.sync,
        next_sync=record.next_sync,
        gpu_wait_s=entry.spec.gpu_wait_s,
        replicas=tuple(_replica(insight, record, entry, replica) for replica in entry.replicas),
        held=tuple(HeldNameView(name.name, name.type_name, name.reason) for name in entry.held),
        not_durable=entry.pending,
        store_bytes=max(
            (told[entry.id] for told in insight.store_bytes.values() if entry.id in told),
            default=None,
        ),
        preferred_replica=None
        if entry.next_executor is None
        else replica_number(entry.next_executor),
        migration=_migration(entry),
        stored=_stored(record),
        majority_lost=(
            without_majority(insight.view.hosts, entry) if entry.majority_told else None
        ),
        can_continue=refusal(insight.view, entry) is None,
        unprotected=entry.is_unprotected,
        cells=tuple(_cell(insight, cell) for cell in record.cells),
    )


def _stored(record: KernelRecord) -> StoredView | None:
    back = record.restoration
    if back is not None:
        return StoredView(
            since=back.since,
            size_bytes=back.size_bytes,
            restoring=True,
            fetched_bytes=min(back.fetched_bytes, back.size_bytes),
        )
    if record.stored is None or record.storing:
        return None
    return StoredView(
        since=record.stored.at,
        size_bytes=record.stored.size_bytes,
        restoring=False,
        fetched_bytes=0,
    )


def _migration(entry: Kernel) -> MigrationView | None:
    moving = entry.migration
    if moving is None:
        return None
    return MigrationView(
        replica_id=moving.victim,
        target=moving.target,
        phase=moving.phase.value,
        reason=moving.reason.value,
        since=moving.since,
    )


def _replica(
    insight: Insight, record: KernelRecord, entry: Kernel, replica: Replica
) -> ReplicaView:
    process = record.processes.get(replica.id)
    return ReplicaView(
        id=replica.id,
        number=replica.number,
        host_id=replica.host,
        state=replica.state.value,
        pid=process.pid if process else replica.pid,
        lag=process.lag if process else 0,
        executor=insight.view.executor(entry.id) == replica.id,
        member=_member(insight, replica.host, entry.id),
    )


def _member(insight: Insight, host: HostId, kernel: KernelId) -> MemberView | None:
    status = insight.members.get(host, {}).get(kernel)
    if status is None:
        return None
    return MemberView(
        role=status.role.value,
        votes=status.member in status.membership.voters,
        term=status.term,
        last_index=status.last_index,
        commit_index=status.commit_index,
        applied_index=status.delivered_index,
        snapshot_index=status.snapshot_index,
        log_bytes=status.log_bytes,
        leader_changes=status.leader_changes,
        failure=status.failure,
    )


def _cell(insight: Insight, cell: CellRecord) -> CellView:
    host = insight.view.hosts.get(cell.host) if cell.host else None
    specs = host.spec.devices if host else ()
    used = [spec for spec in specs if spec.device in cell.devices]
    kinds = {spec.kind for spec in used}
    return CellView(
        cell_id=cell.cell,
        notebook_cell_id=cell.notebook_cell,
        code=cell.code,
        gpus=cell.gpus,
        gpus_reason=cell.gpus_reason,
        replica_id=cell.replica,
        host_id=cell.host,
        devices=tuple(spec.index for spec in used),
        device_kind=None if not kinds else "simulated" if DeviceKind.SIMULATED in kinds else "cuda",
        state=cell.state,
        submitted=cell.submitted,
        waited_ms=_ms(cell.submitted, cell.started),
        ran_ms=_ms(cell.started, cell.ended),
    )


def _reason(insight: Insight, waiting: WaitingCell) -> str:
    """With how much of a kernel that comes back has been loaded, where that takes a while."""
    record = insight.records.get(waiting.cell.kernel)
    back = record.restoration if record is not None else None
    if back is None or back.size_bytes < MB:
        return waiting.reason
    done = min(back.fetched_bytes, back.size_bytes) // MB
    return f"{waiting.reason} ({done} of {back.size_bytes // MB} MB)"


def _estimate(insight: Insight, kernel_id: KernelId, cell_id: CellId) -> float | None:
    record = insight.records.get(kernel_id)
    cell = record.cell(cell_id) if record is not None else None
    return None if cell is None else cell.estimate_ms


def _ms(since: float | None, until: float | None) -> float | None:
    return None if since is None or until is None else max(0.0, (until - since) * 1000.0)


def _notebook(insight: Insight, kernel_id: KernelId) -> str:
    """Where the notebook is now: it may have been renamed since its kernel began."""
    record = insight.records.get(kernel_id)
    if record is not None and record.session is not None and record.session.type == "notebook":
        return record.session.path
    entry = insight.view.kernels.get(kernel_id)
    return entry.spec.notebook_path if entry else ""
