"""The life of kernels and their replicas: who is where, what is launched again, what restarts."""

from __future__ import annotations

import msgspec

from notebookos_ext.cluster import ballots, cells, majority, migration, settling
from notebookos_ext.cluster.actions import (
    CloseKernel,
    KernelRejected,
    KernelStarted,
    StartEpoch,
)
from notebookos_ext.cluster.events import (
    ExecutorPreferred,
    KernelRequested,
    KernelRestarted,
    KernelRevived,
    KernelSettingsChanged,
    KernelStopped,
    ReplicaLost,
    ReplicaStarted,
)
from notebookos_ext.cluster.gpus import RESERVED
from notebookos_ext.cluster.hosts import Host
from notebookos_ext.cluster.model import (
    REPLICA_COUNTS,
    HostId,
    HostSpec,
    HostState,
    ReplicaId,
)
from notebookos_ext.cluster.replicas import LOST, STARTING, Kernel, MigrationPhase, Replica, Step
from notebookos_ext.cluster.survivors import is_hopeless
from notebookos_ext.cluster.turn import Turn

# ---- kernels


def kernel_requested(turn: Turn, event: KernelRequested) -> None:
    """Place it now, or when the hosts that are asked for have joined, or refuse it."""
    spec, state = event.spec, turn.state
    reason = _impossible(turn, event)
    if reason is not None:
        turn.say(KernelRejected(kernel=spec.kernel, reason=reason))
        return
    kernel = Kernel(
        spec,
        requested_at=event.at,
        next_replica_count=turn.policy.replica_count(spec.replica_count),
    )
    state.note_idle(kernel, event.at)
    # An earlier kernel of this id may still be giving GPUs back: its attempts are not used again.
    kernel.last_attempt = state.still_released.pop(kernel.id, 0)
    state.kernels[kernel.id] = kernel
    if not turn.policy.keeps_replicas:
        kernel.stored = kernel.started = True
        turn.say(KernelStarted(kernel=kernel.id))
        return
    if not settling.place(turn, kernel):
        state.without_hosts[kernel.id] = None
        settling.ask_for_hosts(turn, kernel)


