"""Bind, release, set aside: arithmetic over device ids."""

from __future__ import annotations

import pytest
from builders import device

from notebookos_ext.cluster.gpus import Binding, GpuPool
from notebookos_ext.cluster.model import CellId, DeviceId, HostId, KernelId, ReplicaId
from notebookos_ext.errors import Defect

A, B = HostId("a"), HostId("b")
G0, G1, G2 = DeviceId("g0"), DeviceId("g1"), DeviceId("g2")


def binding(attempt: int = 1, host: HostId = A) -> Binding:
    return Binding(KernelId("k"), CellId("c"), attempt, ReplicaId("k:1"), host, 5.0)


@pytest.fixture
def pool() -> GpuPool:
    """Host a lists g0 and g1; host b lists g1, too, and g2."""
    made = GpuPool()
    made.list_host(A, [device("g1", 1), device("g0", 0)])
    made.list_host(B, [device("g1", 0), device("g2", 1)])
    made.drain_touched()
    return made


def test_free_devices_come_by_index(pool: GpuPool) -> None:
    assert pool.free(A) == [G0, G1]
    assert pool.free(A, without={G0}) == [G1]
    assert pool.free(HostId("unknown")) == []


def test_bound_once_is_bound_for_all_who_list_it(pool: GpuPool) -> None:
    pool.bind((G1,), binding())
    assert (pool.free(A), pool.free(B)) == ([G0], [G2])
    assert pool.drain_touched() == {A, B}
    with pytest.raises(Defect, match="g1 on b is not free"):
        pool.bind((G1, G2), binding(2, B))
    assert pool.free(B) == [G2]
    assert pool.release(KernelId("k"), 1) == (G1,)
    assert pool.free(B) == [G1, G2]
    assert pool.problems() == []


def test_what_is_being_released_is_still_taken(pool: GpuPool) -> None:
    pool.bind((G0,), binding())
    assert not pool.bindings[G0].releasing
    pool.begin_release(KernelId("k"), 1, at=9.0)
    assert pool.bindings[G0].releasing
    assert pool.bindings[G0].releasing_since == 9.0
    assert pool.free(A) == [G1]


def test_the_same_release_twice_is_harmless(pool: GpuPool) -> None:
    pool.bind((G0,), binding())
    pool.release(KernelId("k"), 1)
    pool.bind((G0,), binding(2))
    assert pool.release(KernelId("k"), 1) == ()
    assert pool.free_count(A) == 1


def test_binding_nothing_leaves_no_trace(pool: GpuPool) -> None:
    pool.bind((), binding())
    assert pool.held_by(KernelId("k"), 1) == ()
    assert pool.problems() == []


def test_a_device_of_somebody_else_is_left_alone_for_a_while(pool: GpuPool) -> None:
    pool.set_aside([G1, DeviceId("unknown")], until=10.0)
    assert (pool.free(A), pool.free(B)) == ([G0], [G2])
    pool.end_aside(9.9)
    assert pool.free_count(A) == 1
    pool.end_aside(10.0)
    assert pool.free_count(A) == 2
    assert pool.aside == {}


def test_set_aside_while_bound_and_released_before_its_time(pool: GpuPool) -> None:
    pool.bind((G0,), binding())
    pool.set_aside([G0], until=10.0)
    pool.release(KernelId("k"), 1)
    assert pool.free(A) == [G1]
    pool.bind((G1,), binding(2))
    pool.end_aside(10.0)
    assert pool.free(A) == [G0]
    assert pool.problems() == []


def test_a_host_takes_its_bindings_with_it_but_not_its_neighbours_devices(pool: GpuPool) -> None:
    pool.bind((G0, G1), binding())
    pool.bind((G2,), binding(2, B))
    pool.unlist_host(A)
    assert set(pool.bindings) == {G2}
    assert pool.free(B) == [G1]
    assert pool.devices(A) == ()
    assert pool.hosts_of(G1) == {B}
    assert pool.hosts_of(G0) == frozenset()
    assert pool.problems() == []


def test_problems_are_found(pool: GpuPool) -> None:
    pool.bind((G0,), binding())
    pool._free[A].add(G0)
    assert pool.problems() == [
        "g0 is counted wrongly among the free of a",
        "hosts are counted under a wrong number of free devices",
    ]
