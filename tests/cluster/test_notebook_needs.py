"""What a notebook asks for beyond counts: types of GPUs, and how long a cell stands in line."""

from __future__ import annotations

import msgspec
from builders import Cluster, host_spec, none_of, only

from notebookos_ext.cluster import actions as a
from notebookos_ext.cluster import events as e
from notebookos_ext.cluster.model import KernelId, KernelSpec
from notebookos_ext.cluster.options import Options


def join(cluster: Cluster, name: str, gpu_type: str) -> list[a.Action]:
    spec = msgspec.structs.replace(host_spec(name), gpu_type=gpu_type)
    return cluster.do(e.HostJoined(spec, cluster.now))


def full_cluster(gpu_wait_s: float) -> Cluster:
    """One host whose GPUs are all held by kernel `other`; kernel `k` has some patience."""
    cluster = Cluster(hosts=1, options=Options(migrate=True))
    cluster.kernel("k", 1)
    cluster.kernel("other", 1)
    cluster.settings("k", gpu_wait_s=gpu_wait_s)
    cluster.run("held", 2, kernel="other")
    return cluster


def test_a_cell_is_given_up_when_it_stood_in_line_for_as_long_as_its_notebook_allows() -> None:
    cluster = full_cluster(gpu_wait_s=30.0)
    only(cluster.submit("c", 1), a.CellWaiting)
    none_of(cluster.tick(29.0), a.CellRejected)
    given_up = only(cluster.tick(1.0), a.CellRejected)
    assert given_up.cell == "c"
    assert given_up.reason.startswith("the cell stood in line for 30 s, the longest")
    assert "host-1 has 0 of 2 free" in given_up.reason
    assert "let it wait longer" in given_up.hint


def test_without_a_limit_it_stays_in_line() -> None:
    cluster = full_cluster(gpu_wait_s=0.0)
    cluster.submit("c", 1)
    none_of(cluster.tick(1_000_000.0), a.CellRejected)
    cluster.closed("held", kernel="other")
    only(cluster.released("held", kernel="other"), a.StartAttempt)


def test_what_a_cell_waits_for_of_its_own_kernel_does_not_count() -> None:
    cluster = full_cluster(gpu_wait_s=10.0)
    cluster.run("long")
    cluster.submit("c", 1)
    none_of(cluster.tick(100.0), a.CellRejected)
    cluster.closed("long")
    none_of(cluster.tick(9.0), a.CellRejected)
    only(cluster.tick(1.0), a.CellRejected)


def test_a_shorter_patience_counts_for_the_cell_that_stands_in_line() -> None:
    cluster = full_cluster(gpu_wait_s=0.0)
    cluster.submit("c", 1)
    cluster.tick(60.0)
    only(cluster.settings("k", gpu_wait_s=60.0), a.CellRejected)


def test_the_users_own_quota_is_waited_for_as_long_as_the_notebook_allows() -> None:
    cluster = Cluster(hosts=1, gpus=4, options=Options(quota=2))
    for kernel in ("one", "two"):
        cluster.start_all(cluster.request(kernel, 1, user="ada"))
    cluster.run("held", 1, kernel="one")
    cluster.settings("two", gpu_wait_s=5.0)
    only(cluster.submit("c", 2, kernel="two"), a.CellWaiting)
    assert "ada" in only(cluster.tick(5.0), a.CellRejected).reason


def test_a_kernel_waits_for_hosts_of_the_type_and_says_so() -> None:
    cluster = Cluster(hosts=0)
    join(cluster, "host-1", "L4")
    spec = KernelSpec(KernelId("k"), 1, gpu_type="H200")
    none_of(cluster.do(e.KernelRequested(spec, cluster.now)), a.StartReplica)
    waits = only(cluster.submit("c"), a.CellWaiting)
    assert waits.reason == (
        "the kernel waits for hosts: it needs 1, 1 ready; host-1 has L4, not H200"
    )
    assert only(join(cluster, "host-2", "H200"), a.StartReplica).host == "host-2"


def test_a_changed_type_counts_for_the_replicas_that_move_from_now_on() -> None:
    cluster = Cluster(hosts=0, options=Options(migrate=True))
    join(cluster, "host-1", "L4")
    cluster.kernel("k", 1)
    join(cluster, "host-2", "L4")
    join(cluster, "host-3", "H200")
    none_of(cluster.settings("k", gpu_type="H200"), a.StartReplica)
    moved = cluster.do(e.MigrationRequested(KernelId("k"), None, None, cluster.now))
    assert only(moved, a.StartReplica).host == "host-3"
