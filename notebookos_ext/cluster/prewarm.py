"""The pool of pre-warmed replicas: how many each host should have, and when it is filled up."""

from __future__ import annotations

import math

from notebookos_ext.cluster.actions import StartPrewarmed, StopPrewarmed
from notebookos_ext.cluster.events import PrewarmedLost, PrewarmedStarted
from notebookos_ext.cluster.hosts import Host
from notebookos_ext.cluster.model import HostId
from notebookos_ext.cluster.options import PrewarmOptions, PrewarmRule
from notebookos_ext.cluster.turn import Turn

SHRINKING = (PrewarmRule.FIXED, PrewarmRule.LITTLES_LAW)
RETRY_S = 10.0
"""A host whose pre-warmed replica could not be started is left alone for this long."""


def target(options: PrewarmOptions, hosts: int, launches_per_minute: float) -> int:
    """Ready replicas that each host should have."""
    if options.rule is PrewarmRule.LITTLES_LAW:
        # As many as are asked for while one starts (L = λ·W), spread over the hosts.
        needed = math.ceil(launches_per_minute / 60.0 * options.start_s)
        wanted = math.ceil(needed / hosts) if hosts else 0
        return min(max(wanted, options.per_host), options.most_per_host)
    return min(options.per_host, options.most_per_host)


def fill(turn: Turn) -> None:
    """Start what is missing on hosts whose pool has changed; stop what is too many."""
    state = turn.state
    options = state.options.prewarm
    if options is None:
        state.prewarmed_changed.clear()
        return
    law = options.rule is PrewarmRule.LITTLES_LAW
    if law and turn.at - state.launches.looked_at >= RETRY_S:
        state.launches.looked_at = turn.at
        state.prewarmed_changed.update(host.id for host in state.by_load)
    if not state.prewarmed_changed:
        return
    rate = state.launches.per_minute(turn.at) if law else 0.0
    wanted = target(options, len(state.by_load), rate)
    changed, state.prewarmed_changed = state.prewarmed_changed, set()
    for host_id in sorted(changed):
        host = state.hosts.get(host_id)
        if host is not None and host.ready:
            _fill_host(turn, host, options, 0 if host.draining else wanted)


def _fill_host(turn: Turn, host: Host, options: PrewarmOptions, wanted: int) -> None:
    there = host.prewarmed + host.prewarming
    if there < wanted and turn.at < host.prewarm_again_at:
        turn.state.prewarmed_changed.add(host.id)
    elif there < wanted and (options.refill or not host.filled):
        host.filled = True
        host.prewarming += wanted - there
        turn.say(StartPrewarmed(host=host.id, count=wanted - there))
    elif there > wanted and host.prewarmed and (host.draining or options.rule in SHRINKING):
        count = min(there - wanted, host.prewarmed)
        host.prewarmed -= count
        turn.say(StopPrewarmed(host=host.id, count=count))


def started(turn: Turn, event: PrewarmedStarted) -> None:
    """One more is ready."""
    host = _host(turn, event.host, event.incarnation)
    if host is not None and host.prewarming > 0:
        host.prewarming -= 1
        host.prewarmed += 1
        turn.state.prewarmed_changed.add(host.id)


def lost(turn: Turn, event: PrewarmedLost) -> None:
    """One less; it is made up for after a while."""
    host = _host(turn, event.host, event.incarnation)
    if host is None:
        return
    if event.ready and host.prewarmed > 0:
        host.prewarmed -= 1
    elif not event.ready and host.prewarming > 0:
        host.prewarming -= 1
    host.prewarm_again_at = turn.at + RETRY_S
    turn.state.prewarmed_changed.add(host.id)


def _host(turn: Turn, host_id: HostId, incarnation: str) -> Host | None:
    host = turn.state.hosts.get(host_id)
    if host is None or not host.ready or host.spec.incarnation != incarnation:
        return None
    return host
