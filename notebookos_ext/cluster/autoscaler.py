"""How many hosts there should be, and which of them go.

A rule says how many are *wanted* now. More than there are: hosts that are being emptied stay after
all, the rest is asked for. Fewer: what the rule wanted at any time within the last `keep_s` seconds
stays, and so does whatever was asked for within that time; of the others a few at a time are
emptied, by moving their replicas, and given back. So between asking for a host and giving one back
lie at least `keep_s` seconds, whatever the load does: flapping is impossible by construction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from notebookos_ext.cluster.actions import RequestHosts
from notebookos_ext.cluster.events import HostsUnavailable
from notebookos_ext.cluster.hosts import Host, host_order
from notebookos_ext.cluster.options import AutoscalerOptions, ScalingRule
from notebookos_ext.cluster.replicas import Kernel
from notebookos_ext.cluster.state import ClusterState
from notebookos_ext.cluster.turn import Turn

UNAVAILABLE_S = 60.0
"""How long no host is asked for after the backend had none."""
STUCK_BOOTS = 2.0
"""A cell that has waited so many times as long as a host takes to come gets one of its own."""
MARGIN_S = 30.0
"""A host that has booted needs replicas before it is of use."""


class Demand:
    """GPUs by the sizes of cells: what runs or waits, and what is likely to come."""

    def __init__(self, gpus_per_host: int) -> None:
        self.gpus_per_host = gpus_per_host
        self.whole = 0
        """Cells that leave no useful rest of a host: more than half of its GPUs."""
        self.small_gpus = 0
        self._likely: dict[bool, tuple[float, float]] = {True: (0.0, 0.0), False: (0.0, 0.0)}

    def add(self, gpus: int) -> None:
        """A cell that runs or waits."""
        if 2 * gpus > self.gpus_per_host:
            self.whole += math.ceil(gpus / self.gpus_per_host)
        else:
            self.small_gpus += gpus

    def expect(self, gpus: int, chance: float) -> None:
        """A cell that may come."""
        whole = 2 * gpus > self.gpus_per_host
        size = 1 if whole else gpus
        mean, variance = self._likely[whole]
        self._likely[whole] = (
            mean + chance * size,
            variance + chance * (1 - chance) * size * size,
        )

    def hosts(self, spread: float) -> int:
        """Hosts for all, with what may come at `spread` standard deviations above its mean."""
        (whole_mean, whole_variance), (small_mean, small_variance) = (
            self._likely[True],
            self._likely[False],
        )
        whole = self.whole + whole_mean + spread * math.sqrt(whole_variance)
        small = self.small_gpus + small_mean + spread * math.sqrt(small_variance)
        return math.ceil(whole + small / self.gpus_per_host - 1e-9)


# ---- rules


def by_committed(state: ClusterState, options: AutoscalerOptions, _at: float) -> int:
    """The original's: a factor over the bound GPUs, and no fewer than some above the least."""
    load = len(state.pool.bindings)
    hosts = math.ceil(load * options.factor / _gpus_per_host(state, options))
    return max(hosts, options.least_hosts + options.buffer_hosts, _most_replicas(state))


def by_demand(state: ClusterState, options: AutoscalerOptions, at: float) -> int:
    """What waits, and what is likely to run when a host that is asked for now could be of use: of
    what runs now, and of what kernels begin that were active lately.
    """
    demand = Demand(_gpus_per_host(state, options))
    horizon_s = options.boot_s + MARGIN_S
    rests, runs = state.scaling.rests, state.scaling.runs
    chances: dict[int, float] = {}
    still_runs = runs.longer_than(horizon_s / 2)
    for kernel_id in reversed(state.active):
        kernel = state.kernels[kernel_id]
        rested_s = at - kernel.gpus_active_at
        if kernel.attempt is not None and kernel.attempt.cell.gpus:
            held_s = at - kernel.attempt.since
            demand.expect(kernel.attempt.cell.gpus, 1.0 - runs.ends_within(held_s, horizon_s))
        elif kernel.waiting and kernel.waiting[0].cell.gpus:
            demand.add(kernel.waiting[0].cell.gpus)
        elif rested_s <= options.active_s:
            # Rests that differ by an eighth are as good as equal.
            about = int(math.log2(1.0 + rested_s) * 6)
            if about not in chances:
                chances[about] = rests.ends_within(rested_s, horizon_s) * still_runs
            demand.expect(kernel.gpus_active, chances[about])
    wanted = max(demand.hosts(options.spread), options.least_hosts, _most_replicas(state))
    stuck = _stuck(state, options, at)
    return max(wanted, len(state.by_load) + stuck) if stuck else wanted


