"""Moving a replica: the new one starts and learns, the group changes, the old one ends.

    STARTING ──caught up──▶ (CAUGHT_UP while the old one runs a cell) ──▶ CHANGING ──▶ moved
        └──────────────── what fails before CHANGING is undone at once ────────────┘

The old replica serves until the group's members have changed. From ChangeMembers on only its answer
tells which members there are, so nothing is undone on a guess; a group that stayed as it was is
found again as it was. Adding a replica is the same without an old one, taking one away the same
without a new one. One migration a kernel at a time.
"""

from __future__ import annotations

from notebookos_ext.cluster.actions import ChangeMembers, CloseMember, MigrationEnded
from notebookos_ext.cluster.events import MembersChanged, MigrationRequested
from notebookos_ext.cluster.gpus import RESERVED
from notebookos_ext.cluster.hosts import share_of
from notebookos_ext.cluster.model import CellId, DeviceId, HostId, ReplicaId
from notebookos_ext.cluster.placement import Ask, place_kernel, refusal
from notebookos_ext.cluster.replicas import (
    EXECUTING,
    IDLE,
    LOST,
    Kernel,
    Migration,
    MigrationPhase,
    MigrationReason,
    Replica,
)
from notebookos_ext.cluster.turn import Turn

AVOID_S = 30.0
"""How long a host is not tried again after a move there failed."""

# ---- choices


def choose_victim(turn: Turn, kernel: Kernel) -> Replica | None:
    """The replica that is missed least, or None if none may go.

    Not one that has names which are nowhere else, and not the last executor, whose memory is warm,
    if there is another. First one that is lost for good, then one on a host that is being emptied,
    then lost, then where the fewest GPUs are free, where the most is promised.
    """
    hosts, pool = turn.state.hosts, turn.state.pool
    able = [r for r in kernel.replicas if r.id not in (kernel.held_by, kernel.pending_on)]
    others = [r for r in able if r.id != kernel.last_executor]
    return min(
        others or able,
        key=lambda r: (
            not hosts[r.host].removed,
            not hosts[r.host].draining,
            r.state is not LOST,
            r.state is EXECUTING,
            hosts[r.host].gpu_count >= kernel.gpus_per_cell,
            min(pool.free_count(r.host), kernel.gpus_per_cell),
            -hosts[r.host].gpu_load,
            r.number,
        ),
        default=None,
    )


def ask_to_move(turn: Turn, kernel: Kernel, victim: Replica | None) -> Ask:
    """What a host must have to take the place of the victim."""
    stay = [r for r in kernel.replicas if r is not victim]
    hosts = turn.state.hosts
    avoided = [host for host, until in kernel.avoid.items() if until > turn.at]
    return Ask(
        spec=kernel.spec,
        share=share_of(kernel.spec, max(1, len(stay) + 1)),
        limit=turn.state.options.subscription_limit,
        without=(*kernel.members, *avoided),
        domains=frozenset(hosts[r.host].spec.failure_domain for r in stay),
    )


def find_host(turn: Turn, kernel: Kernel, victim: Replica | None) -> HostId | None:
    """A host for a replica that nobody waits for: the least loaded that fits."""
    ask = ask_to_move(turn, kernel, victim)
    found = place_kernel(turn.state.by_load, ask, 1).hosts
    if not found and ask.limit:
        # Better promised too often than not at all.
        unlimited = Ask(ask.spec, ask.share, 0.0, ask.without, ask.domains)
        found = place_kernel(turn.state.by_load, unlimited, 1).hosts
    return found[0] if found else None


# ---- beginning


def begin(
    turn: Turn,
    kernel: Kernel,
    reason: MigrationReason,
    *,
    victim: Replica | None,
    target: HostId,
    cell: CellId | None = None,
    devices: tuple[DeviceId, ...] = (),
) -> None:
    """Start a new replica on `target`, with `devices` set apart for the cell that waits for it."""
    state = turn.state
    newcomer = kernel.newcomer(target)
    kernel.migration = Migration(
        reason, turn.at, victim.id if victim is not None else None, newcomer, cell
    )
    state.moving[kernel.id] = None
    count = len(kernel.replicas) + (victim is None)
    state.carry(kernel, newcomer, count)
    if devices:
        state.pool.reserve(kernel.id, target, devices, turn.at)
    turn.launch(kernel, newcomer)


def requested(turn: Turn, event: MigrationRequested) -> None:
    """Move by hand, or say why not."""
    kernel = turn.state.kernels.get(event.kernel)
    if kernel is None:
        return
    reason, victim = _refuse_request(turn, kernel, event)
    target = event.target
    if reason is None and target is None:
        target = find_host(turn, kernel, victim)
        if target is None:
            reason = "no other host can take it"
    if reason is None and target is not None:
        begin(turn, kernel, MigrationReason.BY_HAND, victim=victim, target=target)
        return
    turn.say(MigrationEnded(kernel.id, event.replica, None, event.target, False, str(reason)))


