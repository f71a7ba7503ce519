"""When the reply may go, in which order deltas reach the log, and what the user is told."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from notebookos_ext.cluster.entries import Component, Delta
from notebookos_ext.cluster.messages.replica import (
    AgentFailure,
    AgentMessage,
    CommitAttempt,
    CommitState,
    Committed,
    Lead,
    ReplicaMessage,
)
from notebookos_ext.cluster.model import CellId, HeldName, Outcome
from notebookos_ext.errors import InvalidSettings, ProtocolError
from notebookos_ext.kernel.replicator import MAX_STAGED, Replicator, ReplyRule

TIMEOUT_S = 60
MAX_LENGTH = 10_000
HELD = HeldName("g", "generator", "a generator cannot travel")


class Found(msgspec.Struct):
    """What a collect finds."""

    delta: Delta
    late: object | None = None
    notes: tuple[str, ...] = ()


def delta(*names: str, value: bytes = b"", **more: Any) -> Delta:
    return Delta(components=tuple(Component((name,), value) for name in names), **more)


class Namespace:
    """Returns prepared finds; late parts wait until the test lets them go."""

    def __init__(self) -> None:
        self.held = (HELD,)
        self.gpu_names = ("model",)
        self.finds: list[Found | Exception | None] = []
        self.forgotten: list[str] = []
        self.ship: dict[object, Delta | Exception] = {}
        self.gate = threading.Event()
        self.gate.set()

    def collect(self) -> Found | None:
        find = self.finds.pop(0)
        if isinstance(find, Exception):
            raise find
        return find

    def ship_late(self, late: object) -> Delta:
        assert self.gate.wait(TIMEOUT_S)
        result = self.ship[late]
        if isinstance(result, Exception):
            raise result
        return result

    def forget(self, names: Iterable[str]) -> None:
        self.forgotten += names

    def forget_chunks(self) -> None:
        self.forgotten.append("chunks")

    def forget_all(self) -> None:
        self.forgotten.append("*")


class Link:
    """Keeps what is asked; answers at once, or when the test says so."""

    def __init__(self) -> None:
        self.asked: list[ReplicaMessage] = []
        self.futures: list[Future[AgentMessage]] = []
        self.answer: AgentMessage | None = Committed(1)
        self.something = threading.Semaphore(0)

    def request(self, body: ReplicaMessage) -> Future[AgentMessage]:
        if isinstance(body, CommitAttempt) and len(str(body.delta)) > MAX_LENGTH:
            raise ProtocolError("the message is too long")
        future: Future[AgentMessage] = Future()
        self.asked.append(body)
        self.futures.append(future)
        if self.answer is not None:
            future.set_result(self.answer)
        self.something.release()
        return future


class Case:
    def __init__(self) -> None:
        self.namespace = Namespace()
        self.link = Link()
        self.on_main: list[Callable[[], None]] = []
        self.queued = threading.Semaphore(0)
        self.said: list[str] = []
        self.held_here: tuple[HeldName, ...] = ()
        self.made: list[Replicator] = []

    def replicator(self, sync: str = "log-before-reply", budget_ms: float = 1e6) -> Replicator:
        replicator = Replicator(
            self.namespace,
            self.link,
            ReplyRule(sync=sync, budget_ms=budget_ms),
            call_on_main=self.call_on_main,
            held_here=lambda: self.held_here,
            log=logging.getLogger("test"),
        )
        self.made.append(replicator)
        return replicator

    def call_on_main(self, work: Callable[[], None]) -> None:
        self.on_main.append(work)
        self.queued.release()

    def run_main(self) -> None:
        """Wait for the next piece of work for the main thread, and do it."""
        assert self.queued.acquire(timeout=TIMEOUT_S)
        self.on_main.pop(0)()

    def cell(self, replicator: Replicator, attempt: int, find: Found | Exception | None) -> None:
        self.namespace.finds.append(find)
        replicator.leads(attempt)
        replicator.close_attempt(
            Lead(CellId(f"c{attempt}"), attempt), Outcome.DONE, self.said.append
        )

    def deltas(self) -> list[Delta]:
        return [m.delta for m in self.link.asked if isinstance(m, CommitAttempt | CommitState)]


@pytest.fixture
def case() -> Iterator[Case]:
    case = Case()
    yield case
    case.namespace.gate.set()
    for replicator in case.made:
        asyncio.run(replicator.shipped())


def test_a_cell_commits_what_it_changed(case: Case) -> None:
    case.cell(case.replicator(), 3, Found(delta("x"), notes=("g stays here",)))
    assert case.link.asked == [
        CommitAttempt(
            CellId("c3"),
            3,
            Outcome.DONE,
            msgspec.structs.replace(delta("x"), held=(HELD,), gpu_names=("model",)),
        )
    ]
    assert case.said == ["g stays here\n"]


def test_a_cell_that_changed_nothing_still_closes_with_the_complete_lists(case: Case) -> None:
    case.cell(case.replicator(), 1, None)
    (message,) = case.link.asked
    assert isinstance(message, CommitAttempt)
    assert message.delta == Delta(held=(HELD,), gpu_names=("model",))


def test_a_namespace_that_cannot_be_read_is_told_and_the_attempt_closed(case: Case) -> None:
    case.cell(case.replicator(), 1, ValueError("odd object"))
    assert len(case.link.asked) == 1
    assert case.namespace.forgotten == ["*"]
    assert "ValueError: odd object" in case.said[0]


def test_log_before_reply_waits_for_the_commit(case: Case) -> None:
    case.link.answer = None
    replicator = case.replicator()

    def commit() -> None:
        assert case.link.something.acquire(timeout=TIMEOUT_S)
        case.link.futures[0].set_result(Committed(1))

    thread = threading.Thread(target=commit)
    thread.start()
    case.cell(replicator, 1, Found(delta("x")))
    assert case.link.futures[0].done()
    thread.join()


def test_beyond_the_budget_the_reply_goes_and_a_rejection_is_told_later(case: Case) -> None:
    case.link.answer = None
    case.cell(case.replicator(budget_ms=1), 1, Found(delta("x", "y")))
    (warning,) = case.said
    assert warning.startswith("NotebookOS: x, y could not be kept on other hosts yet")
    case.said.clear()
    case.link.futures[0].set_result(AgentFailure("Refused", "the attempt is closed"))
    case.run_main()
    assert case.namespace.forgotten == ["x", "y"]
    assert case.said == [
        "NotebookOS could not replicate the changes to x, y: the attempt is closed.\n"
    ]


def test_after_reply_waits_for_nothing(case: Case) -> None:
    case.link.answer = None
    case.cell(case.replicator("after-reply"), 1, Found(delta("x")))
    assert not case.link.futures[0].done()
    case.link.futures[0].set_result(Committed(1))
    case.run_main()
    assert case.said == []


def test_a_rejection_that_is_no_fencing_says_that_it_is_tried_again(case: Case) -> None:
    case.link.answer = AgentFailure("NoMajority", "two of three hosts are away")
    case.cell(case.replicator(), 1, Found(delta("x")))
    assert case.namespace.forgotten == ["x"]
    assert "two of three hosts are away. It is tried again" in case.said[0]


def test_a_delta_that_is_too_long_is_told_and_the_attempt_closed_without_it(case: Case) -> None:
    case.cell(case.replicator(), 1, Found(delta("x", value=b"." * MAX_LENGTH)))
    (message,) = case.link.asked
    assert isinstance(message, CommitAttempt)
    assert message.delta.components == ()
    assert case.namespace.forgotten == ["x"]
    assert "the changes to x: the message is too long" in case.said[0]


def test_after_a_failure_of_the_store_everything_is_sent_again(case: Case) -> None:
    case.link.answer = AgentFailure("StorageFull", "no space is left")
    case.cell(case.replicator(), 1, Found(delta("x")))
    assert case.namespace.forgotten == ["*"]
    assert "no space is left. It is tried again" in case.said[0]


def test_what_alone_the_store_did_not_take_is_sent_again_and_told_once(case: Case) -> None:
    replicator = case.replicator()
    case.link.answer = AgentFailure("StorageError", "it is away", names=("x",))
    case.cell(replicator, 1, Found(delta("x", "y")))
    assert case.namespace.forgotten == ["chunks", "x"]
    assert len(case.said) == 1
    assert "the changes to x: it is away. It is tried again when the store works" in case.said[0]
    case.cell(replicator, 2, Found(delta("x", "z")))
    assert len(case.said) == 1
    case.link.answer = AgentFailure("StorageError", "it is away", names=("x", "z"))
    case.cell(replicator, 3, Found(delta("x", "z")))
    assert "x, z: it is away" in case.said[1]
    case.link.answer = Committed(7)
    case.cell(replicator, 4, Found(delta("x", "z")))
    case.link.answer = AgentFailure("StorageError", "it is away", names=("x",))
    case.cell(replicator, 5, Found(delta("x")))
    assert len(case.said) == 3


def test_late_parts_are_pending_until_they_are_committed(case: Case) -> None:
    case.namespace.gate.clear()
    case.namespace.ship["big"] = delta("m", value=b"new")
    replicator = case.replicator()
    case.cell(replicator, 1, Found(delta("x", pending=("m",)), late="big"))
    assert replicator.pending == ("m",)
    case.cell(replicator, 2, Found(delta("y")))
    assert [d.pending for d in case.deltas()] == [("m",), ("m",)]
    case.namespace.gate.set()
    case.run_main()
    last = case.link.asked[-1]
    assert isinstance(last, CommitState)
    # The newest attempt fences it, not the one that made the value: that one is closed.
    assert last.after_attempt == 2
    assert [c.names for c in last.delta.components] == [("m",)]
    assert (last.delta.pending, last.delta.held, replicator.pending) == ((), (HELD,), ())


def test_a_late_part_never_follows_a_newer_value(case: Case) -> None:
    case.namespace.gate.clear()
    case.namespace.ship["big"] = delta("m", "n")
    replicator = case.replicator()
    case.cell(replicator, 1, Found(delta(pending=("m", "n")), late="big"))
    case.cell(replicator, 2, Found(delta("m", value=b"newer")))
    case.cell(replicator, 3, Found(Delta(deleted=("n",))))
    case.namespace.gate.set()
    asyncio.run(replicator.shipped())
    assert not any(isinstance(m, CommitState) for m in case.link.asked)
    assert replicator.pending == ()


def test_of_two_late_values_only_the_newer_is_committed(case: Case) -> None:
    case.namespace.gate.clear()
    case.namespace.ship |= {"old": delta("m", value=b"old"), "new": delta("m", value=b"new")}
    replicator = case.replicator()
    case.cell(replicator, 1, Found(delta(pending=("m",)), late="old"))
    case.cell(replicator, 2, Found(delta(pending=("m",)), late="new"))
    case.namespace.gate.set()
    asyncio.run(replicator.shipped())
    late = [m for m in case.link.asked if isinstance(m, CommitState)]
    assert [m.delta.components[0].skeleton for m in late] == [b"new"]


def test_a_late_part_that_is_out_of_date_is_not_even_shipped(case: Case) -> None:
    replicator = case.replicator()
    case.namespace.gate.clear()
    case.namespace.ship |= {"first": delta("a"), "m": ValueError("must not be asked for")}
    case.cell(replicator, 1, Found(delta(pending=("a",)), late="first"))
    case.cell(replicator, 2, Found(delta(pending=("m",)), late="m"))
    case.cell(replicator, 3, Found(delta("m")))
    case.namespace.gate.set()
    asyncio.run(replicator.shipped())
    case.run_main()
    assert (case.said, case.namespace.forgotten) == ([], [])


def test_cells_wait_when_too_many_copies_are_in_memory(case: Case) -> None:
    replicator = case.replicator("after-reply")
    case.namespace.gate.clear()
    for attempt in range(1, MAX_STAGED + 1):
        case.namespace.ship[attempt] = delta(f"m{attempt}")
        case.cell(replicator, attempt, Found(delta(pending=(f"m{attempt}",)), late=attempt))
    assert len(replicator.pending) == MAX_STAGED
    case.namespace.ship["more"] = delta("more")
    threading.Timer(0.05, case.namespace.gate.set).start()
    case.cell(replicator, 9, Found(delta(pending=("more",)), late="more"))
    assert "m1" not in replicator.pending


def test_all_before_reply_waits_for_late_parts_too(case: Case) -> None:
    case.namespace.ship["big"] = delta("m")
    case.cell(
        case.replicator("all-before-reply", budget_ms=0),
        1,
        Found(delta(pending=("m",)), late="big"),
    )
    assert [type(m) for m in case.link.asked] == [CommitAttempt, CommitState]


def test_late_parts_that_cannot_be_stored_are_named_and_the_next_ones_go_on(case: Case) -> None:
    case.namespace.ship |= {"big": OSError("no space left"), "next": delta("n")}
    replicator = case.replicator()
    case.cell(replicator, 1, Found(delta(pending=("m",)), late="big"))
    case.run_main()
    assert case.namespace.forgotten == ["*"]
    assert "the changes to m: OSError: no space left" in case.said[0]
    assert replicator.pending == ()
    case.cell(replicator, 2, Found(delta(pending=("n",)), late="next"))
    case.run_main()
    assert isinstance(case.link.asked[-1], CommitState)


def test_outside_a_cell_only_changes_are_committed_and_nobody_waits(case: Case) -> None:
    replicator = case.replicator()
    replicator.commit_state(case.said.append)
    assert case.link.asked == []
    case.cell(replicator, 4, None)
    case.namespace.finds = [None, Found(delta("w"))]
    replicator.commit_state(case.said.append)
    assert len(case.link.asked) == 1
    case.link.answer = None
    replicator.commit_state(case.said.append)
    message = case.link.asked[1]
    assert isinstance(message, CommitState)
    assert (message.after_attempt, message.delta.components[0].names) == (4, ("w",))


def test_what_begins_to_hold_the_kernel_outside_a_cell_is_committed_at_once(case: Case) -> None:
    replicator = case.replicator()
    case.cell(replicator, 1, None)
    debugger = HeldName("(debugger)", "Debugger", "attached")
    case.held_here = (debugger,)
    case.namespace.finds = [None, None]
    replicator.commit_state(case.said.append)
    replicator.commit_state(case.said.append)
    assert [d.held for d in case.deltas()] == [(HELD,), (HELD, debugger)]


@pytest.mark.parametrize(
    ("sync", "expected"),
    [("after-reply", 0.0), ("log-before-reply", 0.05), ("all-before-reply", None)],
)
def test_how_long_a_reply_waits(sync: str, expected: float | None) -> None:
    assert ReplyRule(sync=sync, budget_ms=50).wait_s() == expected


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="log-before-reply"):
        ReplyRule(sync="sometimes")
