"""Somebody chooses who is to run the next cell: it does if it can, and nothing waits for it."""

from __future__ import annotations

from builders import Cluster, none_of, only

from notebookos_ext.cluster import actions as a
from notebookos_ext.cluster import events as e
from notebookos_ext.cluster.model import ExecutorPreference, KernelId, ReplicaId


def prefer(cluster: Cluster, replica: str | None, kernel: str = "k") -> list[a.Action]:
    wanted = None if replica is None else ReplicaId(replica)
    return cluster.do(e.ExecutorPreferred(KernelId(kernel), wanted, cluster.now))


def test_the_next_cell_runs_on_the_replica_that_was_chosen_and_then_as_before() -> None:
    cluster = Cluster()
    kernel = cluster.kernel()
    assert cluster.run("c1", 1).replica == "k:1"
    cluster.finish("c1")
    prefer(cluster, "k:3")
    assert kernel.next_executor == "k:3"
    assert cluster.run("c2", 1).replica == "k:3"
    assert kernel.next_executor is None
    cluster.finish("c2")
    # It is the last executor now.
    assert cluster.run("c3", 1).replica == "k:3"


def test_it_goes_there_at_once_though_gpus_of_the_last_executor_are_just_given_back() -> None:
    cluster = Cluster()
    cluster.kernel()
    cluster.run("c1", 1)
    prefer(cluster, "k:2")
    cluster.closed("c1")
    assert only(cluster.submit("c2", 1), a.StartAttempt).replica == "k:2"


def test_a_cell_does_not_wait_for_a_replica_that_cannot_and_the_choice_stays() -> None:
    cluster = Cluster(gpus=2)
    kernel = cluster.kernel()
    cluster.kernel("other", 1)
    # The other kernel's replica is wherever it was placed; its host has no GPU left.
    busy = cluster.run("held", 2, kernel="other").host
    number = next(r.number for r in kernel.replicas if r.host == busy)
    prefer(cluster, f"k:{number}")
    assert cluster.run("c1", 1).replica != f"k:{number}"
    cluster.finish("c1")
    assert kernel.next_executor == f"k:{number}"
    cluster.finish("held", kernel="other")
    assert cluster.run("c2", 1).replica == f"k:{number}"


def test_a_choice_can_be_taken_back_and_ends_with_the_namespace() -> None:
    cluster = Cluster()
    kernel = cluster.kernel()
    cluster.run("c1")
    cluster.finish("c1")
    prefer(cluster, "k:2")
    prefer(cluster, None)
    assert cluster.run("c2").replica == "k:1"
    cluster.finish("c2")
    prefer(cluster, "k:2")
    cluster.restart()
    assert kernel.next_executor is None


def test_a_choice_goes_before_the_round_of_rotation() -> None:
    cluster = Cluster()
    cluster.kernel(preference=ExecutorPreference.ROTATE)
    assert cluster.run("c1").replica == "k:1"
    cluster.finish("c1")
    prefer(cluster, "k:3")
    assert cluster.run("c2").replica == "k:3"


def test_names_that_cannot_travel_go_before_the_choice() -> None:
    cluster = Cluster()
    cluster.kernel()
    cluster.run("c1")
    cluster.finish("c1")
    prefer(cluster, "k:2")
    cluster.hold("k:1", "socket")
    assert cluster.run("c2").replica == "k:1"


def test_of_an_unknown_kernel_nobody_is_preferred() -> None:
    cluster = Cluster()
    none_of(prefer(cluster, "x:1", kernel="x"), a.StartAttempt)