def _refuse_request(
    turn: Turn, kernel: Kernel, event: MigrationRequested
) -> tuple[str | None, Replica | None]:
    if not turn.state.options.migrate:
        return "replicas cannot move in this cluster", None
    if (reason := _stands_still(kernel)) is not None:
        return reason, None
    victim = None
    if event.replica is not None:
        victim = kernel.replica(event.replica)
        if victim is None:
            return f"the kernel has no replica {event.replica}", None
        if victim.id == kernel.held_by:
            names = ", ".join(f"`{held.name}`" for held in kernel.held)
            return f"{names} cannot leave it", None
    else:
        victim = choose_victim(turn, kernel)
        if victim is None:
            return "its only replica has names that are nowhere else yet", None
    if event.target is not None:
        host = turn.state.hosts.get(event.target)
        if host is None:
            return f"there is no host {event.target}", None
        if event.target in kernel.members:
            return f"{event.target} has a replica of the kernel already", None
        ask = ask_to_move(turn, kernel, victim)
        against = refusal(host, ask)
        if against is not None:
            return against, None
    return None, victim


def _stands_still(kernel: Kernel) -> str | None:
    if not kernel.placed or kernel.storing:
        return "no replica of the kernel runs"
    if kernel.migration is not None:
        return "another replica of the kernel is moving"
    if kernel.majority_lost_at is not None:
        return "most of its members are lost, so it cannot get another one"
    return None


# ---- steps


def newcomer_started(turn: Turn, kernel: Kernel) -> None:
    """It has caught up."""
    migration = kernel.migration
    if migration is not None and migration.phase is MigrationPhase.STARTING:
        migration.phase = MigrationPhase.CAUGHT_UP
        go_on(turn, kernel)


def newcomer_lost(turn: Turn, kernel: Kernel, reason: str) -> None:
    """Before the members change that is the end of it; after, the answer decides."""
    migration = kernel.migration
    if migration is not None and migration.phase is not MigrationPhase.CHANGING:
        roll_back(turn, kernel, reason)


def go_on(turn: Turn, kernel: Kernel) -> None:
    """Change the members once the new replica has caught up and the old one is at rest."""
    migration = kernel.migration
    if migration is None or migration.phase is not MigrationPhase.CAUGHT_UP or kernel.going_on:
        return
    victim = kernel.replica(migration.victim) if migration.victim is not None else None
    if victim is not None and (
        kernel.election is not None
        or victim.state is EXECUTING
        or victim.id in (kernel.held_by, kernel.pending_on)
    ):
        return
    _change(turn, kernel, migration)


def _change(turn: Turn, kernel: Kernel, migration: Migration) -> None:
    members = [r.host for r in kernel.replicas if r.id != migration.victim]
    if migration.newcomer is not None:
        place = next(
            (n for n, r in enumerate(kernel.replicas) if r.id == migration.victim), len(members)
        )
        members.insert(place, migration.newcomer.host)
    migration.phase, migration.members = MigrationPhase.CHANGING, tuple(members)
    turn.state.recount.add(kernel.id)
    # A cell that waited for the victim waits for it no more.
    turn.state.dirty.add(kernel.id)
    turn.say(ChangeMembers(kernel=kernel.id, members=migration.members))


def members_changed(turn: Turn, event: MembersChanged) -> None:
    """Swap, or undo."""
    kernel = turn.state.kernels.get(event.kernel)
    migration = kernel.migration if kernel is not None else None
    if kernel is None or migration is None or migration.phase is not MigrationPhase.CHANGING:
        return
    if kernel.going_on:
        # What becomes of the group is decided elsewhere; if it stays, the change is asked for anew.
        return
    if event.members == migration.members:
        _swap(turn, kernel, migration)
    else:
        roll_back(turn, kernel, event.reason)
    if kernel.id in turn.state.to_resize:
        resize(turn, kernel)


def _swap(turn: Turn, kernel: Kernel, migration: Migration) -> None:
    state = turn.state
    victim = kernel.replica(migration.victim) if migration.victim is not None else None
    newcomer = migration.newcomer
    replicas = [r for r in kernel.replicas if r is not victim]
    if newcomer is not None:
        replicas.insert(migration.members.index(newcomer.host), newcomer)
    kernel.replicas, kernel.members = tuple(replicas), migration.members
    for host in kernel.lost_members.keys() - set(kernel.members):
        del kernel.lost_members[host]
    _end(turn, kernel)
    if newcomer is not None and newcomer.state is LOST and state.hosts[newcomer.host].ready:
        newcomer.relaunch_at = turn.at
        state.lost[newcomer.id] = newcomer
    if victim is not None:
        state.lost.pop(victim.id, None)
        turn.stop(kernel, victim)
        state.drop(victim)
        kernel.forget_names_of(victim.id)
        if kernel.last_executor == victim.id:
            kernel.last_executor = None
        _close_member(turn, kernel, victim.host)
    if newcomer is None or victim is None:
        state.promise_anew(kernel)
    # What waits for it begins in this turn, or its GPUs are free for others.
    turn.unreserve.add(kernel.id)
    _tell(turn, kernel, migration, moved=True, reason=migration.reason)


