"""Kernels that have lost most of their Raft group: they wait, go on unprotected, or begin anew.

One that loses it on its way back from the checkpoint store goes back there, from where other hosts
bring it back.

Going on is a new group, founded by one survivor from what it knows. The old group is left behind
for good: its key is forgotten, its logs are deleted, on hosts that are away when they come back. A
new epoch needs nothing of the old group, so a restart founds one that knows nothing.
"""

from __future__ import annotations

from notebookos_ext.cluster import cells, migration, settling
from notebookos_ext.cluster.actions import (
    ChangeMembers,
    CloseKernel,
    CloseMember,
    GoOnUnprotected,
    MajorityLost,
)
from notebookos_ext.cluster.events import (
    MemberBack,
    MemberLost,
    UnprotectedRequested,
    WentOnUnprotected,
)
from notebookos_ext.cluster.model import HostId
from notebookos_ext.cluster.options import WithoutMajority
from notebookos_ext.cluster.replicas import LOST, Kernel, MigrationPhase, Replica
from notebookos_ext.cluster.state import ClusterView
from notebookos_ext.cluster.survivors import (
    has_majority,
    is_hopeless,
    survivors,
    without_majority,
)
from notebookos_ext.cluster.turn import Turn

GO_ON_AGAIN_S = 30.0
"""How long after it failed a kernel tries again by itself to go on unprotected."""

# ---- what is noticed


def member_lost(turn: Turn, event: MemberLost) -> None:
    """It counts no more until it has learnt the log again."""
    kernel = turn.state.kernels.get(event.kernel)
    if kernel is not None and event.host in kernel.members:
        kernel.lost_members[event.host] = event.reason
        turn.state.recount.add(kernel.id)


def member_back(turn: Turn, event: MemberBack) -> None:
    """It votes."""
    kernel = turn.state.kernels.get(event.kernel)
    if kernel is not None and kernel.lost_members.pop(event.host, None) is not None:
        turn.state.recount.add(kernel.id)


def recount(turn: Turn) -> None:
    """At the end of each event: which kernels have lost their majority in it, or have it again."""
    state = turn.state
    for kernel_id in sorted(state.recount):
        kernel = state.kernels[kernel_id]
        if has_majority(state.hosts, kernel):
            if kernel.majority_lost_at is not None:
                _forget_loss(turn, kernel)
        elif kernel.majority_lost_at is None:
            kernel.majority_lost_at = turn.at
            state.without_majority[kernel.id] = None
        if kernel.majority_lost_at is not None:
            if is_hopeless(state.hosts, kernel) and not kernel.majority_told:
                # Waiting longer can change nothing.
                _tell(turn, kernel)
            elif kernel.majority_told:
                # The reason names hosts.
                state.dirty.add(kernel.id)
    state.recount.clear()


def _forget_loss(turn: Turn, kernel: Kernel) -> None:
    kernel.majority_lost_at, kernel.majority_told, kernel.put_back = None, False, False
    turn.state.without_majority.pop(kernel.id, None)
    turn.state.dirty.add(kernel.id)


def _tell(turn: Turn, kernel: Kernel) -> None:
    kernel.majority_told = True
    turn.state.dirty.add(kernel.id)
    turn.say(MajorityLost(kernel.id, without_majority(turn.state.hosts, kernel)))


def look(turn: Turn) -> None:
    """Time passes: tell the user of what lasts, and go on if that was chosen."""
    state = turn.state
    for kernel_id in list(state.without_majority):
        kernel = state.kernels[kernel_id]
        lost_at = kernel.majority_lost_at
        if lost_at is None or turn.at - lost_at < state.options.majority_grace_s:
            continue
        if kernel.restoring and not kernel.put_back:
            # All of it may still be in the store: then it is brought back on other hosts.
            kernel.put_back = True
            settling.store(turn, kernel)
        if kernel.storing:
            continue
        if not kernel.majority_told:
            _tell(turn, kernel)
        wanted = state.options.without_majority is WithoutMajority.CONTINUE
        if wanted and turn.at >= kernel.go_on_at and refusal(turn.view, kernel) is None:
            _go_on(turn, kernel)


# ---- going on unprotected


def refusal(view: ClusterView, kernel: Kernel) -> str | None:
    """Why the kernel cannot go on unprotected; None if it can."""
    if not kernel.placed or kernel.storing:
        return "no replica of it runs"
    if kernel.going_on:
        return "it is about to do so"
    if has_majority(view.hosts, kernel):
        return "enough of its members are there, so nothing needs to be given up"
    if is_hopeless(view.hosts, kernel):
        return "none of its members has a log any more; restart the kernel"
    if not survivors(view.hosts, kernel):
        return "none of its members is there; it can when one of them is"
    return None


