"""The replica's role as its agent tells it: fencing, following the log, devices."""

from __future__ import annotations

import logging
from collections import deque

import pytest

from notebookos_ext.cluster.entries import Component, Delta
from notebookos_ext.cluster.messages.replica import (
    AgentMessage,
    Applied,
    Apply,
    Committed,
    Interrupt,
    Lead,
    LeadAnswer,
    Park,
    Parked,
    Prepare,
    ReplicaMessage,
    Stop,
    StoreBack,
    ToReplica,
)
from notebookos_ext.cluster.model import CellId, ReplicaId
from notebookos_ext.kernel.agent_requests import AgentRequests

OTHER = ReplicaId("k:2")


class Link:
    """What arrived, and what was answered."""

    def __init__(self) -> None:
        self.arrived: deque[ToReplica] = deque()
        self.in_socket: deque[ToReplica] = deque()
        self.answers: list[tuple[int, ReplicaMessage]] = []

    def take(self) -> ToReplica | None:
        return self.arrived.popleft() if self.arrived else None

    def pump(self) -> None:
        self.arrived += self.in_socket
        self.in_socket.clear()

    def answer(self, sequence: int, body: ReplicaMessage) -> None:
        self.answers.append((sequence, body))


class Devices:
    """Accepts, or raises what the test puts in."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def prepare(self, request: Prepare) -> LeadAnswer:
        if self.error is not None:
            raise self.error
        return LeadAnswer(accepted=True)

    def park(self) -> Parked:
        if self.error is not None:
            raise self.error
        return Parked(7)


class Case:
    def __init__(self) -> None:
        self.link = Link()
        self.devices = Devices()
        self.applied: list[Delta] = []
        self.problems: tuple[str, ...] = ()
        self.error: Exception | None = None
        self.led: list[int] = []
        self.stopped = 0
        self.backs = 0
        self.requests = AgentRequests(
            self.link,
            self.devices,
            apply=self._apply,
            on_lead=lambda lead: self.led.append(lead.attempt),
            on_store_back=self._store_back,
            on_stop=self._stop,
            log=logging.getLogger("test"),
        )

    def _apply(self, delta: Delta) -> tuple[str, ...]:
        if self.error is not None:
            raise self.error
        self.applied.append(delta)
        return self.problems

    def _store_back(self) -> None:
        self.backs += 1

    def _stop(self) -> None:
        self.stopped += 1

    def tell(self, *bodies: AgentMessage) -> list[ReplicaMessage]:
        """Let these arrive; what was answered."""
        self.link.answers.clear()
        self.link.arrived += [ToReplica(n, body) for n, body in enumerate(bodies, start=1)]
        self.requests.run_pending()
        return [body for _, body in self.link.answers]


@pytest.fixture
def case() -> Case:
    return Case()


def delta(name: str) -> Delta:
    return Delta(components=(Component((name,), b""),))


def apply(index: int, name: str = "x", *, own: bool = False) -> Apply:
    return Apply(index, None if own else delta(name), 1, OTHER, own)


def lead(cell: str, attempt: int = 1) -> Lead:
    return Lead(CellId(cell), attempt)


def test_when_the_store_is_back_it_catches_up_and_commits_what_was_not_kept(case: Case) -> None:
    case.error = OSError("the store is away")
    assert case.tell(apply(1)) == []
    case.error = None
    assert case.tell(StoreBack()) == [Applied(1)]
    assert (case.applied, case.backs) == ([delta("x")], 1)


PREPARE = Prepare((), "", simulated=True)


def test_a_lead_lets_its_cell_run_once(case: Case) -> None:
    assert not case.requests.is_executor
    case.tell(lead("c", 4))
    assert (case.led, case.requests.is_executor) == ([4], True)
    assert case.requests.claim("c") == lead("c", 4)
    assert case.requests.claim("c") is None


def test_a_lead_for_another_cell_does_not_count(case: Case) -> None:
    case.tell(lead("c"))
    assert case.requests.claim("d") is None


def test_a_lead_that_is_still_in_the_socket_counts(case: Case) -> None:
    case.link.in_socket.append(ToReplica(1, lead("c")))
    assert case.requests.claim("c") == lead("c")


def test_an_interrupt_counts_for_its_cell_only(case: Case) -> None:
    case.tell(lead("c"), Interrupt(CellId("b")))
    assert not case.requests.was_interrupted("c")
    # Still in the socket: written, and then the signal was sent, which came too early to be felt.
    case.link.in_socket.append(ToReplica(1, Interrupt(CellId("c"))))
    assert case.requests.was_interrupted("c")


def test_answers_carry_the_number_of_their_request(case: Case) -> None:
    case.tell(PREPARE, Park(), apply(9))
    assert case.link.answers == [(1, LeadAnswer(True)), (2, Parked(7)), (3, Applied(9))]


def test_entries_of_others_are_applied_and_end_the_executor_role(case: Case) -> None:
    case.tell(lead("c"))
    assert case.tell(apply(3, "x"), apply(4, "y")) == [Applied(3), Applied(4)]
    assert case.applied == [delta("x"), delta("y")]
    assert not case.requests.is_executor
    assert case.requests.claim("c") is None


def test_own_entries_are_only_acknowledged(case: Case) -> None:
    case.tell(lead("c"))
    assert case.tell(apply(3, own=True)) == [Applied(3)]
    assert (case.applied, case.requests.is_executor) == ([], True)


def test_a_lost_attempt_of_another_applies_nothing(case: Case) -> None:
    assert case.tell(Apply(3, None, 1, OTHER, own=False)) == [Applied(3)]
    assert case.applied == []


def test_one_that_fails_holds_back_all_later_ones_until_it_works(case: Case) -> None:
    case.error = OSError("the store is away")
    assert case.tell(apply(3, "x"), apply(4, "y")) == []
    (answer,) = case.tell(PREPARE)
    assert isinstance(answer, LeadAnswer)
    assert (answer.accepted, answer.recycle) == (False, False)
    assert "entry 3 cannot be loaded here: the store is away" in answer.reason
    case.error = None
    assert case.tell(PREPARE) == [Applied(3), Applied(4), LeadAnswer(True)]
    assert case.applied == [delta("x"), delta("y")]


def test_what_could_not_be_loaded_is_told_once(case: Case) -> None:
    case.problems = ("x could not be loaded",)
    assert case.tell(apply(3)) == [Applied(3)]
    assert case.requests.take_problems() == ["x could not be loaded"]
    assert case.requests.take_problems() == []


def test_devices_that_fail_are_reported(case: Case) -> None:
    case.devices.error = RuntimeError("out of memory")
    answer, parked = case.tell(PREPARE, Park())
    assert isinstance(answer, LeadAnswer)
    assert (answer.accepted, answer.recycle) == (False, True)
    assert "RuntimeError: out of memory" in answer.reason
    assert parked == Parked(0)


def test_stop_is_passed_on(case: Case) -> None:
    assert case.tell(Stop()) == []
    assert case.stopped == 1


def test_an_unexpected_message_is_logged_and_skipped(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    assert case.tell(Committed(1), PREPARE) == [LeadAnswer(True)]
    assert "Committed" in caplog.text


def test_what_was_lost_on_its_way_to_the_store_is_named_once_to_the_next_executor(
    case: Case,
) -> None:
    on_its_way = Delta(pending=("big", "model"))
    case.tell(Apply(1, on_its_way, 1, OTHER, own=False), lead("c2", 2))
    assert case.requests.claim("c2")
    (problem,) = case.requests.take_problems()
    assert "big, model" in problem
    assert case.requests.take_problems() == []


def test_what_arrived_in_the_store_meanwhile_is_not_called_lost(case: Case) -> None:
    case.tell(
        Apply(1, Delta(pending=("big",)), 1, OTHER, own=False),
        Apply(2, delta("big"), 1, OTHER, own=False),
        lead("c2", 2),
    )
    assert case.requests.claim("c2")
    assert case.requests.take_problems() == []


def test_an_executors_own_late_parts_are_not_called_lost(case: Case) -> None:
    case.tell(Apply(1, Delta(pending=("big",)), 1, OTHER, own=False), apply(2, own=True))
    case.tell(lead("c2", 3))
    assert case.requests.claim("c2")
    assert case.requests.take_problems() == []


def test_what_several_entries_say_alike_is_told_once(case: Case) -> None:
    case.problems = ("the working directory is gone",)
    case.tell(apply(1), apply(2), lead("c2", 2))
    assert case.requests.claim("c2")
    assert case.requests.take_problems() == ["the working directory is gone"]
