"""NotebookOS: a kernel's replicas on distinct hosts, GPUs bound for the length of one cell.

Any replica can run any cell, so a cell starts at once when one of several hosts has GPUs free
(paper sections 1.4 and 2). The preferences, strongest first: the replica the user named; the one
that has names which cannot travel or are not yet durable; the one being restarted for this cell;
the one that a debugger waits in; the last executor, whose memory is warm; the host that fits best,
so that whole hosts stay free.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from notebookos_ext.cluster.model import (
    Cell,
    DeviceId,
    DeviceKind,
    ExecutorPreference,
    HostId,
    ReplicaState,
)
from notebookos_ext.cluster.placement import (
    Ask,
    Placement,
    ask_for,
    choose_devices,
    find_target,
    free_text,
    gpus_text,
    misfits_text,
    place_kernel,
)
from notebookos_ext.cluster.policies.base import Choice, Move, Reject, Run, Wait, Wake
from notebookos_ext.cluster.queueing import WaitingCell
from notebookos_ext.cluster.replicas import Kernel, Phase, Replica
from notebookos_ext.cluster.state import ClusterView
from notebookos_ext.cluster.survivors import without_majority

RELEASE_PATIENCE_S = 1.0
"""How long a cell waits for the GPUs that its own kernel gives back rather than go elsewhere."""


class ReplicatedPolicy:
    """See the module."""

    name = "replicated"
    keeps_gpus = False
    keeps_replicas = True

    def replica_count(self, wanted: int) -> int:
        """As many as the notebook asks for."""
        return wanted

    def place(self, view: ClusterView, kernel: Kernel, count: int) -> Placement:
        """Spread over the hosts with the fewest replicas, those with enough GPUs first."""
        ask = ask_for(kernel.spec, count, view.options.subscription_limit)
        found = place_kernel(view.by_load, ask, count)
        if len(found.hosts) < count and ask.limit and len(view.hosts) >= view.max_hosts:
            # No more hosts are to be had: promised too often is better than not at all.
            return place_kernel(view.by_load, ask_for(kernel.spec, count), count)
        return found

    def choose(
        self,
        view: ClusterView,
        kernel: Kernel,
        waiting: WaitingCell,
        *,
        kept: Collection[DeviceId],
        at: float,
    ) -> Choice:
        """Who runs the cell now, on which devices; else why nobody does."""
        cell = waiting.cell
        return (
            never(view, kernel, cell)
            or not_its_turn(view, kernel, waiting)
            or _stored(kernel)
            or _conflict(kernel, cell)
            or _too_many_for_kernel(view, kernel, cell)
            or _run_or_wait(view, kernel, waiting, kept, at)
        )

    def keep(
        self, view: ClusterView, kernel: Kernel, waiting: WaitingCell, kept: Collection[DeviceId]
    ) -> tuple[DeviceId, ...]:
        """What is free on the host that is nearest to having enough."""
        gpus = waiting.cell.gpus
        best: list[DeviceId] = []
        for replica in allowed_replicas(kernel, waiting.cell):
            if _live(view, replica) and view.hosts[replica.host].gpu_count >= gpus:
                free = view.pool.free(replica.host, kept)
                if len(free) > len(best):
                    best = free
        return tuple(best[:gpus])


# ---- the steps of `choose`


def never(view: ClusterView, kernel: Kernel, cell: Cell) -> Reject | None:
    """Why the cell can never run in this cluster."""
    if cell.gpus < 0:
        return Reject(f"a cell cannot ask for {cell.gpus} GPUs", "ask for 0 or more")
    count = len(kernel.replicas) or kernel.next_replica_count
    numbers = [r.number for r in kernel.replicas] or list(range(1, count + 1))
    if cell.replica_number is not None and cell.replica_number not in numbers:
        return Reject(
            f"the cell asks for replica {cell.replica_number}, "
            f"but this kernel has {_numbers_text(numbers)}",
            "change or remove the replica in the cell's metadata",
        )
    most = view.most_gpus
    if cell.gpus <= most or not view.hosts:
        return None
    if most == 0:
        return Reject(
            f"the cell asks for {gpus_text(cell.gpus)}, but no host of this cluster has any",
            "run it without, with %%gpu 0 as its first line",
        )
    return Reject(
        f"the cell asks for {gpus_text(cell.gpus)}, "
        f"but no host of this cluster has more than {most}",
        f"ask for at most {most}, with %%gpu {most} as its first line",
    )


def not_its_turn(view: ClusterView, kernel: Kernel, waiting: WaitingCell) -> Wait | None:
    """What the cell waits for that is its own kernel's business."""
    if kernel.storing:
        return Wait("the kernel is just being stored")
    if kernel.majority_told or kernel.going_on:
        return Wait(without_majority(view.hosts, kernel))
    if kernel.restoring:
        return Wait("the kernel is being restored from the store")
    if not kernel.placed and (not kernel.stored or kernel.id in view.without_hosts):
        count = kernel.next_replica_count
        ready = view.ready_count
        misfits = misfits_text(view.by_load, ask_for(kernel.spec, count))
        return Wait(
            f"the kernel waits for hosts: it needs {count}, {ready} ready"
            f"{f'; {misfits}' if misfits else ''}{no_more_hosts(view)}"
        )
    if kernel.attempt is not None:
        if kernel.attempt.phase is Phase.CLOSING:
            why = "it was interrupted" if kernel.attempt.cancelled else "its replica is gone"
            return Wait(f"the previous cell is being closed, because {why}")
        return Wait("the previous cell is still being committed")
    if kernel.waiting and kernel.waiting[0] is not waiting:
        return Wait("waits for the cell before it")
    if kernel.election is not None:
        return Wait("its replicas are electing an executor")
    return None


