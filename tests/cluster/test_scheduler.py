"""Odd cases of the scheduler in a few lines each; whole stories are in the conversations."""

from __future__ import annotations

import pytest
from builders import Cluster, none_of, only

from notebookos_ext.cluster import actions as a
from notebookos_ext.cluster import events as e
from notebookos_ext.cluster.model import (
    CellId,
    DeviceId,
    DeviceKind,
    ExecutorPreference,
    HostId,
    KernelId,
    KernelState,
    Outcome,
    ReplicaId,
    ReplicaState,
)
from notebookos_ext.cluster.policies import POLICIES, make_policy
from notebookos_ext.cluster.queueing import BYPASS_LIMIT
from notebookos_ext.cluster.scheduler import HANDLERS, Scheduler
from notebookos_ext.errors import InvalidSettings, NotFound

K = KernelId("k")


def test_every_event_has_a_handler() -> None:
    assert set(HANDLERS) == set(e.Event.__args__)


def test_policies_by_name() -> None:
    assert [make_policy(name).name for name in POLICIES] == list(POLICIES)
    with pytest.raises(InvalidSettings, match=r"no policy 'fair'.*replicated"):
        Scheduler("fair")


def test_same_events_same_actions() -> None:
    def day() -> list[a.Action]:
        cluster = Cluster(hosts=4)
        cluster.kernel()
        said = cluster.submit("c1", 1) + cluster.started("c1") + cluster.replica_lost("k:1")
        return said + cluster.closed("c1", Outcome.LOST) + cluster.submit("c2", 2)

    assert day() == day()


# ---- late and foreign words


def test_words_about_unknown_kernels_and_hosts_change_nothing() -> None:
    cluster = Cluster()
    nobody, host, now = KernelId("x"), HostId("nowhere"), 1.0
    replica, cell = ReplicaId("x:1"), CellId("c")
    for event in (
        e.HostLost(host, "first", "gone", now),
        e.KernelStopped(nobody, now),
        e.KernelRestarted(nobody, now),
        e.ExecutorPreferred(nobody, replica, now),
        e.KernelSettingsChanged(nobody, 1, 3, now),
        e.ReplicaStarted(replica, host, "first", 1, now),
        e.ReplicaLost(replica, host, "first", "killed", now),
        e.CellCancelled(nobody, cell, now),
        e.AttemptStarted(nobody, cell, 1, now),
        e.AttemptRefused(nobody, cell, 1, "no", (), False, now),
        e.AttemptClosed(nobody, cell, 1, Outcome.DONE, now),
        e.GpusReleased(nobody, cell, 1, now),
        e.HoldChanged(nobody, replica, (), now),
        e.DurabilityChanged(nobody, replica, (), now),
        e.Ticked(now),
    ):
        assert cluster.do(event) == []
    assert cluster.submit("c", kernel="x") == []


def test_words_about_an_earlier_life_of_a_host_change_nothing() -> None:
    cluster = Cluster()
    cluster.kernel()
    cluster.join("host-1", incarnation="second")
    host = HostId("host-1")
    assert cluster.do(e.HostLost(host, "first", "gone", 1.0)) == []
    assert cluster.do(e.ReplicaStarted(ReplicaId("k:1"), host, "first", 1, 1.0)) == []
    assert cluster.do(e.ReplicaLost(ReplicaId("k:1"), host, "first", "killed", 1.0)) == []
    assert cluster.replica("k:1")[1].state is ReplicaState.STARTING


def test_a_host_that_says_hello_twice_keeps_its_bindings() -> None:
    cluster = Cluster()
    cluster.kernel()
    start = cluster.run("c1", 2)
    assert cluster.join("host-1") == []
    assert set(cluster.scheduler.view.bindings) == set(start.devices)


def test_gpus_are_not_released_before_their_cell_has_ended() -> None:
    cluster = Cluster()
    cluster.kernel()
    cluster.run("c1", 1)
    assert cluster.released("c1") == []
    assert len(cluster.scheduler.view.bindings) == 1


def test_a_cell_is_taken_once() -> None:
    cluster = Cluster()
    cluster.kernel()
    cluster.run("c1")
    assert cluster.submit("c1") == []
    cluster.submit("c2")
    assert cluster.submit("c2") == []


def test_done_may_arrive_after_the_executors_death() -> None:
    """Its bytes were on their way: the agent commits DONE, and LOST is refused by the ledger."""
    cluster = Cluster()
    cluster.kernel()
    cluster.run("c1", 1)
    only(cluster.replica_lost("k:1"), a.CloseAttempt)
    only(cluster.closed("c1", Outcome.DONE), a.ReleaseGpus)
    assert cluster.closed("c1", Outcome.LOST) == []


# ---- attempt numbers


