"""How much longer a cell is likely to wait, said only when there is something to judge it by.

Each attempt that holds GPUs of a host is taken to hold them for as long as half of all cells that
ran for as long as it has went on. The estimate is when enough of these have ended for the cell and
for those before it in the same line.
"""

from __future__ import annotations

import math

from notebookos_ext.cluster.model import HostId, KernelId
from notebookos_ext.cluster.queueing import WaitingCell
from notebookos_ext.cluster.state import ClusterState

LEAST_RUNS = 20
"""So many cells must have run before anything is estimated."""
HOSTS_MOST = 8
"""How many hosts are looked at."""


def estimate_ms(state: ClusterState, waiting: WaitingCell, at: float) -> int | None:
    """In whole seconds, as milliseconds; None when nothing can be said."""
    if not waiting.for_gpus or state.scaling.runs.own < LEAST_RUNS:
        return None
    found = [
        after_s
        for host in waiting.hosts[:HOSTS_MOST]
        if (after_s := _on_host(state, waiting, host, at)) is not None
    ]
    return math.ceil(min(found)) * 1000 if found else None


def _on_host(state: ClusterState, waiting: WaitingCell, host: HostId, at: float) -> float | None:
    before = sum(
        other.cell.gpus for other in state.queue.in_line((host,)) if other.rank < waiting.rank
    )
    missing = waiting.cell.gpus + before - state.pool.free_count(host)
    if missing <= 0:
        return 0.0
    holders: dict[tuple[KernelId, int], int] = {}
    since: dict[tuple[KernelId, int], float] = {}
    for spec in state.pool.devices(host):
        binding = state.pool.bindings.get(spec.device)
        if binding is not None and not binding.reserved:
            key = binding.kernel, binding.attempt
            holders[key] = holders.get(key, 0) + 1
            since[key] = at if binding.releasing else binding.since
    runs = state.scaling.runs
    rests = sorted((runs.half_of_rest_s(at - since[key]), gpus) for key, gpus in holders.items())
    for rest_s, gpus in rests:
        missing -= gpus
        if missing <= 0:
            return rest_s
    return None
