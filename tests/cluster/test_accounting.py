"""What is written down of cells and kernels, from a real scheduler's events and actions."""

from __future__ import annotations

from typing import TypeVar

import pytest
from builders import Cluster

from notebookos_ext.cluster import actions as a
from notebookos_ext.cluster import events as e
from notebookos_ext.cluster.accounting import NOTE_S, CellUsage, KernelUsage, Meter, Usage
from notebookos_ext.cluster.model import Outcome

U = TypeVar("U")


class Metered(Cluster):
    """A scheduler with a meter."""

    def __init__(self, hosts: int = 3, gpus: int = 2) -> None:
        self.meter = Meter()
        self.records: list[Usage] = []
        super().__init__(hosts, gpus)

    def do(self, event: e.Event) -> list[a.Action]:
        actions = super().do(event)
        self.records += self.meter.observe(event, actions)
        return actions

    def last(self, kind: type[U]) -> U:
        return [record for record in self.records if isinstance(record, kind)][-1]


@pytest.fixture
def cluster() -> Metered:
    return Metered()


def test_a_gpu_cell_is_bound_from_its_start_to_its_release(cluster: Metered) -> None:
    cluster.kernel(gpus_per_cell=2)
    cluster.now = 10.0
    cluster.submit("c", 2)
    cluster.now = 11.0
    cluster.started("c")
    cluster.now = 20.0
    cluster.closed("c")
    assert cluster.last(CellUsage).released_at is None
    cluster.now = 22.0
    cluster.released("c")
    found = cluster.last(CellUsage)
    assert (found.gpus, found.outcome) == (2, Outcome.DONE)
    assert (found.submitted_at, found.bound_at, found.started_at) == (10.0, 10.0, 11.0)
    assert (found.ended_at, found.released_at) == (20.0, 22.0)


def test_records_say_whose_kernel_it_is(cluster: Metered) -> None:
    cluster.start_all(cluster.request("a", 1, user="ada"))
    cluster.submit("c", 1, kernel="a")
    cluster.started("c", kernel="a")
    cluster.closed("c", kernel="a")
    assert cluster.last(CellUsage).user == "ada"
    assert [record.user for record in cluster.meter.finish(100.0)] == ["ada"]


def test_the_wait_begins_with_the_submission_and_the_binding_with_the_attempt(
    cluster: Metered,
) -> None:
    cluster.kernel("a", gpus_per_cell=2)
    for name in ("b", "c", "d"):
        cluster.kernel(name, gpus_per_cell=2)
        cluster.run(f"of {name}", 2, kernel=name)
    cluster.now = 5.0
    cluster.submit("waits", 2, kernel="a")
    cluster.now = 9.0
    cluster.finish("of b", kernel="b")
    cluster.started("waits", kernel="a")
    cluster.finish("waits", kernel="a")
    found = cluster.last(CellUsage)
    assert (found.cell, found.submitted_at, found.bound_at) == ("waits", 5.0, 9.0)


def test_an_attempt_that_was_refused_takes_nothing(cluster: Metered) -> None:
    cluster.kernel(gpus_per_cell=1)
    cluster.submit("c", 1)
    cluster.now = 3.0
    cluster.refused("c", reason="the replica lags")
    cluster.started("c")
    cluster.now = 4.0
    cluster.finish("c")
    found = cluster.last(CellUsage)
    assert (found.bound_at, found.started_at, found.attempt) == (3.0, 3.0, 2)


def test_a_cell_without_gpus_is_written_once_and_whole(cluster: Metered) -> None:
    cluster.kernel()
    cluster.run("c")
    cluster.now = 7.0
    cluster.finish("c")
    (found,) = [record for record in cluster.records if isinstance(record, CellUsage)]
    assert (found.gpus, found.released_at) == (0, 7.0)


def test_a_cell_that_never_began_is_not_written(cluster: Metered) -> None:
    cluster.kernel()
    cluster.submit("impossible", 99)
    cluster.run("first")
    cluster.submit("second")
    cluster.cancel("second")
    cluster.finish("first")
    cells = {record.cell for record in cluster.records if isinstance(record, CellUsage)}
    assert cells == {"first"}


def test_a_lost_cell_counts_up_to_its_loss(cluster: Metered) -> None:
    cluster.kernel(gpus_per_cell=1)
    start = cluster.run("c", 1)
    cluster.now = 6.0
    cluster.lose_host(start.host)
    cluster.closed("c", Outcome.LOST)
    found = cluster.last(CellUsage)
    assert (found.ended_at, found.outcome) == (6.0, Outcome.LOST)


def test_other_gpus_per_cell_begin_a_new_stretch_of_the_kernel(cluster: Metered) -> None:
    cluster.kernel(gpus_per_cell=1)
    cluster.now = 100.0
    cluster.settings(gpus=2)
    cluster.settings(gpus=2)
    cluster.now = 250.0
    cluster.stop()
    stretches = [(r.gpus, r.since, r.until) for r in cluster.records if isinstance(r, KernelUsage)]
    assert stretches == [(1, 0.0, 100.0), (2, 100.0, 250.0)]


def test_a_kernel_that_lives_is_written_down_once_a_minute(cluster: Metered) -> None:
    cluster.kernel()
    cluster.tick(1.0)
    cluster.tick(NOTE_S / 2)
    cluster.tick(NOTE_S / 2)
    notes = [record.until for record in cluster.records if isinstance(record, KernelUsage)]
    assert notes == [1.0, 1.0 + NOTE_S]


def test_a_kernel_that_is_revived_counts_from_then_on(cluster: Metered) -> None:
    cluster.now = 50.0
    cluster.revive("k", ["host-1", "host-2", "host-3"])
    cluster.now = 80.0
    cluster.stop()
    found = cluster.last(KernelUsage)
    assert (found.since, found.until) == (50.0, 80.0)


def test_what_lives_when_its_server_ends_counts_up_to_then(cluster: Metered) -> None:
    cluster.kernel("k")
    cluster.kernel("stopped")
    cluster.stop("stopped")
    assert [
        (r.kernel, r.until) for r in cluster.meter.finish(9.0) if isinstance(r, KernelUsage)
    ] == [("k", 9.0)]


def test_a_rejected_kernel_leaves_no_record(cluster: Metered) -> None:
    cluster.request("k", replicas=9)
    cluster.tick(NOTE_S)
    assert cluster.records == []
