"""The invariants themselves: a state that was spoiled by hand is found out."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from builders import Cluster

from notebookos_ext.cluster.invariants import check
from notebookos_ext.cluster.model import DeviceId, HostId, HostState, KernelId, ReplicaState
from notebookos_ext.cluster.options import Options
from notebookos_ext.cluster.replicas import Phase
from notebookos_ext.cluster.state import ClusterState
from notebookos_ext.errors import Defect

K, H1 = KernelId("k"), HostId("host-1")


def a_busy_cluster() -> Cluster:
    """One kernel runs a cell with a GPU and has another waiting; a second waits for GPUs."""
    cluster = Cluster(gpus=1)
    cluster.kernel()
    cluster.run("c1", 1)
    cluster.submit("c2")
    cluster.kernel("l")
    cluster.submit("x1", 1, kernel="l", replica=1)
    return cluster


def forget_binding(state: ClusterState) -> None:
    state.pool.release(K, 1)
    state.pool.bind((DeviceId("host-2/0"),), _other_binding(state))


def _other_binding(state: ClusterState) -> object:
    from notebookos_ext.cluster.gpus import Binding

    replica = state.kernels[K].replicas[1]
    return Binding(K, state.kernels[K].waiting[0].cell.cell, 1, replica.id, replica.host, 0.0)


def two_on_one_host(state: ClusterState) -> None:
    kernel = state.kernels[K]
    kernel.members = (H1, H1, HostId("host-3"))


def lost_and_forgotten(state: ClusterState) -> None:
    state.kernels[K].replicas[2].state = ReplicaState.LOST


def left_stopping(state: ClusterState) -> None:
    state.kernels[K].replicas[2].state = ReplicaState.STOPPING


def executes_without_attempt(state: ClusterState) -> None:
    state.kernels[K].attempt = None


def two_execute(state: ClusterState) -> None:
    state.kernels[K].replicas[1].state = ReplicaState.EXECUTING
    state.hosts[HostId("host-2")].executing += 1


def attempt_out_of_order(state: ClusterState) -> None:
    state.kernels[K].last_attempt = 9


def runs_nowhere(state: ClusterState) -> None:
    attempt = state.kernels[K].attempt
    assert attempt is not None
    attempt.phase = Phase.RUNNING
    state.kernels[K].replicas[0].state = ReplicaState.IDLE
    state.hosts[H1].executing = 0


def bound_on_a_lost_host(state: ClusterState) -> None:
    state.hosts[H1].state = HostState.LOST


def miscounted(state: ClusterState) -> None:
    state.hosts[H1].executing = 5


def not_listed(state: ClusterState) -> None:
    state.hosts[H1].replicas.clear()


def nobody_told(state: ClusterState) -> None:
    state.kernels[K].waiting[0].reason = ""


def wrong_position(state: ClusterState) -> None:
    state.kernels[KernelId("l")].waiting[0].position = 7


def waits_in_secret(state: ClusterState) -> None:
    state.queue.remove(state.kernels[K].waiting[0])


def held_by_the_dead(state: ClusterState) -> None:
    kernel = state.kernels[K]
    kernel.held_by = kernel.replicas[1].id
    kernel.replicas[1].state = ReplicaState.STARTING


def homeless(state: ClusterState) -> None:
    state.kernels[K].members = ()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (forget_binding, "has not asked for it"),
        (two_on_one_host, "are on one host"),
        (lost_and_forgotten, "relaunch of k:3 is forgotten"),
        (left_stopping, "k:3 was left stopping"),
        (executes_without_attempt, "k:1 executes without an attempt"),
        (two_execute, "executes beside attempt 1"),
        (attempt_out_of_order, "is not its last one"),
        (runs_nowhere, "runs on a replica that does not execute"),
        (bound_on_a_lost_host, "which is not there"),
        (miscounted, "host-1 counts 5 executors instead of 1"),
        (not_listed, "host-1 does not list k:1"),
        (nobody_told, "waits without having been told why"),
        (wrong_position, "are not 1, 2, 3"),
        (waits_in_secret, "are not those of the queue"),
        (held_by_the_dead, "has held names on k:2, whose process is gone"),
        (homeless, "has no hosts and does not wait for any"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_spoiled_state_is_found_out(spoil: Callable[[ClusterState], None], words: str) -> None:
    state = a_busy_cluster().scheduler.state
    check(state)
    spoil(state)
    with pytest.raises(Defect, match=words):
        check(state)


def test_what_a_user_holds_is_counted_over_all_kernels() -> None:
    cluster = Cluster(gpus=2, options=Options(quota=2))
    cluster.kernel()
    cluster.run("c1", 2)
    state = cluster.scheduler.state
    state.options = msgspec.structs.replace(state.options, quotas={"k": 1})
    with pytest.raises(Defect, match="cells of k hold 2 GPUs, and may hold 1"):
        check(state)