def _stuck(state: ClusterState, options: AutoscalerOptions, at: float) -> int:
    """Hosts for cells that have waited for longer than one takes to come.

    There may be GPUs enough, but a few on each host: a cell that needs a whole one would wait for
    the longest of many small cells, however few those are (hours, in a run of ninety days).
    """
    if not state.options.migrate:
        return 0
    stuck: list[int] = []
    for kernel_id in state.active:
        kernel = state.kernels[kernel_id]
        waiting = kernel.waiting[0] if kernel.waiting else None
        if (
            waiting is not None
            and waiting.for_gpus
            and at - waiting.since >= STUCK_BOOTS * options.boot_s
            and kernel.migration is None
            and kernel.held_by is None
            and waiting.cell.replica_number is None
        ):
            stuck.append(waiting.cell.gpus)
    if not stuck:
        return 0
    # What does not go where there is room would go to no other host of the kind either.
    most_free = max((state.pool.free_count(host.id) for host in state.by_load), default=0)
    demand = Demand(_gpus_per_host(state, options))
    for gpus in stuck:
        if gpus > most_free:
            demand.add(gpus)
    return demand.hosts(0.0)


def by_reserved(state: ClusterState, options: AutoscalerOptions, _at: float) -> int:
    """The hosts that carry something, and those that waiting kernels need besides."""
    free: list[int] = []
    used = 0
    for host in state.hosts.values():
        if host.ready and host.replicas:
            used += 1
            free.append(state.pool.free_count(host.id))
    for kernel_id in state.without_hosts:
        gpus = state.kernels[kernel_id].gpus_per_cell
        place = next((n for n, count in enumerate(free) if count >= gpus), None)
        if place is None:
            used += 1
            free.append(max(0, _gpus_per_host(state, options) - gpus))
        else:
            free[place] -= gpus
    return max(used, options.least_hosts)


RULES: dict[ScalingRule, Callable[[ClusterState, AutoscalerOptions, float], int]] = {
    ScalingRule.COMMITTED: by_committed,
    ScalingRule.DEMAND: by_demand,
    ScalingRule.RESERVED: by_reserved,
}


def _gpus_per_host(state: ClusterState, options: AutoscalerOptions) -> int:
    return options.gpus_per_host or max(1, state.most_gpus)


def _most_replicas(state: ClusterState) -> int:
    """The replicas of one kernel are on as many hosts; one that is too few cannot be emptied."""
    placed = max((len(kernel.replicas) for kernel in state.kernels.values()), default=0)
    waiting: Iterable[Kernel] = (state.kernels[kernel] for kernel in state.without_hosts)
    return max(placed, max((kernel.next_replica_count for kernel in waiting), default=0))


def _wanted(state: ClusterState, options: AutoscalerOptions, at: float) -> int:
    if state.pool.is_shared:
        # One more host of the same machine would bring no GPU.
        return max(options.least_hosts, _most_replicas(state))
    return max(RULES[options.rule](state, options, at), _for_promises(state, options))


