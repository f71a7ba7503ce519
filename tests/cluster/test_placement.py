"""Where things fit, and why not."""

from __future__ import annotations

import random

import msgspec
import pytest
from builders import device, host_spec

from notebookos_ext.cluster.gpus import Binding, GpuPool
from notebookos_ext.cluster.hosts import Host, HostsByLoad, load_key
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
    find_target,
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


# ---- what hosts have, and what kernels ask for

GIB = 1024**3


def rich(name: str, **fields: object) -> Host:
    return Host(msgspec.structs.replace(host_spec(name, 4), **fields))


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"gpu_type": "H200"}, "a has A100, not H200"),
        ({"labels": ("ssd", "big")}, "a is not labelled big"),
        ({"gpu_memory_bytes": 80 * GIB}, "a has GPUs with less than 80 GiB"),
        ({"millicpus": 9_000}, "a has fewer than 9 cores"),
        ({"memory_bytes": 65 * GIB}, "a has less than 65 GiB of memory"),
    ],
)
def test_hosts_that_lack_something_are_refused_with_the_reason(
    wanted: dict[str, object], reason: str
) -> None:
    poor = rich("a", gpu_type="A100", labels=("ssd",), millicpus=8_000, memory_bytes=64 * GIB)
    fine = rich("b", gpu_type="H200", labels=("big", "ssd"))
    devices = tuple(msgspec.structs.replace(d, memory_bytes=141 * GIB) for d in fine.spec.devices)
    fine.spec = msgspec.structs.replace(fine.spec, devices=devices)
    asked = msgspec.structs.replace(spec(), **wanted)
    placement = place([poor, fine], asked, 2)
    assert placement.hosts == ("b",)
    assert placement.refused == {"a": reason}


def test_nothing_new_goes_to_a_host_that_is_being_emptied() -> None:
    leaving = host("a")
    leaving.draining = True
    assert place([leaving, host("b")], spec(), 2).refused == {"a": "a is being drained"}


def test_gpus_cores_and_memory_are_promised_only_so_often() -> None:
    """Three replicas promise a third each: two GPUs carry six kernels of two GPUs at ratio 2."""
    here = rich("a", devices=host_spec("a", 2).devices, millicpus=2_000)
    two = spec(2)
    share = ask_for(two, 3).share
    for number in range(6):
        assert place_kernel([here], ask_for(two, 3, 2.0), 1).hosts == ("a",)
        here.add(ReplicaId(f"x{number}:1"), share)
    assert here.gpu_load == 2.0
    refused = place_kernel([here], ask_for(two, 3, 2.0), 1).refused
    assert refused == {"a": "the GPUs of a would be promised 2.3 times, more than 2"}
    assert place_kernel([here], ask_for(spec(), 3, 2.0), 1).hosts == ("a",)
    cores = msgspec.structs.replace(spec(), millicpus=8_000)
    assert "fewer than 8 cores" in place_kernel([here], ask_for(cores, 3, 2.0), 1).refused["a"]
    some = msgspec.structs.replace(spec(), millicpus=2_000)
    for number in range(6):
        here.add(ReplicaId(f"y{number}:1"), ask_for(some, 3).share)
    refused = place_kernel([here], ask_for(some, 3, 2.0), 1).refused
    assert refused == {"a": "the cores of a would be promised 2.3 times, more than 2"}


def test_replicas_spread_over_failure_domains() -> None:
    hosts = [
        rich("a", failure_domain="rack-1"),
        rich("b", failure_domain="rack-1"),
        rich("c", failure_domain="rack-2"),
        rich("d"),
    ]
    assert place(hosts, spec(), 3).hosts == ("a", "c", "d")
    assert place(hosts[:2], spec(), 2).hosts == ("a", "b"), "better together than not at all"


def test_prewarmed_hosts_come_first_among_equals() -> None:
    hosts = [host("a"), host("b")]
    hosts[1].prewarmed = 1
    assert place(hosts, spec(), 1).hosts == ("b",)
    hosts[1].add(ReplicaId("x:1"), ask_for(spec(2), 1).share)
    assert place(hosts, spec(), 1).hosts == ("a",)


# ---- where a cell could begin


def many(**gpus: int) -> tuple[GpuPool, dict[HostId, Host]]:
    """Hosts of eight GPUs with so many free."""
    pool, hosts = GpuPool(), {}
    for name, free in gpus.items():
        made = host(name, gpus=8)
        hosts[made.id] = made
        pool.list_host(made.id, made.spec.devices)
        taken = tuple(d.device for d in made.spec.devices[free:])
        kernel = KernelId(f"of-{name}")
        pool.bind(taken, Binding(kernel, CellId("c"), 1, ReplicaId(f"{kernel}:1"), made.id, 0.0))
    return pool, hosts


def test_small_cells_leave_whole_hosts_free() -> None:
    pool, hosts = many(a=8, b=3, c=1, d=8)
    small = ask_for(spec(2), 3)
    assert find_target(pool, hosts, small, 2) == "b"
    assert find_target(pool, hosts, small, 1) == "c"
    assert find_target(pool, hosts, small, 4) == "a"
    kept = set(pool.free(HostId("b")))
    assert find_target(pool, hosts, small, 2, kept) == "a"
    without = msgspec.structs.replace(small, without=(HostId("a"), HostId("b")))
    assert find_target(pool, hosts, without, 2) == "d"
    assert find_target(pool, hosts, small, 9) is None


def test_the_index_by_load_is_in_order_whatever_changes() -> None:
    rng = random.Random(1)
    index, hosts = HostsByLoad(), [host(f"host-{n}") for n in range(20)]
    for step in range(500):
        one = rng.choice(hosts)
        if rng.random() < 0.2:
            one.draining = not one.draining
        else:
            one.add(ReplicaId(f"r{step}:1"), ask_for(spec(rng.choice([0, 1, 2])), 3).share)
        index.note(one)
        for other in hosts:
            index.note(other)
        usable = sorted((h for h in hosts if h.usable), key=load_key)
        assert list(index) == usable
