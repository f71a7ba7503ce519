"""The life of hosts, kernels and replicas: who is where, what is launched again, what restarts."""

from __future__ import annotations

from notebookos_ext.cluster import autoscaler, cells, migration, prewarm, rebalancing
from notebookos_ext.cluster.actions import (
    CloseKernel,
    KernelRejected,
    KernelStarted,
    ReleaseHost,
    RequestHosts,
    StartEpoch,
)
from notebookos_ext.cluster.events import (
    HostDrainCancelled,
    HostDrainRequested,
    HostJoined,
    HostLost,
    HostRemoved,
    KernelRequested,
    KernelRestarted,
    KernelRevived,
    KernelSettingsChanged,
    KernelStopped,
    ReplicaLost,
    ReplicaStarted,
    Ticked,
)
from notebookos_ext.cluster.gpus import RESERVED
from notebookos_ext.cluster.hosts import Host
from notebookos_ext.cluster.model import (
    REPLICA_COUNTS,
    HostId,
    HostSpec,
    HostState,
    KernelId,
    ReplicaId,
)
from notebookos_ext.cluster.replicas import LOST, STARTING, Kernel, MigrationPhase, Replica, Step
from notebookos_ext.cluster.turn import Turn

ASK_AGAIN_S = 30.0
"""How often hosts are asked for again while a kernel waits for them."""

# ---- hosts


def host_joined(turn: Turn, event: HostJoined) -> None:
    """List its devices, launch its replicas again, place kernels that waited for a host."""
    state, spec = turn.state, event.spec
    known = state.hosts.get(spec.host)
    if known is not None and known.ready:
        if known.spec.incarnation == spec.incarnation and known.spec.devices == spec.devices:
            known.spec = spec
            return
        _lose_host(turn, known, "its agent was started again")
    if known is None:
        state.hosts[spec.host] = Host(spec)
    else:
        known.spec, known.state, known.lost_reason = spec, HostState.READY, ""
        known.prewarmed = known.prewarming = 0
        known.releasing = False
        if known.removed:
            known.removed = known.draining = known.release = False
            state.draining.pop(known.id, None)
    host = state.hosts[spec.host]
    host.joined_at, host.filled = event.at, False
    state.prewarmed_changed.add(host.id)
    state.by_load.note(host)
    state.most_gpus = max(host.gpu_count for host in state.hosts.values())
    state.pool.list_host(spec.host, spec.devices)
    for replica_id in sorted(host.replicas):
        found = state.find_replica(replica_id)
        if found is not None:
            found[1].failures = 0
            turn.launch(*found)
            state.dirty.add(found[0].id)
    for kernel_id in list(state.without_hosts):
        _place(turn, state.kernels[kernel_id])
    # A new host can make a request possible or impossible, and reasons name hosts.
    turn.look_at_all = True


def host_lost(turn: Turn, event: HostLost) -> None:
    """Its replicas are lost, its bindings void; kernels keep it as a member until it returns."""
    host = turn.state.hosts.get(event.host)
    if host is not None and host.ready and host.spec.incarnation == event.incarnation:
        _lose_host(turn, host, event.reason)


def host_removed(turn: Turn, event: HostRemoved) -> None:
    """It is lost, and forgotten once no kernel has a member on it."""
    host = turn.state.hosts.get(event.host)
    if host is None or host.spec.incarnation != event.incarnation:
        return
    if host.ready:
        _lose_host(turn, host, "it was taken away")
    host.removed = host.draining = host.release = True
    turn.state.draining[host.id] = None
    forget_empty(turn)


def forget_empty(turn: Turn) -> None:
    """Hosts that are gone for good are forgotten once no kernel has a member on them."""
    state = turn.state
    for host_id in list(state.draining):
        host = state.hosts[host_id]
        if host.removed and not host.replicas:
            del state.hosts[host_id]
            del state.draining[host_id]
            state.most_gpus = max((h.gpu_count for h in state.hosts.values()), default=0)
            turn.look_at_all = True


def host_drain_requested(turn: Turn, event: HostDrainRequested) -> None:
    """Nothing new goes there."""
    host = turn.state.hosts.get(event.host)
    if host is not None:
        drain(turn, host, release=event.release)


def drain(turn: Turn, host: Host, *, release: bool) -> None:
    """Take nothing new, and move what is there."""
    host.draining, host.release = True, release
    turn.state.draining[host.id] = None
    turn.state.by_load.note(host)
    if turn.state.options.migrate:
        migration.empty_hosts(turn)