def test_attempt_numbers_are_never_used_again() -> None:
    cluster = Cluster()
    cluster.kernel()
    assert cluster.run("c1").attempt == 1
    cluster.start_all(cluster.restart())
    assert cluster.run("c2").attempt == 2
    cluster.refused("c2")
    assert cluster.number() == 2


def test_a_kernel_that_comes_back_does_not_use_numbers_whose_gpus_are_still_given_back() -> None:
    cluster = Cluster()
    cluster.kernel()
    cluster.run("c1", 1)
    cluster.stop()
    cluster.kernel()
    start = only(cluster.submit("c1", 1), a.StartAttempt)
    assert start.attempt == 2
    cluster.released("c1", attempt=1)
    assert set(cluster.scheduler.view.bindings) == set(start.devices)


# ---- devices that a process cannot change


def test_a_held_kernel_waits_for_its_own_devices() -> None:
    cluster = Cluster(kind=DeviceKind.CUDA)
    cluster.kernel()
    cluster.run("c1", 1)
    cluster.hold("k:1", "sock")
    cluster.finish("c1")
    cluster.kernel("l")
    cluster.submit("x", 1, kernel="l", replica=1)
    cluster.started("x", kernel="l")
    waits = only(cluster.submit("c2", 1), a.CellWaiting)
    assert waits.reason == "waits for 1 GPU: host-1 has 1 of 2 free"
    start = only(cluster.finish("x", kernel="l"), a.StartAttempt)
    assert (start.replica, start.devices) == ("k:1", ("host-1/0",))


def test_recycling_never_loses_names_that_cannot_travel() -> None:
    cluster = Cluster()
    cluster.kernel()
    cluster.run("c1", 1)
    cluster.hold("k:1", "sock", "gen")
    cluster.finish("c1")
    only(cluster.submit("c2", 2), a.StartAttempt)
    actions = cluster.refused("c2", recycle=True)
    rejected = only(actions, a.CellRejected)
    assert "would lose `sock`, `gen`" in rejected.reason
    assert "delete `sock`, `gen`" in rejected.hint
    none_of(actions, a.StopReplica)


def test_recycling_waits_until_all_is_durable() -> None:
    cluster = Cluster()
    cluster.kernel()
    cluster.run("c1", 1)
    cluster.pending("k:1", "model")
    cluster.finish("c1")
    cluster.submit("c2", 2)
    actions = cluster.refused("c2", recycle=True)
    none_of(actions, a.StopReplica)
    assert "not durable yet" in only(actions, a.CellWaiting).reason
    # Once all is durable any replica can run it.
    assert only(cluster.pending("k:1"), a.StartAttempt).replica == "k:2"


def test_a_replica_is_recycled_once_for_a_cell() -> None:
    cluster = Cluster(hosts=1)
    cluster.kernel(replicas=1)
    cluster.submit("c1", 1)
    cluster.start_all(cluster.refused("c1", recycle=True))
    actions = cluster.refused("c1", recycle=True)
    none_of(actions, a.StopReplica)
    only(actions, a.CellWaiting)
    only(cluster.tick(), a.StartAttempt)


def test_a_recycled_replica_that_dies_is_not_waited_for() -> None:
    cluster = Cluster()
    cluster.kernel()
    cluster.submit("c1", 1)
    cluster.refused("c1", recycle=True)
    start = only(cluster.replica_lost("k:1"), a.StartAttempt)
    assert start.replica == "k:2"


def test_other_devices_are_worse_than_another_replica() -> None:
    """A process whose CUDA is set up would have to be restarted; one that has none would not."""
    cluster = Cluster(kind=DeviceKind.CUDA)
    cluster.kernel()
    cluster.run("c1", 1)
    cluster.finish("c1")
    start = only(cluster.submit("c2", 2), a.StartAttempt)
    assert start.replica == "k:2"


def test_refusals_are_not_answered_in_a_hot_loop() -> None:
    cluster = Cluster(hosts=1)
    cluster.kernel(replicas=1)
    cluster.submit("c1")
    none_of(cluster.refused("c1"), a.StartAttempt)
    for _ in range(3):
        only(cluster.tick(), a.StartAttempt)
        none_of(cluster.refused("c1"), a.StartAttempt)


def test_busy_devices_are_tried_again_later() -> None:
    cluster = Cluster(hosts=1, gpus=1)
    cluster.kernel(replicas=1)
    cluster.submit("c1", 1)
    waits = only(cluster.refused("c1", busy=("host-1/0",)), a.CellWaiting)
    assert waits.reason == "waits for 1 GPU: host-1 has 0 of 1 free"
    none_of(cluster.tick(4.0), a.StartAttempt)
    only(cluster.tick(1.0), a.StartAttempt)