def _stored(kernel: Kernel) -> Wake | None:
    return Wake("the kernel was idle for long and is being brought back") if kernel.stored else None


def _conflict(kernel: Kernel, cell: Cell) -> Choice | None:
    """The user named one replica, but the names are on another."""
    if cell.replica_number is None:
        return None
    replica = kernel.numbered(cell.replica_number)
    named = replica.id if replica is not None else None
    if kernel.held_by not in (None, named):
        names = names_text([held.name for held in kernel.held])
        return Reject(
            f"the cell asks for replica {cell.replica_number}, "
            f"but {names} cannot leave {_called(kernel, kernel.held_by)}",
            f"delete {names} first, or remove the replica from the cell's metadata",
        )
    if kernel.pending_on not in (None, named):
        return Wait(
            f"waits until {names_text(kernel.pending)} is durable: "
            f"the newest value is still only on {_called(kernel, kernel.pending_on)}"
        )
    return None


def _too_many_for_kernel(view: ClusterView, kernel: Kernel, cell: Cell) -> Reject | None:
    """Some host of the cluster has enough GPUs, but none that this cell could use."""
    if cell.gpus == 0 or _may_move(view, kernel, cell):
        return None
    allowed = [replica for replica in kernel.replicas if _could_ever(kernel, cell, replica)]
    counts = {replica.host: view.hosts[replica.host].gpu_count for replica in allowed}
    if max(counts.values()) >= cell.gpus:
        return None
    has = ", ".join(f"{host} has {count}" for host, count in counts.items())
    hint = "shut the kernel down and start it again with as many GPUs per cell, to get other hosts"
    if len(allowed) < len(kernel.replicas):
        hint = "ask for fewer, or let another replica run it"
    return Reject(
        f"the cell asks for {gpus_text(cell.gpus)}, but where it can run {has}",
        hint,
    )


def _run_or_wait(
    view: ClusterView,
    kernel: Kernel,
    waiting: WaitingCell,
    kept: Collection[DeviceId],
    at: float,
) -> Run | Wait | Move:
    cell = waiting.cell
    allowed = allowed_replicas(kernel, cell)
    recycling = next((r for r in allowed if r.id == waiting.recycling), None)
    if recycling is not None and recycling.state is ReplicaState.STARTING:
        return Wait(f"replica {recycling.number} is being restarted so that it can use other GPUs")
    replaced = kernel.migration.replaces if kernel.migration is not None else None
    live = [
        r for r in allowed if _live(view, r) and r.id not in waiting.refused and r.id != replaced
    ]
    if any(_gives_back(view, kernel, cell, replica, at) for replica in live):
        return Wait("waits until the GPUs of the cell before are given back")
    if recycling is None and (run := _as_before(view, kernel, cell, live, kept)) is not None:
        return run
    options = []
    for replica in live:
        devices = _devices_for(view, kernel, replica, cell.gpus, kept)
        if devices is not None:
            rank = _rank(view, kernel, cell, replica, devices)
            options.append((replica is not recycling, rank, replica.id, devices))
    if options:
        *_, best, devices = min(options)
        return Run(best, devices)
    line_at = tuple(r.host for r in live)
    soon = next((r for r in allowed if _starts_with(view, kernel, r, cell.gpus, kept)), None)
    if cell.gpus > 0 and soon is not None and kernel.migration is None:
        # Another one would have to start as well, and to catch up besides.
        return Wait(f"replica {soon.number} on {soon.host} is starting", line_at)
    if cell.gpus > 0 and (move := _move(view, kernel, waiting, kept, at, line_at)) is not None:
        return move
    if not live or cell.gpus == 0:
        absent = ", ".join(_why_not(view, r, waiting) for r in allowed)
        return Wait(f"no replica can run it now: {absent}")
    states = ", ".join(
        free_text(view.pool, r.host, view.hosts[r.host].gpu_count, kept)
        if r in live
        else _why_not(view, r, waiting)
        for r in allowed
    )
    return Wait(f"waits for {gpus_text(cell.gpus)}: {states}{no_more_hosts(view)}", line_at)