def _for_promises(state: ClusterState, options: AutoscalerOptions) -> int:
    """Hosts for what may be promised to kernels under a subscription limit; 0 without one.

    A rule that looks at cells sees nothing of a kernel that waits for hosts.
    """
    limit = state.options.subscription_limit
    if not limit:
        return 0
    promised, crowded = 0, False
    usable = len(state.by_load)
    for kernel in state.kernels.values():
        if kernel.replicas:
            promised += kernel.gpus_per_cell
        elif kernel.id in state.without_hosts:
            promised += kernel.gpus_per_cell
            crowded = crowded or kernel.next_replica_count <= usable
    hosts = math.ceil(promised / (limit * _gpus_per_host(state, options)))
    # There is room for it in all, but not on enough hosts.
    return max(hosts, usable + 1) if crowded else hosts


# ---- steps


def look(turn: Turn) -> None:
    """Ask for hosts or begin to empty some, if it is time to."""
    state = turn.state
    options = state.options.autoscaler
    if options is None:
        return
    scaling = state.scaling
    pressed = state.queue.in_need or bool(state.without_hosts)
    if turn.at - scaling.looked_at < (1.0 if pressed else options.interval_s):
        return
    scaling.looked_at = turn.at
    wanted = min(_wanted(state, options, turn.at), state.max_hosts)
    scaling.want(wanted, turn.at)
    there = [host for host in state.hosts.values() if host.ready and not host.releasing]
    staying = [host for host in there if not host.draining]
    if wanted > len(staying):
        _grow(turn, options, wanted, there, staying)
    elif state.options.migrate or _stays_empty(state, options):
        _shrink(turn, options, there, staying)


def _grow(
    turn: Turn, options: AutoscalerOptions, wanted: int, there: list[Host], staying: list[Host]
) -> None:
    state, scaling = turn.state, turn.state.scaling
    missing = wanted - len(staying)
    for host in sorted(there, key=lambda host: -len(host.replicas)):
        if missing and host.surplus:
            host.draining = host.release = host.surplus = False
            state.draining.pop(host.id, None)
            state.by_load.note(host)
            missing -= 1
    if not missing or turn.at < scaling.unavailable_until:
        return
    booting = turn.at - scaling.asked_at < 2 * options.boot_s and wanted <= scaling.asked_for
    if booting:
        return
    scaling.asked_at, scaling.asked_for = turn.at, wanted
    # The backend counts those too that are lost for now or on their way out.
    others = sum(1 for h in state.hosts.values() if not h.removed and not (h.ready and h.usable))
    turn.say(
        RequestHosts(
            count=min(wanted + others, state.max_hosts),
            reason=f"{wanted} hosts are wanted and {len(staying)} are there",
        )
    )


def _stays_empty(state: ClusterState, options: AutoscalerOptions) -> bool:
    """Whether hosts become empty by themselves: nothing moves, but only what is empty may go."""
    return options.rule is ScalingRule.RESERVED or state.stores_after_cells


def _shrink(turn: Turn, options: AutoscalerOptions, there: list[Host], staying: list[Host]) -> None:
    state, scaling = turn.state, turn.state.scaling
    since = turn.at - options.keep_s
    if scaling.asked_at > since:
        return
    surplus = len(staying) - max(scaling.wanted_since(since), options.least_hosts)
    surplus = min(surplus, options.release_most - (len(there) - len(staying)))
    if surplus <= 0:
        return
    idle = [
        host
        for host in staying
        if not state.pool.bound_on(host.id) and turn.at - host.joined_at >= options.keep_s
    ]
    if _stays_empty(state, options):
        idle = [host for host in idle if not host.replicas]
    idle.sort(key=lambda host: (len(host.replicas), host_order(host.id)))
    for host in idle[:surplus]:
        host.draining = host.release = host.surplus = True
        state.draining[host.id] = None
        state.by_load.note(host)


def unavailable(turn: Turn, event: HostsUnavailable) -> None:
    """The backend has no more: do not ask again at once, and tell whoever waits."""
    scaling = turn.state.scaling
    scaling.unavailable_until = turn.at + UNAVAILABLE_S
    if scaling.unavailable_reason != event.reason:
        scaling.unavailable_reason = event.reason
        turn.look_at_all = True