def kernel_revived(turn: Turn, event: KernelRevived) -> None:
    """Put it back where its log is, or leave it in the store.

    Hosts that have not joined yet count as lost until they do.
    """
    spec, state = event.spec, turn.state
    reason = _impossible(turn, event)
    if reason is not None:
        turn.say(KernelRejected(kernel=spec.kernel, reason=reason))
        return
    kernel = Kernel(spec, requested_at=event.at, next_replica_count=spec.replica_count)
    kernel.epoch, kernel.last_attempt = event.epoch, event.last_attempt
    state.kernels[kernel.id] = kernel
    state.note_idle(kernel, event.at)
    if event.stored:
        kernel.stored = kernel.started = True
        majority.close_old(turn, kernel, event.former)
        turn.say(KernelStarted(kernel=kernel.id))
        return
    for host in event.members:
        if host not in state.hosts:
            unseen = HostSpec(host=host, incarnation="", machine="", devices=())
            state.hosts[host] = Host(unseen, HostState.LOST, lost_reason="it has not joined yet")
    settling.settle(turn, kernel, event.members)
    kernel.went_on = event.unprotected
    majority.close_old(turn, kernel, event.former)
    if len(event.members) != spec.replica_count and state.options.migrate:
        state.to_resize[kernel.id] = None
    if kernel.epoch:
        # Its entry may not have been committed; beginning it again changes nothing.
        turn.say(StartEpoch(kernel=kernel.id, epoch=kernel.epoch, members=kernel.members))
    settling.launch_all(turn, kernel)
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
    count = turn.policy.replica_count(spec.replica_count)
    if count > state.max_hosts:
        return (
            f"{count} replicas need as many hosts, but this cluster may have "
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
    if state.pool.holds_any(kernel.id):
        state.still_released[kernel.id] = kernel.last_attempt
    if kernel.placed:
        settling.leave_hosts(turn, kernel)
        turn.say(CloseKernel(kernel=kernel.id, members=settling.all_members(kernel)))
    state.recount.discard(kernel.id)
    for waiting in (
        state.without_majority,
        state.without_hosts,
        state.moving,
        state.to_resize,
        state.active,
        state.idle,
        state.short,
    ):
        waiting.pop(kernel.id, None)
    del state.kernels[kernel.id]


def kernel_restarted(turn: Turn, event: KernelRestarted) -> None:
    """Begin a new epoch with an empty namespace, on the same hosts.

    A changed replica count takes effect here, if enough hosts are ready: then the kernel is placed
    anew and gets a new Raft group. The old one is closed on all its hosts before the new one opens,
    and the new group begins with the new epoch, so nothing of the old one can count in it. So it is
    when the old one has no majority: nothing of what it knows is wanted any more.
    """
    kernel = turn.state.kernels.get(event.kernel)
    if kernel is None:
        return
    if kernel.storing:
        # The group is on its way out: the new epoch begins when it is brought back, or if it stays.
        for waiting in list(kernel.waiting):
            cells.abort(turn, kernel, waiting, "the kernel was restarted")
        if not turn.policy.keeps_gpus:
            # They were set apart for a cell that waited.
            turn.state.pool.release(kernel.id, RESERVED)
        kernel.restart_due = True
        return
    _end_epoch(turn, kernel, "the kernel was restarted")
    if kernel.stored:
        kernel.epoch += 1
        turn.say(KernelStarted(kernel=kernel.id))
        return
    kernel.forget_namespace()
    kernel.restoring = False
    if not kernel.placed:
        return
    kernel.epoch += 1
    if turn.policy.keeps_gpus:
        settling.reserve(turn, kernel)
    else:
        turn.state.pool.release(kernel.id, RESERVED)
    if kernel.majority_lost_at is not None:
        majority.found_anew(turn, kernel)
    elif kernel.next_replica_count != len(kernel.replicas) and not turn.state.options.migrate:
        settling.place_anew(turn, kernel)
    turn.say(StartEpoch(kernel=kernel.id, epoch=kernel.epoch, members=kernel.members))
    settling.launch_all(turn, kernel)
    turn.state.dirty.add(kernel.id)


def kernel_settings_changed(turn: Turn, event: KernelSettingsChanged) -> None:
    """GPUs count from the next cell on; replicas from the next start, which may still be ahead."""
    kernel = turn.state.kernels.get(event.kernel)
    if kernel is None:
        return
    needs = {
        name: value
        for name in ("gpu_type", "gpu_memory_bytes", "memory_bytes", "gpu_wait_s")
        if (value := getattr(event, name)) is not None
    }
    if needs:
        kernel.spec = msgspec.structs.replace(kernel.spec, **needs)
        turn.state.promise_anew(kernel)
    if event.gpus_per_cell is not None:
        kernel.set_gpus_per_cell(event.gpus_per_cell)
        turn.state.promise_anew(kernel)
        if turn.policy.keeps_gpus and kernel.placed:
            if kernel.attempt is None:
                settling.reserve(turn, kernel)
            else:
                # What the cell runs on stays as it is; the rest follows when it has ended.
                turn.state.short[kernel.id] = None
    if event.replica_count in REPLICA_COUNTS and (
        kernel.placed or event.replica_count <= turn.state.max_hosts
    ):
        kernel.next_replica_count = turn.policy.replica_count(event.replica_count)
    if not kernel.placed and not kernel.stored and not settling.place(turn, kernel):
        settling.ask_for_hosts(turn, kernel)
    if turn.state.options.migrate:
        migration.resize(turn, kernel)
    turn.state.dirty.add(kernel.id)


def executor_preferred(turn: Turn, event: ExecutorPreferred) -> None:
    """Who is preferred from now on, until it has begun a cell; a cell that waits is looked at."""
    kernel = turn.state.kernels.get(event.kernel)
    if kernel is None:
        return
    kernel.preferred = event.replica
    turn.state.dirty.add(kernel.id)


def _end_epoch(turn: Turn, kernel: Kernel, reason: str) -> None:
    for waiting in list(kernel.waiting):
        cells.abort(turn, kernel, waiting, reason)
    if kernel.migration is not None and kernel.migration.phase is not MigrationPhase.CHANGING:
        migration.roll_back(turn, kernel, reason, avoid=False)
    ballots.close(kernel)
    for replica in settling.all_replicas(kernel):
        turn.stop(kernel, replica)
        turn.state.lost.pop(replica.id, None)
    cells.abandon_attempt(turn, kernel)


def is_newcomer(kernel: Kernel, replica: Replica) -> bool:
    """Whether the replica is on its way to be a member, and none yet."""
    return kernel.migration is not None and kernel.migration.newcomer is replica


# ---- replicas


def replica_started(turn: Turn, event: ReplicaStarted) -> None:
    """It can run cells; the first one of an epoch makes the kernel usable."""
    found = _living(turn, event.replica, event.host, event.incarnation)
    if found is None or found[1].state is not STARTING:
        return
    kernel, replica = found
    turn.step(replica, Step.STARTED)
    replica.pid, replica.started_at, replica.lost_reason = event.pid, event.at, ""
    if is_newcomer(kernel, replica):
        migration.newcomer_started(turn, kernel)
        return
    kernel.restoring = False
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
    if is_newcomer(kernel, replica):
        migration.newcomer_lost(turn, kernel, event.reason)
        return
    kernel.forget_names_of(replica.id)
    cells.executor_gone(turn, kernel, replica, event.reason, host_lives=True)
    turn.state.lost[replica.id] = replica
    relaunch_due(turn)
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


def relaunch_due(turn: Turn) -> None:
    """Launch the lost replicas again whose time has come."""
    for replica in [r for r in turn.state.lost.values() if r.relaunch_at <= turn.at]:
        found = turn.state.find_replica(replica.id)
        if found is None or found[0].storing or found[0].going_on:
            continue
        if replica.state is LOST and not is_hopeless(turn.state.hosts, found[0]):
            turn.launch(*found)
            turn.state.dirty.add(found[0].id)
