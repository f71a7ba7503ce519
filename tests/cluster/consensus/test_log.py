"""The marks of a member's log, above all when entries are replaced while others are being saved."""

from __future__ import annotations

import pytest

from notebookos_ext.cluster.consensus.log import Log
from notebookos_ext.cluster.consensus.membership import Membership
from notebookos_ext.cluster.consensus.messages import Entry
from notebookos_ext.cluster.consensus.progress import (
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_MESSAGES_MAX,
    Progress,
)
from notebookos_ext.cluster.consensus.quorum import agreed, majority
from notebookos_ext.errors import CorruptRecord


def entries(*terms: int, first: int = 1) -> list[Entry]:
    return [
        Entry(term, index, f"{term}-{index}", b"x") for index, term in enumerate(terms, start=first)
    ]


def indices(log: Log) -> list[tuple[int, int]]:
    return [(entry.term, entry.index) for entry in log.unsaved()]


def test_what_was_on_disk_is_not_saved_again() -> None:
    log = Log(entries(1, 1, 2))
    assert (log.durable_index, log.last_index, log.last_term) == (3, 3, 2)
    assert log.unsaved() == ()


def test_a_replaced_entry_is_saved_again() -> None:
    log = Log(entries(1, 1, 1))
    log.merge(entries(2, first=2))
    assert indices(log) == [(2, 2)]
    assert log.durable_index == 1, "what follows on disk is another leader's"


def test_entries_replaced_before_they_were_handed_out_are_never_saved() -> None:
    log = Log(entries(1))
    log.merge(entries(1, 1, 1, first=2))
    log.merge(entries(2, 2, first=3))
    assert indices(log) == [(1, 2), (2, 3), (2, 4)]
    log.merge(entries(3, first=2))
    assert indices(log) == [(3, 2)]
    deeper = Log(entries(1, 1, 1))
    deeper.merge(entries(1, first=4))
    deeper.merge(entries(2, 2, first=2))
    assert indices(deeper) == [(2, 2), (2, 3)]


def test_a_save_that_was_overtaken_counts_for_nothing() -> None:
    log = Log(entries(1))
    log.merge(entries(1, 1, first=2))
    log.mark_handed_out()
    log.merge(entries(2, 2, first=2))
    log.mark_durable(3, 1)
    assert log.durable_index == 1
    assert indices(log) == [(2, 2), (2, 3)]
    log.mark_handed_out()
    log.mark_durable(3, 2)
    assert log.durable_index == 3
    log.mark_durable(2, 2)
    assert log.durable_index == 3


def test_only_what_is_committed_and_on_disk_is_delivered_and_once() -> None:
    log = Log()
    log.merge(entries(1, 1, 1))
    log.commit_to(2)
    assert log.take_deliverable() == ()
    log.mark_durable(1, 1)
    assert [entry.index for entry in log.take_deliverable()] == [1]
    log.mark_durable(3, 1)
    assert [entry.index for entry in log.take_deliverable()] == [2]
    assert log.take_deliverable() == ()
    assert not log.commit_to(1)
    assert log.commit_index == 2


def test_an_old_message_changes_nothing() -> None:
    log = Log(entries(1, 1, 2, 2))
    log.merge(entries(1, 1))
    log.merge([])
    assert log.last_index == 4
    assert log.unsaved() == ()


def test_ids_follow_their_entries() -> None:
    log = Log(entries(1, 1, 1))
    assert log.index_of("1-3") == 3
    log.merge(entries(2, first=2))
    assert [log.index_of(name) for name in ("1-1", "1-2", "1-3", "2-2")] == [1, None, None, 2]


@pytest.mark.parametrize(
    ("index", "term", "meeting"),
    [(9, 9, 6), (6, 3, 6), (5, 2, 4), (4, 1, 2), (2, 0, 0), (0, 0, 0), (6, 2, 4)],
)
def test_where_logs_can_meet(index: int, term: int, meeting: int) -> None:
    log = Log(entries(1, 1, 2, 2, 3, 3))
    assert log.last_index_not_after(index, term) == meeting


def test_a_batch_fits_or_is_one() -> None:
    log = Log([Entry(1, index, f"{index}", bytes(10)) for index in range(1, 6)])
    assert [entry.index for entry in log.batch(2, 25)] == [2, 3]
    assert [entry.index for entry in log.batch(5, 1)] == [5]
    assert log.batch(6, 100) == ()


def test_holes_and_lost_entries_are_refused() -> None:
    with pytest.raises(CorruptRecord, match="cannot follow"):
        Log(entries(1, first=2))
    log = Log(entries(1, 1))
    with pytest.raises(CorruptRecord, match="ends at 2"):
        log.commit_to(3)
    log.commit_to(2)
    with pytest.raises(CorruptRecord, match="2 are committed"):
        log.merge(entries(2, first=2))


@pytest.mark.parametrize(("members", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4)])
def test_a_majority_is_more_than_half(members: int, needed: int) -> None:
    assert majority(members) == needed
    reached = [7] * needed + [0] * (members - needed)
    assert agreed(reached) == 7
    assert agreed([*reached[1:], 0]) == 0


def test_a_probe_goes_alone_and_a_stream_does_not() -> None:
    progress = Progress(next_index=5)
    assert progress.may_send
    progress.sent(5, 1)
    assert not progress.may_send
    assert not progress.refused(9, 3), "an answer to another question"
    assert progress.refused(4, 2)
    assert (progress.next_index, progress.may_send) == (3, True)
    progress.sent(5, 1)
    assert progress.accepted(5)
    assert (progress.probing, progress.match_index, progress.next_index) == (False, 5, 6)
    for last in range(6, 6 + IN_FLIGHT_MESSAGES_MAX):
        assert progress.may_send
        progress.sent(last, 1)
    assert not progress.may_send
    assert not progress.accepted(5), "known already"
    progress.accepted(6)
    assert progress.may_send


def test_bytes_in_flight_are_bounded_too() -> None:
    progress = Progress(next_index=1)
    progress.accepted(0)
    progress.sent(1, IN_FLIGHT_BYTES_MAX)
    assert not progress.may_send
    progress.accepted(1)
    assert progress.may_send


def test_a_refusal_never_goes_back_before_what_matched() -> None:
    progress = Progress(next_index=9)
    progress.accepted(8)
    progress.sent(9, 1)
    assert not progress.refused(7, 0), "older than what was verified since"
    assert progress.refused(9, 2)
    assert progress.next_index == 9


def test_a_lost_connection_loses_what_was_under_way() -> None:
    progress = Progress(next_index=5)
    progress.disconnected()
    assert progress.next_index == 5, "the guess is as good as before"
    progress.accepted(4)
    progress.sent(7, 1)
    progress.disconnected()
    assert (progress.next_index, progress.probing, progress.may_send) == (5, True, True)


def test_what_founds_another_group_stands_for_the_whole_log() -> None:
    log = Log(entries(1, 1, 2, 2), founders=Membership(("a", "b", "c")), identities_max=3)
    log.commit_to(2)
    founding = log.founding("a")
    assert (founding.index, founding.term) == (4, 2), "committed or not"
    assert founding.membership == Membership(("a",))
    assert founding.identities == (("1-2", 2), ("2-3", 3), ("2-4", 4))
    assert founding.horizon == 1, "what it forgets is told"
    other = Log(snapshot=founding)
    assert other.membership == other.committed_membership == Membership(("a",))
    assert (other.last_index, other.last_term, other.index_of("2-4")) == (4, 2, 4)