def requested(turn: Turn, event: UnprotectedRequested) -> None:
    """Somebody knows that the others do not come back, or will not wait for them."""
    kernel = turn.state.kernels.get(event.kernel)
    if kernel is not None and refusal(turn.view, kernel) is None:
        _go_on(turn, kernel)


def _go_on(turn: Turn, kernel: Kernel) -> None:
    kernel.going_on = True
    kernel.go_on_at = turn.at + GO_ON_AGAIN_S
    turn.state.dirty.add(kernel.id)
    turn.say(
        GoOnUnprotected(
            kernel=kernel.id,
            hosts=survivors(turn.state.hosts, kernel),
            members=kernel.members,
        )
    )


def went_on(turn: Turn, event: WentOnUnprotected) -> None:
    """The group is that of the survivor alone now, which gets company again; or all is as before.

    Whatever ran on the survivor runs on: its replica has the namespace in memory.
    """
    state = turn.state
    kernel = state.kernels.get(event.kernel)
    if kernel is None or not kernel.going_on:
        return
    kernel.going_on = False
    state.recount.add(kernel.id)
    state.dirty.add(kernel.id)
    everybody = settling.all_replicas(kernel)
    chosen = next((r for r in everybody if r.host == event.host), None)
    if chosen is None:
        moving = kernel.migration
        if moving is not None and moving.phase is MigrationPhase.CHANGING:
            turn.say(ChangeMembers(kernel=kernel.id, members=moving.members))
        return
    reason = "most of its members were lost, and it went on without them"
    old = settling.all_members(kernel)
    migration.abandon(turn, kernel, reason)
    kernel.members, kernel.replicas = (chosen.host,), (chosen,)
    kernel.lost_members, kernel.went_on = {}, True
    _forget_loss(turn, kernel)
    for replica in everybody:
        if replica is not chosen:
            _leave_behind(turn, kernel, replica, reason)
    cells.finish_without_members(turn, kernel)
    state.promise_anew(kernel)
    if chosen.state is LOST and state.hosts[chosen.host].ready:
        state.lost[chosen.id] = chosen
    close_old(turn, kernel, old)
    if state.options.migrate:
        migration.resize(turn, kernel)


def _leave_behind(turn: Turn, kernel: Kernel, replica: Replica, reason: str) -> None:
    state = turn.state
    state.lost.pop(replica.id, None)
    turn.stop(kernel, replica)
    state.drop(replica)
    kernel.forget_names_of(replica.id)
    if kernel.last_executor == replica.id:
        kernel.last_executor = None
    cells.executor_gone(turn, kernel, replica, reason, host_lives=state.hosts[replica.host].ready)


# ---- beginning anew


def found_anew(turn: Turn, kernel: Kernel) -> None:
    """Give the epoch that begins a group of its own, on as many hosts as there are; else wait."""
    state = turn.state
    old = settling.all_members(kernel)
    everybody = settling.all_replicas(kernel)
    settling.leave_hosts(turn, kernel)
    count = kernel.next_replica_count
    hosts = turn.policy.place(turn.view, kernel, count).hosts
    if len(hosts) < count and state.options.migrate:
        # The others join when they are there.
        hosts = turn.policy.place(turn.view, kernel, 1).hosts
        state.to_resize[kernel.id] = None
    elif len(hosts) < count:
        hosts = ()
    if not hosts:
        for replica in everybody:
            state.carry(kernel, replica, len(kernel.replicas))
        settling.ask_for_hosts(turn, kernel)
        return
    migration.abandon(turn, kernel, "the kernel was restarted")
    turn.say(CloseKernel(kernel=kernel.id, members=old))
    settling.note_former(turn, kernel, old)
    settling.settle(turn, kernel, hosts)


# ---- what is left of former groups


def close_old(turn: Turn, kernel: Kernel, old: tuple[HostId, ...]) -> None:
    """Delete the logs of a group that was left behind, now or when their hosts are back."""
    for name in old:
        host = turn.state.hosts.get(name)
        if name in kernel.members:
            continue
        if host is not None and host.ready:
            turn.say(CloseMember(kernel=kernel.id, host=name, members=kernel.members))
        else:
            kernel.former.add(name)


def close_former(turn: Turn, host: HostId) -> None:
    """A host is back: what it still has of groups that were left behind goes first."""
    for kernel in turn.state.kernels.values():
        if host in kernel.former:
            kernel.former.discard(host)
            turn.say(CloseMember(kernel=kernel.id, host=host, members=kernel.members))