def test_a_cell_that_was_to_be_tried_again_can_be_taken_back() -> None:
    cluster = Cluster()
    cluster.kernel()
    cluster.submit("c1", 1)
    assert not only(cluster.lose_host("host-1"), a.CloseAttempt).ends_cell
    only(cluster.cancel("c1"), a.CellAborted)
    assert cluster.cancel("c1") == []
    assert cluster.closed("c1", Outcome.LOST) == []
    assert cluster.scheduler.view.waiting == ()


def test_a_host_that_comes_back_gives_its_replicas_a_fresh_start() -> None:
    cluster = Cluster()
    cluster.request()
    for _ in range(3):
        cluster.replica_lost("k:1")
        cluster.tick(30.0)
    cluster.join("host-1", incarnation="second")
    cluster.replica_lost("k:1")
    none_of(cluster.tick(0.5), a.StartReplica)
    only(cluster.tick(0.5), a.StartReplica)


# ---- requests that cannot be met


def test_no_gpus_at_all() -> None:
    cluster = Cluster(gpus=0)
    cluster.kernel()
    rejected = only(cluster.submit("c1", 1), a.CellRejected)
    assert rejected.reason == "the cell asks for 1 GPU, but no host of this cluster has any"
    assert "%%gpu 0" in rejected.hint
    only(cluster.submit("c2", 0), a.StartAttempt)


def test_more_than_the_kernels_hosts_have_though_another_has_them() -> None:
    cluster = Cluster()
    cluster.kernel()
    cluster.join("host-4", 8)
    rejected = only(cluster.submit("c1", 4), a.CellRejected)
    assert "host-1 has 2, host-2 has 2, host-3 has 2" in rejected.reason
    assert "start it again" in rejected.hint
    cluster.stop()
    cluster.start_all(cluster.request(gpus_per_cell=4))
    assert only(cluster.submit("c2", 4), a.StartAttempt).host == "host-4"


def test_more_than_the_named_replicas_host_has() -> None:
    cluster = Cluster(hosts=2)
    cluster.join("host-3", 8)
    cluster.kernel()
    rejected = only(cluster.submit("c1", 4, replica=1), a.CellRejected)
    assert rejected.hint == "ask for fewer, or let another replica run it"


def test_a_negative_number_of_gpus() -> None:
    cluster = Cluster()
    cluster.kernel()
    assert "cannot ask for -1" in only(cluster.submit("c1", -1), a.CellRejected).reason


def test_a_lost_host_with_enough_gpus_is_waited_for() -> None:
    cluster = Cluster(hosts=2)
    cluster.join("host-3", 8)
    cluster.kernel()
    cluster.lose_host("host-3")
    waits = only(cluster.submit("c1", 4), a.CellWaiting)
    assert "host-3 with replica 3 is lost" in waits.reason
    cluster.start_all(cluster.join("host-3", 8, incarnation="second"))
    assert cluster.scheduler.view.kernel(K).state is KernelState.BUSY


# ---- kernels


def test_settings_before_there_are_hosts_count_at_once() -> None:
    cluster = Cluster(hosts=1)
    only(cluster.request(replicas=3), a.RequestHosts)
    only(cluster.settings(replicas=1, gpus=2), a.StartReplica)
    assert cluster.scheduler.view.kernel(K).gpus_per_cell == 2


def test_a_kernel_that_waits_for_hosts_can_be_stopped_and_restarted() -> None:
    cluster = Cluster(hosts=1)
    cluster.request()
    cluster.submit("c1")
    aborted = only(cluster.restart(), a.CellAborted)
    assert aborted.reason == "the kernel was restarted"
    assert cluster.stop() == []
    cluster.join("host-2")
    assert cluster.join("host-3") == []


def test_a_restart_with_a_host_away_launches_the_others() -> None:
    cluster = Cluster()
    cluster.kernel()
    cluster.lose_host("host-2")
    launched = [x.replica for x in cluster.restart() if isinstance(x, a.StartReplica)]
    assert launched == ["k:1", "k:3"]
    again = only(cluster.join("host-2", incarnation="second"), a.StartReplica)
    assert (again.replica, again.epoch) == ("k:2", 1)


def test_a_restart_forgets_what_held_the_kernel_and_who_ran_last() -> None:
    cluster = Cluster()
    kernel = cluster.kernel()
    cluster.run("c1")
    cluster.hold("k:1", "sock")
    cluster.finish("c1")
    cluster.start_all(cluster.restart())
    assert (kernel.held_by, kernel.pending_on, kernel.last_executor) == (None, None, None)


def test_what_a_starting_replica_is_said_to_hold_is_from_an_earlier_epoch() -> None:
    cluster = Cluster()
    kernel = cluster.kernel()
    cluster.restart()
    cluster.hold("k:1", "sock")
    cluster.pending("k:1", "model")
    assert (kernel.held_by, kernel.pending_on) == (None, None)