def host_drain_cancelled(turn: Turn, event: HostDrainCancelled) -> None:
    """It is as good as any other; kernels that wait for hosts may use it."""
    host = turn.state.hosts.get(event.host)
    if host is None or not host.draining or host.removed:
        return
    host.draining = host.release = False
    turn.state.draining.pop(host.id, None)
    turn.state.by_load.note(host)
    for kernel_id in list(turn.state.without_hosts):
        _place(turn, turn.state.kernels[kernel_id])


def _lose_host(turn: Turn, host: Host, reason: str) -> None:
    state = turn.state
    host.state, host.lost_reason = HostState.LOST, reason
    state.by_load.note(host)
    state.pool.unlist_host(host.id)
    for replica_id in sorted(host.replicas):
        found = state.find_replica(replica_id)
        if found is None:
            continue
        kernel, replica = found
        state.lost.pop(replica.id, None)
        replica.lost_reason = f"its host {host.id} is lost: {reason}"
        if replica.can(Step.DIED):
            turn.step(replica, Step.DIED)
        kernel.forget_names_of(replica.id)
        if _is_newcomer(kernel, replica):
            migration.newcomer_lost(turn, kernel, replica.lost_reason)
            continue
        cells.executor_gone(turn, kernel, replica, replica.lost_reason, host_lives=False)
        cells.finish_without_members(turn, kernel)
        state.dirty.add(kernel.id)
    turn.look_at_all = True


# ---- kernels


def kernel_requested(turn: Turn, event: KernelRequested) -> None:
    """Place it now, or when the hosts that are asked for have joined, or refuse it."""
    spec, state = event.spec, turn.state
    reason = _impossible(turn, event)
    if reason is not None:
        turn.say(KernelRejected(kernel=spec.kernel, reason=reason))
        return
    kernel = Kernel(spec, requested_at=event.at, next_replica_count=spec.replica_count)
    # An earlier kernel of this id may still be giving GPUs back: its attempts are not used again.
    kernel.last_attempt = max(
        (b.attempt for b in state.pool.bindings.values() if b.kernel == spec.kernel), default=0
    )
    state.kernels[kernel.id] = kernel
    if not _place(turn, kernel):
        state.without_hosts[kernel.id] = None
        _ask_for_hosts(turn, kernel)


def kernel_revived(turn: Turn, event: KernelRevived) -> None:
    """Put it back where its log is. Hosts that have not joined yet count as lost until they do."""
    spec, state = event.spec, turn.state
    reason = _impossible(turn, event)
    if reason is not None:
        turn.say(KernelRejected(kernel=spec.kernel, reason=reason))
        return
    kernel = Kernel(spec, requested_at=event.at, next_replica_count=spec.replica_count)
    kernel.epoch, kernel.last_attempt = event.epoch, event.last_attempt
    state.kernels[kernel.id] = kernel
    for host in event.members:
        if host not in state.hosts:
            unseen = HostSpec(host=host, incarnation="", machine="", devices=())
            state.hosts[host] = Host(unseen, HostState.LOST, lost_reason="it has not joined yet")
    _settle(turn, kernel, event.members)
    if kernel.epoch:
        # Its entry may not have been committed; beginning it again changes nothing.
        turn.say(StartEpoch(kernel=kernel.id, epoch=kernel.epoch, members=kernel.members))
    _launch_all(turn, kernel)
    state.dirty.add(kernel.id)


def _impossible(turn: Turn, event: KernelRequested | KernelRevived) -> str | None:
    spec, state = event.spec, turn.state
    if spec.kernel in state.kernels:
        return f"there is already a kernel {spec.kernel}"
    if spec.replica_count not in REPLICA_COUNTS:
        *first, last = REPLICA_COUNTS
        counts = f"{', '.join(map(str, first))} or {last}"
        return f"a kernel has {counts} replicas, not {spec.replica_count}"
    if spec.gpus_per_cell < 0:
        return f"a cell cannot ask for {spec.gpus_per_cell} GPUs; use 0 or more"
    if spec.replica_count > state.max_hosts:
        return (
            f"{spec.replica_count} replicas need as many hosts, but this cluster may have "
            f"{state.max_hosts}; ask for fewer replicas or raise max_hosts"
        )
    return None


def kernel_stopped(turn: Turn, event: KernelStopped) -> None:
    """Take back what waits, end its replicas, give its GPUs back, and delete it everywhere."""
    state = turn.state
    kernel = state.kernels.get(event.kernel)
    if kernel is None:
        return
    _end_epoch(turn, kernel, "the kernel was shut down")
    state.pool.release(kernel.id, RESERVED)
    if kernel.placed:
        _leave_hosts(turn, kernel)
        turn.say(CloseKernel(kernel=kernel.id, members=_all_members(kernel)))
    for waiting in (state.without_hosts, state.moving, state.to_resize, state.active):
        waiting.pop(kernel.id, None)
    del state.kernels[kernel.id]