def _as_before(
    view: ClusterView,
    kernel: Kernel,
    cell: Cell,
    live: Sequence[Replica],
    kept: Collection[DeviceId],
) -> Run | None:
    """On the last executor if it can be had as it is: nothing ranks before that."""
    last = kernel.last_executor
    if last is None or (kernel.next_executor or cell.near) not in (None, last):
        return None
    if kernel.spec.executor_preference is ExecutorPreference.ROTATE:
        return None
    replica = next((r for r in live if r.id == last), None)
    if replica is None or view.hosts[replica.host].draining:
        return None
    devices = _devices_for(view, kernel, replica, cell.gpus, kept)
    if devices is None or (devices != replica.devices and _fixed_to_devices(view, replica)):
        return None
    return Run(last, devices)


def _move(
    view: ClusterView,
    kernel: Kernel,
    waiting: WaitingCell,
    kept: Collection[DeviceId],
    at: float,
    line_at: tuple[HostId, ...],
) -> Move | Wait | None:
    """Bring a replica to where the GPUs are, if that is possible and not under way."""
    cell, migration = waiting.cell, kernel.migration
    if not _may_move(view, kernel, cell):
        return None
    if migration is not None:
        if migration.cell != cell.cell:
            return None
        return Wait(f"waits until a replica has moved to {migration.target}", line_at)
    able = [r for r in kernel.replicas if r.id != kernel.pending_on]
    if not able:
        return None
    if kernel.pending_on is not None and any(
        _live(view, r) and _devices_for(view, kernel, r, cell.gpus, kept) is not None for r in able
    ):
        # It begins there as soon as everything is durable.
        return None
    hosts = view.hosts
    avoided = [host for host, until in kernel.avoid.items() if until > at]
    ask = Ask(
        kernel.spec,
        able[0].share,
        without=(*kernel.members, *avoided),
        domains=frozenset(hosts[r.host].spec.failure_domain for r in kernel.replicas),
    )
    target = find_target(view.pool, hosts, ask, cell.gpus, kept)
    if target is None:
        return None
    devices = choose_devices(view.pool, target, cell.gpus, without=kept)
    if devices is None:
        return None
    reason = f"waits until a replica has moved to {target}, which has {gpus_text(cell.gpus)} free"
    return Move(target, devices, reason, line_at)


# ---- what the steps are made of


def _may_move(view: ClusterView, kernel: Kernel, cell: Cell) -> bool:
    """Whether the cell could run on a replica that is not there yet."""
    return view.options.migrate and cell.replica_number is None and kernel.held_by is None