def test_fewer_replicas_leave_hosts_for_others() -> None:
    cluster = Cluster()
    cluster.kernel()
    cluster.settings(replicas=1)
    actions = cluster.restart()
    assert only(actions, a.CloseKernel).members == ("host-1", "host-2", "host-3")
    assert only(actions, a.StartReplica).members == ("host-1",)
    assert cluster.kernel("l", 1).members == ("host-2",)


def test_an_impossible_replica_count_in_the_settings_is_ignored() -> None:
    cluster = Cluster()
    kernel = cluster.kernel()
    cluster.settings(replicas=2)
    assert kernel.next_replica_count == 3


# ---- the queue


def test_one_gpu_cells_of_many_kernels_do_not_starve_a_large_one() -> None:
    cluster = Cluster(hosts=1, gpus=2)
    for name in ("big", "a", "b", "c"):
        cluster.kernel(name, 1)
    cluster.run("a0", 1, kernel="a")
    only(cluster.submit("large", 2, kernel="big"), a.CellWaiting)
    for turn in range(1, BYPASS_LIMIT + 1):
        cluster.run(f"b{turn}", 1, kernel="b")
        cluster.finish(f"b{turn}", kernel="b")
    kept = only(cluster.submit("b9", 1, kernel="b"), a.CellWaiting)
    assert "kept for a cell that waits longer" in kept.reason
    # One that gives up gives its place up, too.
    start = only(cluster.cancel("large", kernel="big"), a.StartAttempt)
    assert start.cell == "b9"


def test_position_and_reason_are_said_again_only_when_they_change() -> None:
    cluster = Cluster(hosts=1, gpus=1)
    for name in ("a", "b", "c"):
        cluster.kernel(name, 1)
    cluster.run("a1", 1, kernel="a")
    assert only(cluster.submit("b1", 1, kernel="b"), a.CellWaiting).position == 1
    assert only(cluster.submit("c1", 1, kernel="c"), a.CellWaiting).position == 2
    assert cluster.tick() == []
    moved = only(cluster.cancel("b1", kernel="b"), a.CellAborted)
    assert moved.cell == "b1"
    assert [w.position for w in cluster.scheduler.view.waiting] == [1]


def test_rotation_goes_to_the_next_that_can() -> None:
    cluster = Cluster()
    cluster.kernel(preference=ExecutorPreference.ROTATE)
    cluster.kernel("l")
    cluster.submit("x", 2, kernel="l", replica=2)
    cluster.started("x", kernel="l")
    ran = []
    for turn in range(4):
        ran.append(cluster.run(f"c{turn}", 1).replica)
        cluster.finish(f"c{turn}")
    assert ran == ["k:1", "k:3", "k:1", "k:3"]


@pytest.mark.parametrize("preference", list(ExecutorPreference))
def test_a_cell_goes_where_a_debugger_waits_for_it(preference: ExecutorPreference) -> None:
    cluster = Cluster()
    cluster.kernel(preference=preference)
    assert only(cluster.submit("c", near="k:3"), a.StartAttempt).replica == "k:3"


def test_a_cell_does_not_wait_for_the_debuggers_host() -> None:
    cluster = Cluster()
    cluster.kernel()
    cluster.kernel("l")
    cluster.submit("x", 2, kernel="l", replica=3)
    cluster.started("x", kernel="l")
    assert only(cluster.submit("c", 1, near="k:3"), a.StartAttempt).replica != "k:3"


# ---- the view


def test_the_view_names_what_it_lacks() -> None:
    view = Cluster().scheduler.view
    with pytest.raises(NotFound, match="no kernel x"):
        view.kernel(KernelId("x"))
    with pytest.raises(NotFound, match="no replica x:1"):
        view.replica(ReplicaId("x:1"))


def test_the_view_tells_what_the_sidebar_shows() -> None:
    cluster = Cluster()
    cluster.kernel()
    view = cluster.scheduler.view
    assert view.executor(K) is None
    only(cluster.submit("c1", 1), a.StartAttempt)
    assert view.is_waiting(K, CellId("c1"))
    cluster.started("c1")
    assert not view.is_waiting(K, CellId("c1"))
    assert view.executor(K) == "k:1"
    assert view.bindings[DeviceId("host-1/0")].cell == "c1"
    cluster.submit("c2")
    assert view.is_waiting(K, CellId("c2"))
    assert [w.cell.cell for w in view.waiting] == ["c2"]
    assert not view.is_waiting(KernelId("x"), CellId("c1"))
    assert view.replica(ReplicaId("k:2"))[1].host == "host-2"
    assert view.max_hosts == 8