def kernel_restarted(turn: Turn, event: KernelRestarted) -> None:
    """Begin a new epoch with an empty namespace, on the same hosts.

    A changed replica count takes effect here, if enough hosts are ready: then the kernel is placed
    anew and gets a new Raft group. The old one is closed on all its hosts before the new one opens,
    and the new group begins with the new epoch, so nothing of the old one can count in it.
    """
    kernel = turn.state.kernels.get(event.kernel)
    if kernel is None:
        return
    _end_epoch(turn, kernel, "the kernel was restarted")
    kernel.forget_namespace()
    if not kernel.placed:
        return
    kernel.epoch += 1
    if kernel.next_replica_count != len(kernel.replicas) and not turn.state.options.migrate:
        _place_anew(turn, kernel)
    turn.say(StartEpoch(kernel=kernel.id, epoch=kernel.epoch, members=kernel.members))
    _launch_all(turn, kernel)
    turn.state.dirty.add(kernel.id)


def kernel_settings_changed(turn: Turn, event: KernelSettingsChanged) -> None:
    """GPUs count from the next cell on; replicas from the next start, which may still be ahead."""
    kernel = turn.state.kernels.get(event.kernel)
    if kernel is None:
        return
    if event.gpus_per_cell is not None:
        kernel.set_gpus_per_cell(event.gpus_per_cell)
        turn.state.promise_anew(kernel)
    if event.replica_count in REPLICA_COUNTS and (
        kernel.placed or event.replica_count <= turn.state.max_hosts
    ):
        kernel.next_replica_count = event.replica_count
    if not kernel.placed and not _place(turn, kernel):
        _ask_for_hosts(turn, kernel)
    if turn.state.options.migrate:
        migration.resize(turn, kernel)
    turn.state.dirty.add(kernel.id)


def _end_epoch(turn: Turn, kernel: Kernel, reason: str) -> None:
    for waiting in list(kernel.waiting):
        cells.abort(turn, kernel, waiting, reason)
    if kernel.migration is not None and kernel.migration.phase is not MigrationPhase.CHANGING:
        migration.roll_back(turn, kernel, reason, avoid=False)
    for replica in _all_replicas(kernel):
        turn.stop(kernel, replica)
        turn.state.lost.pop(replica.id, None)
    cells.abandon_attempt(turn, kernel)


def _all_replicas(kernel: Kernel) -> tuple[Replica, ...]:
    """Its replicas, and the one that is on its way."""
    if kernel.migration is None or kernel.migration.newcomer is None:
        return kernel.replicas
    return (*kernel.replicas, kernel.migration.newcomer)


def _all_members(kernel: Kernel) -> tuple[HostId, ...]:
    return tuple(dict.fromkeys((*kernel.members, *(r.host for r in _all_replicas(kernel)))))


def _is_newcomer(kernel: Kernel, replica: Replica) -> bool:
    return kernel.migration is not None and kernel.migration.newcomer is replica


def _place(turn: Turn, kernel: Kernel) -> bool:
    """Give a kernel its hosts and launch its replicas; False when there are too few hosts."""
    count = kernel.next_replica_count
    placement = turn.policy.place(turn.view, kernel, count)
    if len(placement.hosts) < count:
        return False
    turn.state.without_hosts.pop(kernel.id, None)
    _settle(turn, kernel, placement.hosts)
    _launch_all(turn, kernel)
    turn.state.dirty.add(kernel.id)
    return True


def _place_anew(turn: Turn, kernel: Kernel) -> None:
    """Move to the changed number of hosts, if there are as many; else stay, and ask for them."""
    count, old = kernel.next_replica_count, kernel.members
    _leave_hosts(turn, kernel)
    placement = turn.policy.place(turn.view, kernel, count)
    if len(placement.hosts) < count:
        for replica in kernel.replicas:
            turn.state.carry(kernel, replica, len(kernel.replicas))
        _ask_for_hosts(turn, kernel)
        return
    turn.say(CloseKernel(kernel=kernel.id, members=old))
    _settle(turn, kernel, placement.hosts)


def _settle(turn: Turn, kernel: Kernel, hosts: tuple[HostId, ...]) -> None:
    kernel.settle(hosts)
    for replica in kernel.replicas:
        turn.state.carry(kernel, replica, len(hosts))


def _leave_hosts(turn: Turn, kernel: Kernel) -> None:
    for replica in _all_replicas(kernel):
        turn.state.drop(replica)


