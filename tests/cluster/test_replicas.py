"""The life of a replica: the table, the story that an error tells, and the waits after crashes."""

from __future__ import annotations

import itertools

import pytest

from notebookos_ext.cluster.model import (
    HeldName,
    HostId,
    KernelId,
    KernelSpec,
    KernelState,
    ReplicaId,
    ReplicaState,
)
from notebookos_ext.cluster.replicas import (
    TRANSITIONS,
    Kernel,
    Replica,
    Step,
    relaunch_wait_s,
)
from notebookos_ext.errors import Defect


def replica(state: ReplicaState = ReplicaState.LOST) -> Replica:
    return Replica(ReplicaId("k:1"), 1, HostId("host-1"), state)


def kernel() -> Kernel:
    made = Kernel(KernelSpec(KernelId("k")), requested_at=0.0, next_replica_count=3)
    made.settle((HostId("a"), HostId("b"), HostId("c")))
    return made


@pytest.mark.parametrize(("state", "step"), list(itertools.product(ReplicaState, Step)))
def test_the_table_is_all_that_may_happen(state: ReplicaState, step: Step) -> None:
    subject = replica(state)
    if (state, step) in TRANSITIONS:
        assert subject.can(step)
        subject.step(step, 1.0)
        assert subject.state is TRANSITIONS[state, step]
    else:
        assert not subject.can(step)
        with pytest.raises(Defect, match=f"is {state} and cannot be {step}"):
            subject.step(step, 1.0)
        assert subject.state is state


def test_an_impossible_step_tells_the_story() -> None:
    subject = replica()
    subject.step(Step.LAUNCHED, 1.0)
    subject.step(Step.STARTED, 2.5)
    with pytest.raises(Defect, match=r"1 s: launched, so starting; 2\.5 s: started, so idle"):
        subject.step(Step.STARTED, 3.0)


def test_a_process_takes_its_pid_and_its_devices_with_it() -> None:
    subject = replica(ReplicaState.EXECUTING)
    subject.pid, subject.devices = 7, ("gpu",)  # type: ignore[assignment]
    subject.step(Step.RETURNED, 1.0)
    assert (subject.pid, subject.devices) == (7, ("gpu",))
    subject.step(Step.DIED, 2.0)
    assert (subject.pid, subject.devices) == (None, ())


def test_waits_double_up_to_half_a_minute() -> None:
    assert [relaunch_wait_s(n) for n in range(8)] == [0, 1, 2, 4, 8, 16, 30, 30]
    assert relaunch_wait_s(100_000) == 30


def test_who_cannot_start_is_launched_again_later_and_later() -> None:
    subject = replica(ReplicaState.STARTING)
    subject.plan_relaunch(10.0)
    assert subject.relaunch_at == 11.0
    subject.plan_relaunch(20.0)
    assert subject.relaunch_at == 22.0


def test_who_dies_young_gets_one_chance_at_once() -> None:
    subject = replica(ReplicaState.IDLE)
    subject.started_at = 10.0
    subject.plan_relaunch(11.0)
    assert subject.relaunch_at == 11.0
    subject.plan_relaunch(12.0)
    assert subject.relaunch_at == 13.0


def test_a_good_life_makes_up_for_failures() -> None:
    subject = replica(ReplicaState.IDLE)
    subject.failures, subject.started_at = 5, 10.0
    subject.plan_relaunch(100.0)
    assert (subject.relaunch_at, subject.failures) == (100.0, 0)


def test_the_state_of_a_kernel_that_people_see() -> None:
    subject = kernel()
    assert subject.state is KernelState.STARTING
    subject.replicas[1].state = ReplicaState.IDLE
    assert subject.state is KernelState.IDLE
    empty = Kernel(KernelSpec(KernelId("k")), requested_at=0.0, next_replica_count=3)
    assert empty.state is KernelState.WAITING_FOR_HOSTS


def test_names_go_with_the_replica_that_has_them_and_only_with_it() -> None:
    subject = kernel()
    subject.held_by, subject.held = ReplicaId("k:1"), (HeldName("s", "socket", "open"),)
    subject.pending_on, subject.pending = ReplicaId("k:2"), ("m",)
    subject.forget_names_of(ReplicaId("k:1"))
    assert (subject.held_by, subject.held) == (None, ())
    assert subject.pending == ("m",)
    subject.forget_names_of(ReplicaId("k:2"))
    assert (subject.pending_on, subject.pending) == (None, ())
