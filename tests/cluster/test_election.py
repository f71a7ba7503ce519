"""Ballots in every order: one winner or none, and the last executor when it can."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebookos_ext.cluster.election import Ballot, Election
from notebookos_ext.cluster.model import ReplicaId

VOTERS = tuple(ReplicaId(f"k:{n}") for n in (1, 2, 3))
FIRST, SECOND, THIRD = VOTERS


def test_the_first_who_leads_wins_when_nobody_ran_before() -> None:
    election = Election(1, VOTERS, None)
    election.cast(SECOND, Ballot.LEAD)
    assert election.executor == SECOND
    election.cast(FIRST, Ballot.LEAD)
    assert election.executor == SECOND


@pytest.mark.parametrize("order", list(permutations(VOTERS)))
def test_the_last_executor_wins_if_it_leads(order: tuple[ReplicaId, ...]) -> None:
    election = Election(1, VOTERS, THIRD)
    for voter in order:
        election.cast(voter, Ballot.LEAD)
    assert election.executor == THIRD


@pytest.mark.parametrize("order", list(permutations(VOTERS)))
def test_all_yield(order: tuple[ReplicaId, ...]) -> None:
    election = Election(1, VOTERS, THIRD)
    for voter in order:
        assert not election.failed
        election.cast(voter, Ballot.YIELD)
    assert election.failed
    assert election.executor is None


def test_nobody_waits_for_the_dead() -> None:
    election = Election(1, VOTERS, THIRD)
    election.cast(FIRST, Ballot.LEAD)
    assert election.executor is None
    election.lost(THIRD)
    assert election.executor == FIRST


def test_strangers_and_second_thoughts_count_for_nothing() -> None:
    election = Election(1, VOTERS, ReplicaId("k:9"))
    election.cast(ReplicaId("k:9"), Ballot.LEAD)
    assert election.executor is None
    election.cast(FIRST, Ballot.YIELD)
    election.cast(FIRST, Ballot.LEAD)
    assert election.executor is None
    assert not election.failed


@given(
    ballots=st.lists(st.tuples(st.sampled_from(VOTERS), st.sampled_from(Ballot)), max_size=8),
    last=st.sampled_from([None, *VOTERS]),
)
def test_what_is_decided_stays_decided(
    ballots: list[tuple[ReplicaId, Ballot]], last: ReplicaId | None
) -> None:
    election = Election(1, VOTERS, last)
    decided: ReplicaId | None = None
    for voter, ballot in ballots:
        election.cast(voter, ballot)
        assert decided in (None, election.executor)
        decided = election.executor
        assert not (election.failed and decided is not None)