def roll_back(turn: Turn, kernel: Kernel, reason: str, *, avoid: bool = True) -> None:
    """Undo what was begun: the new replica ends, the old ones were never touched."""
    migration = kernel.migration
    if migration is None:
        return
    newcomer = migration.newcomer
    _end(turn, kernel)
    turn.state.pool.release(kernel.id, RESERVED)
    if newcomer is not None:
        turn.stop(kernel, newcomer)
        turn.state.drop(newcomer)
        turn.state.lost.pop(newcomer.id, None)
        _close_member(turn, kernel, newcomer.host)
        if avoid:
            kernel.avoid[newcomer.host] = turn.at + AVOID_S
    _tell(turn, kernel, migration, moved=False, reason=reason)


def _close_member(turn: Turn, kernel: Kernel, host: HostId) -> None:
    if not turn.state.hosts[host].ready:
        # The group forgets it now; its log goes when it is back.
        kernel.former.add(host)
    turn.say(CloseMember(kernel=kernel.id, host=host, members=kernel.members))


def cancel(turn: Turn, kernel: Kernel, cell: CellId | None, reason: str) -> None:
    """The cell that a move was for needs it no more: undo it while that is sure to be possible.

    Its devices are free at once. None for `cell` stands for any.
    """
    migration = kernel.migration
    if migration is None or migration.cell is None or cell not in (None, migration.cell):
        return
    if migration.phase is MigrationPhase.CHANGING:
        migration.cell = None
        turn.state.pool.release(kernel.id, RESERVED)
    else:
        roll_back(turn, kernel, reason, avoid=False)


def abandon(turn: Turn, kernel: Kernel, reason: str) -> Migration | None:
    """The group is left behind, and the move with it; whoever calls ends its replicas."""
    migration = kernel.migration
    if migration is not None:
        _end(turn, kernel)
        turn.state.pool.release(kernel.id, RESERVED)
        _tell(turn, kernel, migration, moved=False, reason=reason)
    return migration


def _end(turn: Turn, kernel: Kernel) -> None:
    kernel.migration = None
    turn.state.recount.add(kernel.id)
    turn.state.moving.pop(kernel.id, None)
    turn.state.dirty.add(kernel.id)


def _tell(turn: Turn, kernel: Kernel, migration: Migration, *, moved: bool, reason: str) -> None:
    newcomer: ReplicaId | None = migration.newcomer.id if migration.newcomer is not None else None
    turn.say(
        MigrationEnded(
            kernel=kernel.id,
            victim=migration.victim,
            newcomer=newcomer,
            target=migration.target,
            moved=moved,
            reason=reason,
        )
    )


# ---- another number of replicas


def resize(turn: Turn, kernel: Kernel) -> None:
    """Take the next step towards the number of replicas that the kernel should have."""
    state = turn.state
    if kernel.migration is not None or not kernel.placed or kernel.storing:
        return
    if kernel.majority_lost_at is not None:
        # Tried again at the next tick; nobody could take a replica in, or let one go.
        state.to_resize[kernel.id] = None
        return
    missing = kernel.next_replica_count - len(kernel.replicas)
    if missing == 0:
        state.to_resize.pop(kernel.id, None)
        return
    state.to_resize[kernel.id] = None
    if missing > 0:
        target = find_host(turn, kernel, None)
        if target is not None:
            begin(turn, kernel, MigrationReason.REPLICA_COUNT, victim=None, target=target)
        return
    victim = choose_victim(turn, kernel)
    if victim is None or victim.state is EXECUTING:
        return
    if sum(r.state in (IDLE, EXECUTING) for r in kernel.replicas if r is not victim) == 0:
        return
    kernel.migration = Migration(MigrationReason.REPLICA_COUNT, turn.at, victim.id, None)
    state.moving[kernel.id] = None
    _change(turn, kernel, kernel.migration)


# ---- emptying hosts


def empty_hosts(turn: Turn) -> None:
    """Begin moves off hosts that are being drained, as many as may run at once."""
    state = turn.state
    for host_id in list(state.draining):
        host = state.hosts.get(host_id)
        if host is None:
            continue
        for replica_id in sorted(host.replicas):
            if len(state.moving) >= state.options.moves_most:
                return
            found = state.find_replica(replica_id)
            if found is None or found[0].migration is not None or found[0].storing:
                continue
            kernel, replica = found
            if kernel.majority_lost_at is not None:
                continue
            if replica.id == kernel.held_by:
                continue
            target = find_host(turn, kernel, replica)
            if target is not None:
                begin(turn, kernel, MigrationReason.DRAIN, victim=replica, target=target)
