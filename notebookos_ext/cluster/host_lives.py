"""The life of hosts: they join, are lost, are emptied, and go for good."""

from __future__ import annotations

from notebookos_ext.cluster import (
    cells,
    kernels,
    majority,
    migration,
    settling,
)
from notebookos_ext.cluster.actions import ReleaseHost
from notebookos_ext.cluster.events import (
    HostDrainCancelled,
    HostDrainRequested,
    HostJoined,
    HostLost,
    HostRemoved,
)
from notebookos_ext.cluster.hosts import Host
from notebookos_ext.cluster.model import HostState
from notebookos_ext.cluster.replicas import Step
from notebookos_ext.cluster.turn import Turn


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
            known.removed = known.draining = known.release = known.surplus = False
            state.draining.pop(known.id, None)
    host = state.hosts[spec.host]
    host.joined_at, host.filled = event.at, False
    state.scaling.unavailable_reason = ""
    state.prewarmed_changed.add(host.id)
    state.by_load.note(host)
    state.most_gpus = max(host.gpu_count for host in state.hosts.values())
    state.pool.list_host(spec.host, spec.devices)
    majority.close_former(turn, host.id)
    for replica_id in sorted(host.replicas):
        found = state.find_replica(replica_id)
        if found is not None:
            state.recount.add(found[0].id)
            found[1].failures = 0
            if turn.policy.keeps_gpus:
                settling.reserve(turn, found[0])
            if found[0].storing or found[0].going_on:
                found[1].relaunch_at = turn.at
                state.lost[replica_id] = found[1]
                continue
            turn.launch(*found)
            state.dirty.add(found[0].id)
    for kernel_id in list(state.without_hosts):
        settling.place(turn, state.kernels[kernel_id])
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
            for kernel in state.kernels.values():
                kernel.former.discard(host_id)
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
    host.draining, host.release, host.surplus = True, release, False
    turn.state.draining[host.id] = None
    turn.state.by_load.note(host)
    if turn.state.options.migrate:
        migration.empty_hosts(turn)


def host_drain_cancelled(turn: Turn, event: HostDrainCancelled) -> None:
    """It is as good as any other; kernels that wait for hosts may use it."""
    host = turn.state.hosts.get(event.host)
    if host is None or not host.draining or host.removed:
        return
    host.draining = host.release = host.surplus = False
    turn.state.draining.pop(host.id, None)
    turn.state.by_load.note(host)
    for kernel_id in list(turn.state.without_hosts):
        settling.place(turn, turn.state.kernels[kernel_id])


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
        state.recount.add(kernel.id)
        state.lost.pop(replica.id, None)
        replica.lost_reason = f"its host {host.id} is lost: {reason}"
        if replica.can(Step.DIED):
            turn.step(replica, Step.DIED)
        kernel.forget_names_of(replica.id)
        if kernels.is_newcomer(kernel, replica):
            migration.newcomer_lost(turn, kernel, replica.lost_reason)
            continue
        cells.executor_gone(turn, kernel, replica, replica.lost_reason, host_lives=False)
        cells.finish_without_members(turn, kernel)
        state.dirty.add(kernel.id)
    turn.look_at_all = True


def release_empty(turn: Turn) -> None:
    """Give hosts back on which nothing is left."""
    state = turn.state
    for host_id in state.draining:
        host = state.hosts[host_id]
        going = host.release and host.ready and not host.releasing
        if going and not host.replicas and not state.pool.bound_on(host_id):
            host.releasing = True
            turn.say(ReleaseHost(host_id, host.spec.incarnation, "it is empty"))