def _numbers_text(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return "one replica" if numbers == [1] else f"only replica {numbers[0]}"
    if numbers == list(range(1, len(numbers) + 1)):
        return f"replicas 1 to {len(numbers)}"
    return f"replicas {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def allowed_replicas(kernel: Kernel, cell: Cell) -> Sequence[Replica]:
    """The replicas whose namespace can serve the cell and that its user lets run it."""
    only = kernel.held_by or kernel.pending_on
    if cell.replica_number is not None:
        return [r for r in kernel.replicas if r.number == cell.replica_number]
    if only is not None:
        return [replica for replica in kernel.replicas if replica.id == only]
    return kernel.replicas


def _could_ever(kernel: Kernel, cell: Cell, replica: Replica) -> bool:
    """Whether it may run the cell once everything is durable."""
    if cell.replica_number is not None:
        return replica.number == cell.replica_number
    return kernel.held_by in (None, replica.id)


def _live(view: ClusterView, replica: Replica) -> bool:
    return replica.state is ReplicaState.IDLE and view.hosts[replica.host].ready


def _starts_with(
    view: ClusterView, kernel: Kernel, replica: Replica, gpus: int, kept: Collection[DeviceId]
) -> bool:
    """Whether it will have the GPUs once it has started."""
    if replica.state is not ReplicaState.STARTING or not view.hosts[replica.host].ready:
        return False
    return _devices_for(view, kernel, replica, gpus, kept) is not None


def _gives_back(view: ClusterView, kernel: Kernel, cell: Cell, replica: Replica, at: float) -> bool:
    """The last executor's GPUs are about to be free; moving would cost more than the moment."""
    if replica.id != kernel.last_executor or kernel.next_executor not in (None, replica.id):
        return False
    if not 0 < cell.gpus <= view.hosts[replica.host].gpu_count:
        return False
    if kernel.spec.executor_preference is ExecutorPreference.ROTATE:
        return False
    return any(
        binding.kernel == kernel.id
        and binding.releasing_since is not None
        and at - binding.releasing_since < RELEASE_PATIENCE_S
        for device in replica.devices
        if (binding := view.bindings.get(device)) is not None
    )


def _fixed_to_devices(view: ClusterView, replica: Replica) -> bool:
    """Its process has set up CUDA on the devices it was bound to and cannot see others."""
    kinds = {spec.device: spec.kind for spec in view.hosts[replica.host].spec.devices}
    return any(kinds.get(device) is DeviceKind.CUDA for device in replica.devices)


def _devices_for(
    view: ClusterView, kernel: Kernel, replica: Replica, gpus: int, kept: Collection[DeviceId]
) -> tuple[DeviceId, ...] | None:
    if gpus == 0:
        return ()
    own = view.pool.reserved_for(kernel.id, replica.host)
    devices = choose_devices(
        view.pool, replica.host, gpus, known=replica.devices, without=kept, own=own
    )
    if (
        devices is not None
        and kernel.held_by == replica.id
        and len(replica.devices) == gpus
        and devices != replica.devices
        and _fixed_to_devices(view, replica)
    ):
        # Other devices would mean a restart, and with it the loss of the names that hold it.
        return None
    return devices


def _rank(
    view: ClusterView, kernel: Kernel, cell: Cell, replica: Replica, devices: tuple[DeviceId, ...]
) -> tuple[int, int, int, int, int]:
    """Lowest is best."""
    away = int((kernel.next_executor or cell.near) not in (None, replica.id))
    other_devices = bool(
        devices and set(devices) != set(replica.devices) and _fixed_to_devices(view, replica)
    )
    leaves = view.hosts[replica.host].draining
    is_last = replica.id == kernel.last_executor and not leaves
    if kernel.spec.executor_preference is ExecutorPreference.ROTATE:
        return away, int(is_last or leaves), int(other_devices), _turns_away(kernel, replica), 0
    if devices:
        load = view.pool.free_count(replica.host) - len(devices)
    else:
        load = view.hosts[replica.host].executing
    return away, int(other_devices), int(not is_last) + int(leaves), load, replica.number


def _turns_away(kernel: Kernel, replica: Replica) -> int:
    """How many replicas stand between the last executor and this one, going round."""
    last = next((r.number for r in kernel.replicas if r.id == kernel.last_executor), 0)
    return (replica.number - last - 1) % len(kernel.replicas)


def _why_not(view: ClusterView, replica: Replica, waiting: WaitingCell) -> str:
    host = view.hosts[replica.host]
    if not host.ready:
        return f"{host.id} with replica {replica.number} is lost ({host.lost_reason})"
    if replica.id in waiting.refused:
        return f"{host.id} refused it ({waiting.refused[replica.id]}) and is asked again soon"
    if replica.state is ReplicaState.LOST:
        return f"replica {replica.number} on {host.id} is lost ({replica.lost_reason})"
    return f"replica {replica.number} on {host.id} is {replica.state}"


def _called(kernel: Kernel, replica: object) -> str:
    return next((f"replica {r.number}" for r in kernel.replicas if r.id == replica), "its replica")


def no_more_hosts(view: ClusterView) -> str:
    """What is added to a reason while the backend has no more hosts to give."""
    return f"; no more hosts can be had: {view.no_more_hosts}" if view.no_more_hosts else ""


def names_text(names: Sequence[str]) -> str:
    """`a`, `b` and how many more."""
    shown = ", ".join(f"`{name}`" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
