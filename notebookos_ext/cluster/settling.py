"""Giving a kernel its hosts, and taking them from it: new, in the store alone, and brought back."""

from __future__ import annotations

from notebookos_ext.cluster.actions import (
    CloseKernel,
    KernelStarted,
    RequestHosts,
    RestoreKernel,
    StoreKernel,
)
from notebookos_ext.cluster.events import KernelNeeded, KernelStored
from notebookos_ext.cluster.gpus import RESERVED
from notebookos_ext.cluster.model import DeviceId, HostId
from notebookos_ext.cluster.placement import choose_devices
from notebookos_ext.cluster.replicas import LOST, Kernel, Replica, Step
from notebookos_ext.cluster.turn import Turn

ASK_AGAIN_S = 30.0
"""How often hosts are asked for again while a kernel waits for them."""


def all_replicas(kernel: Kernel) -> tuple[Replica, ...]:
    """Its replicas, and the one that is on its way."""
    if kernel.migration is None or kernel.migration.newcomer is None:
        return kernel.replicas
    return (*kernel.replicas, kernel.migration.newcomer)


def all_members(kernel: Kernel) -> tuple[HostId, ...]:
    """Every host on which the kernel has a member, with a vote or without."""
    return tuple(dict.fromkeys((*kernel.members, *(r.host for r in all_replicas(kernel)))))


def place(turn: Turn, kernel: Kernel) -> bool:
    """Give a kernel its hosts and launch its replicas; False when there are too few hosts."""
    count = kernel.next_replica_count
    placement = turn.policy.place(turn.view, kernel, count)
    if len(placement.hosts) < count:
        return False
    move_in(turn, kernel, placement.hosts)
    return True


def move_in(
    turn: Turn, kernel: Kernel, hosts: tuple[HostId, ...], devices: tuple[DeviceId, ...] = ()
) -> None:
    """Launch its replicas on these hosts, with `devices` of the first set apart for its cell."""
    turn.state.without_hosts.pop(kernel.id, None)
    turn.state.note_idle(kernel, turn.at)
    settle(turn, kernel, hosts)
    if devices:
        turn.state.pool.reserve(kernel.id, hosts[0], devices, turn.at)
    if kernel.stored:
        kernel.stored, kernel.restoring = False, True
        turn.say(RestoreKernel(kernel=kernel.id, members=kernel.members, epoch=kernel.epoch))
    launch_all(turn, kernel)
    turn.state.dirty.add(kernel.id)


def place_anew(turn: Turn, kernel: Kernel) -> None:
    """Move to the changed number of hosts, if there are as many; else stay, and ask for them."""
    count, old = kernel.next_replica_count, kernel.members
    leave_hosts(turn, kernel)
    placement = turn.policy.place(turn.view, kernel, count)
    if len(placement.hosts) < count:
        for replica in kernel.replicas:
            turn.state.carry(kernel, replica, len(kernel.replicas))
        ask_for_hosts(turn, kernel)
        return
    turn.say(CloseKernel(kernel=kernel.id, members=old))
    note_former(turn, kernel, old)
    settle(turn, kernel, placement.hosts)


def settle(turn: Turn, kernel: Kernel, hosts: tuple[HostId, ...]) -> None:
    """These are its hosts from now on; nothing is launched yet."""
    kernel.settle(hosts)
    turn.state.recount.add(kernel.id)
    for replica in kernel.replicas:
        turn.state.carry(kernel, replica, len(hosts))
    if turn.policy.keeps_gpus:
        reserve(turn, kernel)


def note_former(turn: Turn, kernel: Kernel, members: tuple[HostId, ...]) -> None:
    """A group is left behind: those of its hosts that are away keep its log until they are back."""
    kernel.former.update(host for host in members if not turn.state.hosts[host].ready)


def reserve(turn: Turn, kernel: Kernel) -> None:
    """Set apart what the kernel asks for, if its host has it: for a policy that reserves."""
    pool, host = turn.state.pool, kernel.members[0]
    before = pool.release(kernel.id, RESERVED)
    turn.state.short.pop(kernel.id, None)
    if not turn.state.hosts[host].ready:
        return
    devices = choose_devices(pool, host, kernel.gpus_per_cell)
    if devices is None:
        free = pool.free(host)
        devices = tuple(device for device in before if device in free)
        # Somebody outside the cluster uses the rest for now: tried again at each tick.
        turn.state.short[kernel.id] = None
    if devices:
        pool.reserve(kernel.id, host, devices, turn.at)


def leave_hosts(turn: Turn, kernel: Kernel) -> None:
    """Its hosts carry its replicas no longer."""
    for replica in all_replicas(kernel):
        turn.state.drop(replica)


def launch_all(turn: Turn, kernel: Kernel) -> None:
    """Start every replica whose host is there."""
    for replica in all_replicas(kernel):
        replica.failures = 0
        if turn.state.hosts[replica.host].ready:
            turn.launch(kernel, replica)


def ask_for_hosts(turn: Turn, kernel: Kernel) -> None:
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


# ---- stored kernels


def store(turn: Turn, kernel: Kernel) -> None:
    """Keep the kernel in the store alone, unless something of it runs, moves or cannot travel.

    What cannot travel yet, because it is on its way to the store, counts too.
    """
    if (
        not kernel.placed
        or kernel.storing
        or kernel.going_on
        or kernel.attempt is not None
        or kernel.election is not None
        or kernel.migration is not None
        or kernel.held_by is not None
        or kernel.pending_on is not None
    ):
        return
    kernel.storing = True
    turn.say(StoreKernel(kernel=kernel.id, members=kernel.members, epoch=kernel.epoch))


def stored(turn: Turn, event: KernelStored) -> None:
    """Its replicas are gone; what waited meanwhile brings it back at once."""
    kernel = turn.state.kernels.get(event.kernel)
    if kernel is None or not kernel.storing:
        return
    kernel.storing = False
    restart, kernel.restart_due = kernel.restart_due, False
    turn.state.dirty.add(kernel.id)
    if not event.stored:
        # Tried again as soon as it has been idle for as long once more.
        turn.state.note_idle(kernel, turn.at)
        for replica in kernel.replicas:
            if replica.state is LOST and turn.state.hosts[replica.host].ready:
                turn.state.lost[replica.id] = replica
        if restart:
            turn.restart.append(kernel.id)
        return
    turn.state.to_resize.pop(kernel.id, None)
    for replica in kernel.replicas:
        turn.state.lost.pop(replica.id, None)
        if replica.can(Step.STOPPED):
            turn.step(replica, Step.STOPPED)
    leave_hosts(turn, kernel)
    turn.state.pool.release(kernel.id, RESERVED)
    note_former(turn, kernel, kernel.members)
    kernel.members, kernel.replicas, kernel.lost_members = (), (), {}
    turn.state.recount.add(kernel.id)
    started = kernel.started
    kernel.forget_namespace()
    kernel.started, kernel.stored, kernel.restoring = started, True, False
    if restart:
        kernel.epoch += 1
        turn.say(KernelStarted(kernel=kernel.id))


def needed(turn: Turn, event: KernelNeeded) -> None:
    """Bring it back for something that is no cell; or it is not idle."""
    kernel = turn.state.kernels.get(event.kernel)
    if kernel is None:
        return
    turn.state.note_idle(kernel, turn.at)
    if kernel.stored and kernel.id not in turn.state.without_hosts:
        wake(turn, kernel)


def wake(turn: Turn, kernel: Kernel) -> None:
    """Place it now, or when there are hosts."""
    if not place(turn, kernel):
        turn.state.without_hosts[kernel.id] = None
        ask_for_hosts(turn, kernel)
