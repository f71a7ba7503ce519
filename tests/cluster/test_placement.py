"""Where things fit, and why not."""

from __future__ import annotations

import pytest
from builders import device, host_spec

from notebookos_ext.cluster.gpus import Binding, GpuPool
from notebookos_ext.cluster.hosts import Host, load_key
from notebookos_ext.cluster.model import (
    CellId,
    DeviceId,
    HostId,
    HostState,
    KernelId,
    KernelSpec,
    ReplicaId,
)
from notebookos_ext.cluster.placement import (
    Placement,
    ask_for,
    choose_devices,
    free_text,
    gpus_text,
    place_kernel,
)

A = HostId("a")


def host(name: str, replicas: int = 0, gpus: int = 2) -> Host:
    return Host(host_spec(name, gpus), replicas={ReplicaId(f"x{n}:1") for n in range(replicas)})


def spec(gpus: int = 0) -> KernelSpec:
    return KernelSpec(KernelId("k"), gpus_per_cell=gpus)


def place(hosts: list[Host], wanted: KernelSpec, count: int, limit: float = 0.0) -> Placement:
    return place_kernel(sorted(hosts, key=load_key), ask_for(wanted, count, limit), count)


def test_fewest_replicas_first_then_by_name() -> None:
    hosts = [host("host-10"), host("host-2"), host("host-1", replicas=1), host("host-3")]
    assert place(hosts, spec(), 3).hosts == ("host-2", "host-3", "host-10")


def test_hosts_that_could_serve_the_gpu_cells_first() -> None:
    hosts = [host("a", gpus=0), host("b", replicas=5, gpus=4), host("c", gpus=2)]
    assert place(hosts, spec(gpus=4), 2).hosts == ("b", "a")


def test_lost_hosts_are_refused_with_the_reason() -> None:
    gone = host("a")
    gone.state, gone.lost_reason = HostState.LOST, "its lease expired"
    placement = place([gone, host("b")], spec(), 2)
    assert placement.hosts == ("b",)
    assert placement.refused == {"a": "a is lost: its lease expired"}


@pytest.fixture
def pool() -> GpuPool:
    made = GpuPool()
    made.list_host(A, [device(f"g{n}", n) for n in range(4)])
    return made


def names(*numbers: int) -> tuple[DeviceId, ...]:
    return tuple(DeviceId(f"g{n}") for n in numbers)


def take(pool: GpuPool, *numbers: int) -> None:
    made = Binding(KernelId("other"), CellId("c"), 1, ReplicaId("other:1"), A, 0.0)
    pool.bind(names(*numbers), made)


def test_devices_lowest_index_first(pool: GpuPool) -> None:
    assert choose_devices(pool, A, 2) == names(0, 1)
    take(pool, 1)
    assert choose_devices(pool, A, 2) == names(0, 2)
    assert choose_devices(pool, A, 4) is None


def test_a_process_keeps_its_devices_if_it_can(pool: GpuPool) -> None:
    assert choose_devices(pool, A, 2, known=names(3, 2)) == names(3, 2)
    assert choose_devices(pool, A, 3, known=names(3, 2)) == names(0, 2, 3)
    assert choose_devices(pool, A, 1, known=names(3, 2)) == names(2)
    take(pool, 2)
    assert choose_devices(pool, A, 2, known=names(3, 2)) == names(0, 3)


def test_kept_devices_are_not_given_away(pool: GpuPool) -> None:
    assert choose_devices(pool, A, 2, without=set(names(0, 2))) == names(1, 3)
    assert choose_devices(pool, A, 3, without=set(names(0, 2))) is None
    assert choose_devices(pool, A, 2, known=names(0, 1), without=set(names(0))) == names(1, 2)


def test_words(pool: GpuPool) -> None:
    assert (gpus_text(1), gpus_text(2)) == ("1 GPU", "2 GPUs")
    assert free_text(pool, A, 4) == "a has 4 of 4 free"
    kept = set(names(1))
    assert free_text(pool, A, 4, kept) == "a has 4 of 4 free (1 kept for a cell that waits longer)"
