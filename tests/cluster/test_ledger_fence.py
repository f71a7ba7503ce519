"""LOST for an attempt whose LEAD was proposed but is not committed yet."""

from __future__ import annotations

from notebookos_ext.cluster.entries import ClosedEntry, Delta, LeadEntry, StateEntry
from notebookos_ext.cluster.ledger import Ledger
from notebookos_ext.cluster.model import CellId, Outcome, ReplicaId

R1, R2 = ReplicaId("k:1"), ReplicaId("k:2")


def lead(attempt: int, replica: ReplicaId = R1) -> LeadEntry:
    return LeadEntry(epoch=0, cell=CellId(f"c{attempt}"), attempt=attempt, replica=replica)


def closed(attempt: int, outcome: Outcome, replica: ReplicaId = R1) -> ClosedEntry:
    delta = None if outcome is Outcome.LOST else Delta()
    return ClosedEntry(
        epoch=0,
        cell=CellId(f"c{attempt}"),
        attempt=attempt,
        replica=replica,
        outcome=outcome,
        delta=delta,
    )


def test_a_lead_that_comes_after_its_own_lost_does_not_count() -> None:
    ledger = Ledger()
    assert ledger.accept(closed(1, Outcome.LOST))
    assert not ledger.accept(lead(1))
    assert ledger.lead is None
    assert ledger.accept(lead(2, R2))
    assert ledger.executor == R2


def test_a_fence_leaves_the_open_attempt_and_its_executor_alone() -> None:
    ledger = Ledger()
    assert ledger.accept(lead(1))
    assert ledger.accept(closed(2, Outcome.LOST, R2))
    assert ledger.lead == lead(1)
    assert ledger.accept(closed(1, Outcome.DONE))
    # Late parts of the finished cell still count: nobody else has led since.
    assert ledger.accept(StateEntry(epoch=0, after_attempt=1, replica=R1, delta=Delta()))
    assert not ledger.accept(lead(2, R2))


def test_only_lost_fences() -> None:
    ledger = Ledger()
    assert not ledger.accept(closed(1, Outcome.DONE))
    assert ledger.accept(lead(1))
