"""Random loads on a cluster whose hosts come and go: it must not flap, nor strand anything."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count

import pytest
from builders import Cluster

from notebookos_ext.cluster import actions as a
from notebookos_ext.cluster.model import KernelId
from notebookos_ext.cluster.options import AutoscalerOptions, Options, ScalingRule

KEEP_S, LEAST, MOST, BOOT_S = 300.0, 3, 9, 100.0
HOUR_S = 3600.0


class Load:
    """A cluster under a load that rises and falls, and whoever answers its scheduler."""

    def __init__(self, seed: int, rule: ScalingRule, policy: str = "replicated") -> None:
        self.rng = random.Random(seed)
        scaler = AutoscalerOptions(
            rule=rule, least_hosts=LEAST, gpus_per_host=4, boot_s=BOOT_S, keep_s=KEEP_S
        )
        options = Options(migrate=True, rebalance=True, autoscaler=scaler)
        self.cluster = Cluster(0, max_hosts=MOST, policy=policy, options=options)
        self.agenda: list[tuple[float, int, Callable[[], object]]] = []
        self.number = count(1)
        self.hosts = 0
        self.asked_at: list[float] = []
        self.given_back_at: list[float] = []
        self.unfinished: set[str] = set()
        self.busy: set[str] = set()

    def after(self, seconds: float, what: Callable[[], object]) -> None:
        heapq.heappush(self.agenda, (self.cluster.now + seconds, next(self.number), what))

    def tell(self, actions: list[a.Action]) -> None:
        for action in actions:
            self.answer(action)

    def answer(self, action: a.Action) -> None:
        cluster = self.cluster
        match action:
            case a.RequestHosts():
                self.asked_at.append(cluster.now)
                for _ in range(action.count - self.hosts):
                    self.hosts += 1
                    name = f"host-{next(self.number)}"
                    self.after(BOOT_S, lambda name=name: self.tell(cluster.join(name, 4)))
            case a.ReleaseHost():
                self.given_back_at.append(cluster.now)
                self.hosts -= 1
                self.after(5.0, lambda: self.tell(cluster.remove_host(action.host)))
            case a.StartReplica():
                self.after(8.0, lambda: self.replica_starts(action))
            case a.ChangeMembers():
                self.after(0.5, lambda: self.tell(cluster.members_changed(action.kernel)))
            case a.StartAttempt():
                self.after(0.1, lambda: self.runs(action))
            case a.ReleaseGpus():
                self.after(1.0, lambda: self.tell(self.released(action)))
            case a.CellRejected() | a.CellAborted():
                raise AssertionError(action)

    def replica_starts(self, action: a.StartReplica) -> None:
        found = self.cluster.scheduler.state.find_replica(action.replica)
        if found is not None and found[1].state == "starting":
            self.tell(self.cluster.replica_started(action.replica))

    def runs(self, action: a.StartAttempt) -> None:
        self.tell(self.cluster.started(action.cell, kernel=action.kernel))
        self.after(self.rng.expovariate(1 / 150), lambda: self.ends(action))

    def ends(self, action: a.StartAttempt) -> None:
        self.unfinished.discard(action.cell)
        self.busy.discard(action.kernel)
        self.tell(self.cluster.closed(action.cell, kernel=action.kernel, attempt=action.attempt))

    def released(self, action: a.ReleaseGpus) -> list[a.Action]:
        return self.cluster.released(action.cell, kernel=action.kernel, attempt=action.attempt)

    def submit(self, kernel: str, gpus: int) -> None:
        if kernel not in self.busy:
            self.busy.add(kernel)
            cell = f"c{next(self.number)}"
            self.unfinished.add(cell)
            self.tell(self.cluster.submit(cell, gpus, kernel=kernel))

    def run(self, until: float) -> None:
        while self.agenda and self.agenda[0][0] <= until:
            self.cluster.now, _, what = heapq.heappop(self.agenda)
            what()
        self.cluster.now = until


def a_day(seed: int, rule: ScalingRule, policy: str = "replicated") -> Load:
    load = Load(seed, rule, policy)
    rng, cluster = load.rng, load.cluster
    for number in range(LEAST):
        load.hosts += 1
        load.tell(cluster.join(f"host-first-{number}", 4))
    for number in range(12):
        gpus = rng.choice([1, 1, 1, 2, 4])
        load.tell(cluster.request(f"k{number}", 3, gpus_per_cell=gpus))
    at = 0.0
    while at < 4 * HOUR_S:
        at += 5.0
        load.run(at)
        crowd = (at // 1500) % 2 == seed % 2
        if rng.random() < (0.35 if crowd else 0.01):
            kernel = f"k{rng.randrange(12)}"
            load.submit(kernel, cluster.scheduler.state.kernels[KernelId(kernel)].gpus_per_cell)
        load.tell(cluster.tick(0.0))
    while load.unfinished and at < 8 * HOUR_S:
        at += 5.0
        load.run(at)
        load.tell(cluster.tick(0.0))
    return load


@pytest.mark.parametrize("rule", [ScalingRule.DEMAND, ScalingRule.COMMITTED])
@pytest.mark.parametrize("seed", range(4))
def test_hosts_do_not_flap_and_every_cell_ends(seed: int, rule: ScalingRule) -> None:
    load = a_day(seed, rule)
    assert not load.unfinished, "cells that never ended"
    for given_back in load.given_back_at:
        lately = [asked for asked in load.asked_at if given_back - KEEP_S < asked <= given_back]
        assert not lately, f"asked for hosts at {lately}, gave one back at {given_back}"
    ready = [host for host in load.cluster.scheduler.view.ready_hosts if not host.releasing]
    assert LEAST <= len(ready) <= MOST


def test_hosts_come_with_the_load_and_go_after_it() -> None:
    """So the property above says something: there was something to flap with."""
    days = [a_day(seed, ScalingRule.DEMAND) for seed in range(2)]
    assert all(day.asked_at and day.given_back_at for day in days)
