"""Which committed entries count; the late fencing is in test_ledger_fence.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebookos_ext.cluster.entries import (
    BallotEntry,
    ClosedEntry,
    Delta,
    EpochEntry,
    LeadEntry,
    LogEntry,
    RestoredEntry,
    StateEntry,
)
from notebookos_ext.cluster.ledger import Ledger
from notebookos_ext.cluster.model import CellId, Outcome, ReplicaId

R1, R2 = ReplicaId("k:1"), ReplicaId("k:2")


def lead(attempt: int, replica: ReplicaId = R1, *, epoch: int = 0, cell: str = "c") -> LeadEntry:
    return LeadEntry(epoch, CellId(cell), attempt, replica)


def closed(
    attempt: int,
    replica: ReplicaId = R1,
    outcome: Outcome = Outcome.DONE,
    *,
    epoch: int = 0,
    cell: str = "c",
) -> ClosedEntry:
    return ClosedEntry(epoch, CellId(cell), attempt, replica, outcome, Delta())


def state(after: int, replica: ReplicaId = R1, *, epoch: int = 0) -> StateEntry:
    return StateEntry(epoch, after, replica, Delta())


def accepted(*entries: LogEntry) -> list[bool]:
    ledger = Ledger()
    return [ledger.accept(entry) for entry in entries]


def test_the_first_lead_of_an_attempt_is_the_one_that_counts() -> None:
    ledger = Ledger()
    assert ledger.accept(lead(1, R1))
    assert not ledger.accept(lead(1, R2))
    assert not ledger.accept(lead(2, R2))
    assert ledger.executor == R1


def ballot(attempt: int, replica: ReplicaId = R1, *, epoch: int = 0) -> BallotEntry:
    return BallotEntry(epoch, CellId("c"), attempt, replica, lead=True)


def test_ballots_count_until_somebody_leads_and_change_nothing() -> None:
    ledger = Ledger()
    before = ledger.state
    assert ledger.accept(ballot(1, R1))
    assert ledger.accept(ballot(1, R2))
    assert ledger.state == before
    assert ledger.accept(lead(1, R2))
    assert not ledger.accept(ballot(1, R1))
    assert not ledger.accept(ballot(2, R1)), "an attempt is still open"
    assert ledger.accept(closed(1, R2))
    assert not ledger.accept(ballot(1, R1)), "its attempt is over"
    assert ledger.accept(ballot(2, R1))
    assert not ledger.accept(ballot(2, R1, epoch=1))


def test_an_attempt_that_was_given_up_needs_no_ballots() -> None:
    assert accepted(closed(3, outcome=Outcome.LOST), ballot(3), ballot(4)) == [True, False, True]


def test_one_entry_closes_an_attempt() -> None:
    assert accepted(lead(1), closed(1), closed(1, outcome=Outcome.LOST)) == [True, True, False]
    assert accepted(lead(1), closed(1, outcome=Outcome.LOST), closed(1)) == [True, True, False]


@pytest.mark.parametrize(
    "foreign", [closed(2), closed(1, R2), closed(1, cell="other"), closed(1, epoch=1)]
)
def test_what_is_not_of_the_open_attempt_does_not_close_it(foreign: ClosedEntry) -> None:
    ledger = Ledger()
    ledger.accept(lead(1))
    assert not ledger.accept(foreign)
    assert ledger.lead == lead(1)


def test_attempts_go_upwards() -> None:
    assert accepted(lead(5), closed(5), lead(5), lead(4), lead(6)) == [
        True,
        True,
        False,
        False,
        True,
    ]


def test_state_counts_until_somebody_else_leads() -> None:
    ledger = Ledger()
    assert not ledger.accept(state(0))
    ledger.accept(lead(1, R1))
    assert ledger.accept(state(1, R1))
    assert not ledger.accept(state(1, R2))
    ledger.accept(closed(1, R1))
    assert ledger.accept(state(1, R1))
    ledger.accept(lead(2, R2))
    assert not ledger.accept(state(1, R1))


def test_a_new_epoch_ends_everything_before() -> None:
    ledger = Ledger()
    ledger.accept(lead(3))
    assert ledger.accept(EpochEntry(1))
    assert not ledger.accept(EpochEntry(1))
    assert (ledger.lead, ledger.executor) == (None, None)
    assert not ledger.accept(closed(3))
    assert not ledger.accept(state(3))
    assert not ledger.accept(lead(4))
    # Numbers go on over epochs, so that an old attempt can never be taken for a new one.
    assert not ledger.accept(lead(3, epoch=1))
    assert ledger.accept(lead(4, epoch=1))


small = st.integers(min_value=0, max_value=3)
replicas = st.sampled_from([R1, R2])
entries = st.one_of(
    st.builds(EpochEntry, small),
    st.builds(lambda a, r, e: lead(a, r, epoch=e), small, replicas, small),
    st.builds(
        lambda a, r, o, e: closed(a, r, o, epoch=e),
        small,
        replicas,
        st.sampled_from(list(Outcome)),
        small,
    ),
    st.builds(lambda a, r, e: state(a, r, epoch=e), small, replicas, small),
)


@given(st.lists(entries, max_size=30))
def test_whatever_is_committed_attempts_never_overlap(log: list[LogEntry]) -> None:
    ledger, twin = Ledger(), Ledger()
    is_open: LeadEntry | None = None
    numbers = []
    for entry in log:
        counts = ledger.accept(entry)
        assert twin.accept(entry) == counts
        if not counts:
            continue
        if isinstance(entry, EpochEntry):
            is_open = None
        elif isinstance(entry, LeadEntry):
            assert is_open is None
            is_open = entry
            numbers.append(entry.attempt)
        elif isinstance(entry, ClosedEntry) and entry.outcome is not Outcome.LOST:
            assert is_open is not None
            assert (entry.attempt, entry.replica) == (is_open.attempt, is_open.replica)
            is_open = None
        elif isinstance(entry, ClosedEntry) and is_open is not None:
            is_open = None if entry.attempt == is_open.attempt else is_open
    assert numbers == sorted(set(numbers))


def test_a_log_may_begin_with_a_state_in_pieces_and_with_nothing_before_it() -> None:
    def piece(part: int) -> RestoredEntry:
        return RestoredEntry(part=part, parts=2, data=b"")

    assert accepted(piece(1), piece(0), piece(0), piece(1)) == [False, True, False, True]
    assert accepted(piece(0), lead(1), piece(1)) == [True, True, False]
    assert accepted(EpochEntry(1), piece(0)) == [True, False]
    former = Ledger()
    assert all(former.accept(entry) for entry in (EpochEntry(3), lead(7, epoch=3)))
    ledger = Ledger()
    assert ledger.accept(piece(0))
    assert ledger.accept(piece(1))
    ledger.begin_with(former.state)
    assert (ledger.epoch, ledger.lead, ledger.executor) == (3, None, None)
    assert not ledger.accept(piece(1)), "said twice"
    assert not ledger.accept(lead(7, epoch=3))
    assert not ledger.accept(state(7, epoch=3)), "its executor is gone"
    assert ledger.accept(lead(8, epoch=3))
    again = Ledger()
    again.restore(ledger.state)
    assert again.state == ledger.state