def _launch_all(turn: Turn, kernel: Kernel) -> None:
    for replica in _all_replicas(kernel):
        replica.failures = 0
        if turn.state.hosts[replica.host].ready:
            turn.launch(kernel, replica)


def _ask_for_hosts(turn: Turn, kernel: Kernel) -> None:
    """Ask for as many hosts as the kernel needs, unless so many were asked for a moment ago."""
    state, count = turn.state, kernel.next_replica_count
    if state.options.autoscaler is not None:
        return
    asked_lately = turn.at - state.hosts_requested_at < ASK_AGAIN_S
    if count > state.max_hosts or (count <= state.hosts_requested and asked_lately):
        return
    state.hosts_requested, state.hosts_requested_at = count, turn.at
    turn.say(
        RequestHosts(count=count, reason=f"kernel {kernel.id} needs {count} hosts for its replicas")
    )


# ---- replicas


def replica_started(turn: Turn, event: ReplicaStarted) -> None:
    """It can run cells; the first one of an epoch makes the kernel usable."""
    found = _living(turn, event.replica, event.host, event.incarnation)
    if found is None or found[1].state is not STARTING:
        return
    kernel, replica = found
    turn.step(replica, Step.STARTED)
    replica.pid, replica.started_at, replica.lost_reason = event.pid, event.at, ""
    if _is_newcomer(kernel, replica):
        migration.newcomer_started(turn, kernel)
        return
    if not kernel.started:
        kernel.started = True
        turn.say(KernelStarted(kernel=kernel.id))
    turn.state.dirty.add(kernel.id)


def replica_lost(turn: Turn, event: ReplicaLost) -> None:
    """End its attempt, forget what only it had, and launch it again, at once or after a while."""
    found = _living(turn, event.replica, event.host, event.incarnation)
    if found is None or not found[1].can(Step.DIED):
        return
    kernel, replica = found
    replica.plan_relaunch(turn.at)
    replica.lost_reason = event.reason
    turn.step(replica, Step.DIED)
    if _is_newcomer(kernel, replica):
        migration.newcomer_lost(turn, kernel, event.reason)
        return
    kernel.forget_names_of(replica.id)
    cells.executor_gone(turn, kernel, replica, event.reason, host_lives=True)
    turn.state.lost[replica.id] = replica
    _relaunch_due(turn)
    turn.state.dirty.add(kernel.id)


def _living(
    turn: Turn, replica_id: ReplicaId, host_id: HostId, incarnation: str
) -> tuple[Kernel, Replica] | None:
    """The replica that an event is about, unless the event is about an earlier life of its host."""
    found = turn.state.find_replica(replica_id)
    host = turn.state.hosts.get(host_id)
    if found is None or host is None or not host.ready or host.spec.incarnation != incarnation:
        return None
    return found if found[1].host == host_id else None


def _relaunch_due(turn: Turn) -> None:
    for replica in [r for r in turn.state.lost.values() if r.relaunch_at <= turn.at]:
        found = turn.state.find_replica(replica.id)
        if found is not None and replica.state is LOST:
            turn.launch(*found)
            turn.state.dirty.add(found[0].id)


# ---- time


def ticked(turn: Turn, _event: Ticked) -> None:
    """What was put off until later is looked at again."""
    state = turn.state
    state.pool.end_aside(turn.at)
    if state.lost:
        _relaunch_due(turn)
    for kernel_id in list(state.without_hosts):
        kernel = state.kernels[KernelId(kernel_id)]
        if not _place(turn, kernel):
            _ask_for_hosts(turn, kernel)
    autoscaler.look(turn)
    if state.options.migrate:
        rebalancing.rebalance(turn)
        for kernel_id in list(state.to_resize):
            migration.resize(turn, state.kernels[kernel_id])
        if state.draining:
            migration.empty_hosts(turn)
    if state.draining:
        forget_empty(turn)
        _release_empty(turn)
    if state.prewarmed_changed or state.options.prewarm is not None:
        prewarm.fill(turn)
    if state.queue:
        for waiting in state.queue:
            waiting.refused.clear()
            waiting.refusals.clear()
        turn.look_at_all = True


def _release_empty(turn: Turn) -> None:
    """Give hosts back on which nothing is left."""
    state = turn.state
    for host_id in state.draining:
        host = state.hosts[host_id]
        going = host.release and host.ready and not host.releasing
        if going and not host.replicas and not state.pool.bound_on(host_id):
            host.releasing = True
            turn.say(ReleaseHost(host_id, host.spec.incarnation, "it is empty"))
