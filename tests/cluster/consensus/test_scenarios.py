"""Directed scenarios: each defect found in other implementations, played against our core.

The names S1 … L5 and P3, P4 are those of docs/consensus.md.
"""

from __future__ import annotations

import pytest
from raft_group import Group

from notebookos_ext.cluster.consensus import leading
from notebookos_ext.cluster.consensus.messages import (
    Append,
    AppendAnswer,
    Entry,
    HardState,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    Propose,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
)
from notebookos_ext.cluster.consensus.node import Node
from notebookos_ext.cluster.consensus.ready import Proposed, Role
from notebookos_ext.errors import CorruptRecord, InvalidRequest


def is_real(message: Message) -> bool:
    return not getattr(message, "pre", False)


def stand(group: Group, name: str, *, through: str = "c") -> list[Message]:
    """Let `name` become a candidate by the pre-votes of `through` alone.

    Its real vote requests are returned instead of sent, so that two can stand in one term.
    """
    group.campaign(name)
    for request in group.take(VoteRequest, sender=name):
        if request.to in through:
            group.deliver(request)
    for answer in group.take(VoteAnswer, to=name):
        group.deliver(answer)
    assert group.node(name).role is Role.CANDIDATE
    return group.take(VoteRequest, sender=name, where=is_real)


def test_one_member_elects_itself_and_commits() -> None:
    group = Group("a")
    group.elect("a")
    group.propose("a", "x")
    assert group.payloads("a") == ["x"]


@pytest.mark.parametrize("names", ["abc", "abcde"])
def test_a_proposal_reaches_every_member(names: str) -> None:
    group = Group(names)
    group.elect("a")
    assert group.propose("a", "x") is Proposed.APPENDED
    assert group.propose("b", "y") is Proposed.FORWARDED
    group.settle()
    assert all(group.payloads(name) == ["x", "y"] for name in names)


def test_s1_no_second_vote_after_a_restart() -> None:
    group = Group()
    requests_a, requests_b = stand(group, "a"), stand(group, "b")
    assert group.node("a").term == group.node("b").term == 1
    to_c = [m for m in requests_a if m.to == "c"]
    group.deliver(to_c[0])
    (granted,) = group.take(VoteAnswer, to="a")
    assert granted.granted
    group.restart("c")
    group.deliver(next(m for m in requests_b if m.to == "c"))
    (refused,) = group.take(VoteAnswer, to="b")
    assert not refused.granted
    group.deliver(granted)
    group.deliver(refused)
    assert group.leaders() == ["a"]


def test_s1_the_same_candidate_gets_the_same_vote_again_after_a_restart() -> None:
    group = Group()
    request = next(m for m in stand(group, "a") if m.to == "c")
    group.deliver(request)
    group.take()
    group.restart("c")
    group.deliver(request)
    (answer,) = group.take(VoteAnswer)
    assert answer.granted


def test_s1_a_vote_is_saved_also_when_its_term_is_not_new() -> None:
    group = Group()
    requests_a = stand(group, "a")
    # It learns of the term before anybody asks for its vote in it.
    group.deliver(VoteAnswer("b", "c", 1, pre=False, granted=False))
    assert group.members["c"].disk.hard_state == HardState(1, "")
    group.deliver(next(m for m in requests_a if m.to == "c"))
    assert group.members["c"].disk.hard_state == HardState(1, "a")


def test_s2_no_second_vote_without_a_restart() -> None:
    group = Group("abcde")
    requests_a, requests_b = stand(group, "a", through="cd"), stand(group, "b", through="cd")
    for to in "cd":
        group.deliver(next(m for m in requests_a if m.to == to))
    group.settle()
    assert group.leaders() == ["a"]
    # b, a candidate of the same term, hears the leader and follows; it keeps its vote.
    assert group.node("b").role is Role.FOLLOWER
    assert group.node("b").vote == "b"
    for to in "cde":
        group.deliver(next(m for m in requests_b if m.to == to))
    assert not any(m.granted for m in group.take(VoteAnswer, to="b"))


def test_s3_a_vote_of_an_old_term_does_not_count() -> None:
    group = Group()
    for request in stand(group, "a"):
        group.deliver(request)
    late = group.take(VoteAnswer, to="a")
    assert all(m.granted and m.term == 1 for m in late)
    # a gives up term 1 and stands for term 2 while those votes are still on their way.
    group.tick("a", 10)
    for request in group.take(VoteRequest, sender="a", where=lambda m: m.pre):
        group.deliver(request)
    for answer in group.take(VoteAnswer, to="a"):
        group.deliver(answer)
    assert (group.node("a").role, group.node("a").term) == (Role.CANDIDATE, 2)
    group.take()
    for answer in late:
        group.deliver(answer)
    assert group.node("a").role is Role.CANDIDATE


def test_s4_a_vote_delivered_twice_counts_once() -> None:
    group = Group("abcde")
    requests = stand(group, "a", through="cd")
    group.deliver(requests[0])
    (answer,) = group.take(VoteAnswer, to="a")
    for _ in range(3):
        group.deliver(answer)
    assert group.node("a").role is Role.CANDIDATE


def test_a_pre_vote_is_no_vote() -> None:
    group = Group()
    group.campaign("a")
    for request in group.take(VoteRequest):
        group.deliver(request)
    promises = group.take(VoteAnswer)
    for answer in promises:
        group.deliver(answer)
    assert group.node("a").role is Role.CANDIDATE
    for answer in promises:
        group.deliver(answer)
    assert group.node("a").role is Role.CANDIDATE
    assert {group.node(name).vote for name in "bc"} == {""}


def test_own_vote_counts_only_when_it_is_on_disk() -> None:
    group = Group()
    group.campaign("a")
    for request in group.take(VoteRequest):
        group.deliver(request)
    node = group.node("a")
    node.step(group.take(VoteAnswer)[0])
    assert node.role is Role.CANDIDATE
    assert group.begin_save("a")
    # However b's vote got here, while a's own is not on disk there is only one.
    group.invariants.vote_given("b", 1, "a")
    node.step(VoteAnswer("b", "a", 1, pre=False, granted=True))
    assert node.role is Role.CANDIDATE
    assert group.take(VoteRequest, where=is_real) == []
    group.finish_save("a")
    assert node.role is Role.LEADER


def test_own_vote_does_not_count_with_an_earlier_save() -> None:
    """A member that stands while it still saves what it was sent before has not saved its vote."""
    group = Group()
    group.elect("b")
    group.propose("b", "x")
    (append,) = group.take(Append, to="a")
    node = group.node("a")
    node.step(append)
    assert group.begin_save("a")
    node.step(TimeoutNow("b", "a", 1))
    assert node.role is Role.CANDIDATE
    node.step(VoteAnswer("c", "a", 2, pre=False, granted=True))
    group.finish_save("a")
    assert node.role is Role.CANDIDATE
    group.invariants.vote_given("c", 2, "a")
    group.pump("a")
    assert node.role is Role.LEADER


def test_a_vote_may_leave_when_a_later_term_is_saved_in_its_place() -> None:
    """The disk never held the vote, but it keeps its member from any other one in that term."""
    group = Group()
    group.elect("c")
    group.propose("c", "x")
    (append,) = group.take(Append, to="b")
    voter = group.node("b")
    voter.step(append)
    # While b's disk is busy, a wins its vote and c the next term.
    assert group.begin_save("b")
    voter.step(VoteRequest("a", "b", 2, 2, 1, pre=False, transfer=True))
    voter.step(VoteRequest("c", "b", 3, 2, 1, pre=False, transfer=True))
    group.finish_save("b")
    group.pump("b")
    assert group.members["b"].disk.hard_state == HardState(3, "c")
    answers = {(m.to, m.term, m.granted) for m in group.take(VoteAnswer, sender="b")}
    assert answers == {("a", 2, True), ("c", 3, True)}


def test_a_vote_that_leaves_before_the_disk_rules_out_another_is_noticed() -> None:
    group = Group()
    early = VoteAnswer("b", "a", 1, pre=False, granted=True)
    with pytest.raises(AssertionError, match="b votes for a in term 1, but its disk has"):
        group.send([early])


def test_own_entries_count_only_when_they_are_on_disk() -> None:
    group = Group()
    group.elect("a")
    group.cut = {("a", "c"), ("c", "a")}
    group.node("a").propose("x", b"x")
    group.begin_save("a")
    for append in group.take(Append):
        group.deliver(append)
    for answer in group.take(AppendAnswer):
        group.node("a").step(answer)
    assert group.node("a").log.commit_index == 1, "b alone has it"
    group.finish_save("a")
    assert group.node("a").log.commit_index == 2


def test_a_follower_answers_only_what_is_on_disk() -> None:
    group = Group()
    group.elect("a")
    group.propose("a", "x")
    (append,) = group.take(Append, to="b")
    group.node("b").step(append)
    group.begin_save("b")
    assert group.take(AppendAnswer) == []
    group.finish_save("b", crash_before_sending=True)
    assert group.take(AppendAnswer) == []
    assert group.on_disk("b")[-1] == (1, "x")


def test_s5_two_candidates_cannot_both_commit_at_one_index() -> None:
    group = Group()
    requests_a, requests_b = stand(group, "a"), stand(group, "b")
    group.deliver(next(m for m in requests_a if m.to == "c"))
    group.restart("c")
    group.deliver(next(m for m in requests_b if m.to == "c"))
    group.settle()
    for name in group.leaders():
        group.propose(name, f"from-{name}")
    group.settle()
    assert len(group.leaders()) == 1


def late_appends(group: Group) -> tuple[list[Message], list[Message]]:
    """Everything that b was sent while `x` and `y` were committed, in order and kept for later."""
    group.elect("a")
    kept: list[Message] = []
    for text in ("x", "y"):
        group.propose("a", text)
        kept += [m for m in group.network if m.to == "b"]
        group.settle()
    return [m for m in kept if isinstance(m, Append)], [m for m in kept if isinstance(m, Heartbeat)]


def test_s6_s7_p3_late_messages_erase_nothing() -> None:
    group = Group()
    appends, _ = late_appends(group)
    for name in ("p", "q"):
        group.propose("a", name)
    group.settle()
    before = group.on_disk("b")
    empty = Append("a", "b", 1, 1, 1, (), 1)
    for message in [*reversed(appends), empty, Heartbeat("a", "b", 1, 1, 0)]:
        group.deliver(message)
    assert group.on_disk("b") == before
    for answer in group.take(AppendAnswer):
        group.deliver(answer)
    assert group.node("a").log.commit_index == 5


def test_s8_a_follower_acknowledges_only_what_was_verified() -> None:
    """Its longer, uncommitted tail must not be counted as the new leader's entries."""
    group = Group()
    group.elect("a")
    group.isolate("a")
    for text in ("lost1", "lost2", "lost3"):
        group.propose("a", text)
    group.lose("a", seen_by="bc")
    group.settle()
    assert group.node("b").role is Role.LEADER
    group.heal()
    term = group.node("b").term
    group.deliver(Append("b", "a", term, 1, 1, (), 1))
    (answer,) = group.take(AppendAnswer, sender="a")
    assert (answer.accepted, answer.index) == (True, 1)
    assert len(group.on_disk("a")) == 4
    # Nor may a commit index that is beyond what the message verified touch that tail.
    group.deliver(Append("b", "a", term, 1, 1, (), 4))
    assert group.node("a").log.commit_index == 1


def test_an_acknowledgement_of_an_old_term_does_not_count() -> None:
    group = Group()
    group.elect("a")
    for target in ("b", "a"):
        group.node(group.leaders()[0]).transfer(target)
        group.pump(group.leaders()[0])
        group.settle()
    assert (group.node("a").role, group.node("a").term) == (Role.LEADER, 3)
    group.isolate("a")
    group.propose("a", "x")
    group.deliver(AppendAnswer("b", "a", 1, accepted=True, index=4))
    assert (group.node("a").role, group.node("a").log.commit_index) == (Role.LEADER, 3)


def test_a_leader_of_an_old_term_is_told_and_not_followed() -> None:
    group = Group()
    group.elect("a")
    group.isolate("a")
    group.lose("a", seen_by="bc")
    group.settle()
    group.heal()
    before = group.on_disk("c")
    for late in (
        Append("a", "c", 1, 1, 1, (Entry(1, 2, "late", b"late"),), 2),
        Heartbeat("a", "c", 1, 1, 0),
    ):
        group.deliver(late)
        (answer,) = group.take(AppendAnswer, sender="c")
        assert (answer.accepted, answer.term) == (False, 2)
    assert group.on_disk("c") == before
    assert group.node("c").leader == "b"
    group.deliver(answer)
    assert group.node("a").role is Role.FOLLOWER
    # Any answer of a newer term ends its leading, whatever else it says.
    group.deliver(HeartbeatAnswer("c", "b", 7, 0))
    assert (group.node("b").role, group.node("b").term) == (Role.FOLLOWER, 7)


def test_s9_l3_each_of_many_concurrent_proposals_has_its_own_index() -> None:
    group = Group()
    group.elect("a")
    texts = [f"p{n}" for n in range(20)]
    for text in texts:
        group.node("a").propose(text, text.encode())
    group.pump("a")
    # One message for all of them.
    assert len(group.take(Append, to="b")[0].entries) == 20
    group.settle()
    group.tick_all(4)
    assert [group.index_by_id[text] for text in texts] == list(range(2, 22))


def test_s15_half_of_a_group_is_no_majority() -> None:
    group = Group("abcd")
    group.isolate("a", "b")
    for name in "abcd":
        group.campaign(name)
    for _ in range(100):
        group.tick_all()
    assert group.leaders() == []
    pair = Group("ab")
    pair.isolate("a")
    pair.campaign("a")
    pair.tick_all(60)
    assert pair.leaders() == []


def test_s19_a_deposed_leader_answers_no_read() -> None:
    group = Group()
    group.elect("a")
    group.isolate("a")
    group.lose("a", seen_by="bc")
    group.settle()
    (new,) = [name for name in group.leaders() if name != "a"]
    group.propose(new, "newer")
    group.settle()
    group.read("a", "r")
    group.tick_all(3)
    assert "r" not in group.read_results


def test_l1_a_new_leader_commits_what_the_old_one_had_replicated() -> None:
    group = Group()
    group.elect("a")
    group.propose("a", "x")
    for append in group.take(Append):
        group.deliver(append)
    group.take()
    group.crash("a")
    group.lose("a")
    group.settle()
    group.tick_all(5)
    (leader,) = group.leaders()
    assert group.payloads(leader) == ["x"]
    group.propose(leader, "y")
    group.settle()
    assert group.payloads("b") == group.payloads("c") == ["x", "y"]


def test_l2_a_group_that_restarts_as_a_whole_goes_on() -> None:
    group = Group()
    group.elect("a")
    for n in range(12):
        group.propose("a", f"p{n}")
    group.settle()
    for name in "abc":
        group.restart(name)
    group.tick_all(40)
    (leader,) = group.leaders()
    group.propose(leader, "after")
    group.settle()
    for name in "abc":
        assert group.payloads(name) == [*(f"p{n}" for n in range(12)), "after"]


def test_l4_a_proposal_in_flight_survives_a_change_of_leader_once() -> None:
    group = Group()
    group.elect("a")
    group.isolate("a")
    group.propose("a", "x")
    group.lose("a", seen_by="bc")
    group.settle()
    (new,) = [name for name in group.leaders() if name != "a"]
    assert group.node(new).propose("x", b"x") is Proposed.APPENDED
    group.pump(new)
    group.heal()
    group.find("a")
    group.settle()
    group.tick_all(4)
    # a retries because it cannot know; nothing new is appended.
    assert group.propose("a", "x") is Proposed.COMMITTED
    assert group.payloads("a") == ["x"]


def test_a_retried_proposal_is_appended_once_wherever_it_is_retried() -> None:
    group = Group()
    group.elect("a")
    group.propose("b", "x")
    (first,) = group.take(Propose)
    group.propose("b", "x")
    group.propose("a", "x")
    group.deliver(first)
    group.settle()
    group.deliver(first)
    group.settle()
    group.tick_all(3)
    assert group.payloads("c") == ["x"]


def test_a_proposal_that_was_overwritten_can_be_proposed_again() -> None:
    group = Group()
    group.elect("a")
    group.isolate("a")
    for text in ("p1", "p2"):
        group.propose("a", text)
    group.lose("a", seen_by="bc")
    group.settle()
    for text in ("q1", "q2", "q3"):
        group.propose("b", text)
    group.settle()
    group.heal()
    group.find("a")
    group.settle()
    # a forgot its own entries, so it must not take their old places for theirs.
    assert group.propose("a", "p2") is Proposed.FORWARDED
    group.settle()
    group.node("b").transfer("a")
    group.pump("b")
    group.settle()
    assert group.propose("a", "p1") is Proposed.APPENDED
    group.settle()
    assert group.payloads("c") == ["q1", "q2", "q3", "p2", "p1"]


@pytest.mark.parametrize(
    ("mine", "theirs", "granted"),
    [
        ([(1, 1), (1, 2)], [(1, 1)], False),
        ([(1, 1)], [(1, 1), (1, 2)], True),
        ([(1, 1)], [(1, 1)], True),
        ([(1, 1), (2, 2)], [(1, 1), (1, 2), (1, 3)], False),
        ([(1, 1), (1, 2), (1, 3)], [(1, 1), (2, 2)], True),
    ],
)
@pytest.mark.parametrize("pre", [True, False])
def test_only_an_up_to_date_log_gets_a_vote(
    mine: list[tuple[int, int]], theirs: list[tuple[int, int]], granted: bool, pre: bool
) -> None:
    group = Group()
    group.members["a"].disk.entries = [Entry(t, i, f"{t}-{i}", b"x") for t, i in mine]
    group.members["a"].disk.hard_state = HardState(2, "")
    group.restart("a")
    last_term, last_index = theirs[-1]
    group.deliver(VoteRequest("b", "a", 3, last_index, last_term, pre=pre, transfer=False))
    (answer,) = group.take(VoteAnswer)
    assert (answer.granted, group.node("a").term) == (granted, 2 if pre else 3)


def test_l5_a_follower_that_sees_a_newer_term_votes_in_it() -> None:
    group = Group()
    group.elect("a")
    group.crash("a")
    group.lose("a")
    group.take()
    group.deliver(VoteRequest("b", "c", 7, last_index=9, last_term=6, pre=False, transfer=False))
    (answer,) = group.take(VoteAnswer)
    assert answer.granted
    assert group.members["c"].disk.hard_state == HardState(7, "b")


def test_l6_a_leader_that_sees_a_newer_term_answers_and_follows() -> None:
    group = Group()
    group.elect("a")
    group.deliver(VoteRequest("b", "a", 5, last_index=9, last_term=4, pre=False, transfer=True))
    (answer,) = group.take(VoteAnswer)
    assert answer.granted
    assert group.node("a").role is Role.FOLLOWER


def test_a_member_with_a_higher_term_is_taken_back() -> None:
    group = Group()
    group.elect("a")
    group.isolate("c")
    # c stood for real, for instance after a handover, and nobody answered.
    group.node("c").step(TimeoutNow("a", "c", 1))
    group.pump("c")
    group.heal()
    assert group.node("c").term == 2
    group.tick_all(40)
    (leader,) = group.leaders()
    group.propose(leader, "x")
    group.settle()
    assert [group.payloads(name) for name in "abc"] == [["x"]] * 3


def hand_over(group: Group, leader: str, to: str) -> None:
    """A new leader first guesses that everybody has what it has."""
    group.node(leader).transfer(to)
    group.pump(leader)
    group.settle()
    assert to in group.leaders()


def conflicting_tail(group: Group, entries: int, payload: str) -> None:
    """A leads with three entries nobody else has; b leads afterwards and commits a long backlog."""
    group.elect("a")
    group.isolate("a")
    for n in range(3):
        group.propose("a", f"lost{n}")
    group.lose("a", seen_by="bc")
    group.settle()
    for n in range(entries):
        group.node("b").propose(f"{n}", payload.encode())
    group.pump("b")
    group.settle()
    hand_over(group, "b", "c")


def test_p4_a_conflicting_tail_and_a_long_backlog_are_repaired() -> None:
    group = Group()
    conflicting_tail(group, 400, "x" * 2_000)
    group.heal()
    group.find("a")
    probes = 0
    for _ in range(1_000):
        if not group.network:
            break
        message = group.network.pop(0)
        probes += isinstance(message, AppendAnswer) and not message.accepted
        group.deliver(message)
    group.tick_all(3)
    assert len(group.payloads("a")) == 400
    assert probes <= 3


def test_fast_back_up_skips_whole_terms() -> None:
    """C has a hundred entries of a term that the leader never saw; that costs one refusal."""
    group = Group()
    group.elect("a")
    group.isolate("a")
    for n in range(100):
        group.propose("a", f"lost{n}")
    group.crash("a")
    group.heal()
    group.lose("a")
    group.settle()
    (leader,) = group.leaders()
    for n in range(100):
        group.propose(leader, f"kept{n}")
    group.settle()
    hand_over(group, leader, "c" if leader == "b" else "b")
    group.start("a")
    refusals = 0
    group.find("a")
    for _ in range(200):
        if not group.network:
            break
        message = group.network.pop(0)
        refusals += isinstance(message, AppendAnswer) and not message.accepted
        group.deliver(message)
    group.tick_all(3)
    assert group.payloads("a") == [f"kept{n}" for n in range(100)]
    assert refusals <= 2


def test_fast_back_up_skips_the_followers_own_terms_too() -> None:
    """One member led term 2 and wrote a hundred entries that nobody else got."""
    group = Group()
    for name in group.names:
        disk = group.members[name].disk
        term = 2 if name == "c" else 1
        disk.entries = [Entry(1, 1, "first", b"first")]
        disk.entries += [Entry(term, n, f"{term}-{n}", b"x") for n in range(2, 102)]
        disk.hard_state = HardState(2, "c")
        group.restart(name)
    group.isolate("c")
    group.elect("a")
    group.heal()
    group.tick("a", group.timing.heartbeat_ticks)
    refusals = 0
    while group.network:
        message = group.network.pop(0)
        refusals += isinstance(message, AppendAnswer) and not message.accepted
        group.deliver(message)
    assert group.on_disk("c") == group.on_disk("a")
    assert refusals <= 2


def test_figure_8_entries_of_old_terms_are_not_committed_by_counting() -> None:
    """Thesis figure 3.7: the entry of term 2 is on three of five members and must not count."""
    group = Group("abcde")
    old, newer = Entry(2, 2, "old", b"old"), Entry(3, 2, "newer", b"newer")
    first = Entry(1, 1, "first", b"first")
    for name in group.names:
        disk = group.members[name].disk
        disk.entries = [first, *({"a": [old], "b": [old], "e": [newer]}.get(name, []))]
        disk.hard_state = HardState(3, "e" if name in "cde" else "")
        group.restart(name)
    for name in "cde":
        group.invariants.vote_given(name, 3, "e")
    group.crash("e")
    # a leads term 4, but only old entries reach c.
    group.isolate("a", "b", "c")
    group.campaign("a")
    while "a" not in group.leaders():
        group.deliver(group.network.pop(0))
    term = group.node("a").term
    assert term == 4
    group.take()
    group.deliver(Append("a", "c", term, 1, 1, (old,), 0))
    group.deliver(Append("a", "b", term, 1, 1, (old,), 0))
    for answer in group.take(AppendAnswer):
        group.deliver(answer)
    assert [group.on_disk(name)[1] for name in "abc"] == [(2, "old")] * 3
    assert group.node("a").log.commit_index == 0
    # So e may still win with the entry of term 3, and overwrite the one of term 2 everywhere.
    group.crash("a")
    group.take()
    group.heal()
    group.start("e")
    for name in "cd":
        group.node(name).member_lost("a")
    group.campaign("e")
    group.settle()
    # That taught it the present term.
    group.elect("e")
    group.tick_all(3)
    assert group.payloads("c") == ["first", "newer"]


def test_a_term_opens_with_an_entry_of_its_own() -> None:
    group = Group()
    group.elect("a")
    opening = group.node("a").log.entries(1, 1)[0]
    assert (opening.term, opening.is_proposal, opening.payload) == (1, False, b"")
    assert group.node("c").log.commit_index == 1


def test_a_leader_without_a_majority_steps_down() -> None:
    group = Group()
    group.elect("a")
    group.isolate("a")
    group.propose("a", "unanswered")
    # In the first window it had still heard them.
    group.tick("a", 2 * group.timing.election_ticks)
    assert group.node("a").role is not Role.LEADER
    assert group.propose("a", "x") is Proposed.REFUSED


def test_a_member_that_was_away_does_not_depose_the_leader() -> None:
    group = Group()
    group.elect("a")
    group.isolate("c")
    group.tick("c", 200)
    assert group.node("c").term == 1, "asking first costs no term"
    group.heal()
    group.settle()
    group.tick_all(40)
    assert group.leaders() == ["a"]
    assert group.node("a").term == 1


def test_followers_of_a_living_leader_take_part_in_no_election() -> None:
    group = Group()
    group.elect("a")
    group.deliver(VoteRequest("c", "b", 9, last_index=9, last_term=8, pre=False, transfer=False))
    assert group.node("b").term == 1
    assert group.take(VoteAnswer) == []


def test_leadership_moves_to_the_member_that_is_named() -> None:
    group = Group()
    group.elect("a")
    group.propose("a", "x")
    group.settle()
    group.node("a").transfer("c")
    assert group.node("a").propose("y", b"y") is Proposed.REFUSED
    group.pump("a")
    group.settle()
    assert group.leaders() == ["c"]
    group.node("a").transfer("b")
    group.pump("a")
    group.settle()
    assert group.leaders() == ["b"]
    group.propose("c", "z")
    group.settle()
    assert group.payloads("a") == ["x", "z"]


def test_a_handover_waits_until_the_target_has_everything() -> None:
    group = Group()
    group.elect("a")
    group.cut = {("a", "b"), ("b", "a")}
    group.propose("a", "x")
    group.settle()
    group.node("a").transfer("b")
    group.pump("a")
    assert group.take(TimeoutNow) == []
    group.heal()
    group.tick_all(3)
    assert group.leaders() == ["b"]


def test_a_handover_to_a_dead_member_is_given_up() -> None:
    group = Group()
    group.elect("a")
    group.crash("c")
    group.propose("a", "x")
    group.settle()
    group.node("a").transfer("c")
    group.pump("a")
    assert group.propose("a", "y") is Proposed.REFUSED
    group.tick_all(group.timing.election_ticks)
    assert group.propose("a", "y") is Proposed.APPENDED
    group.settle()
    group.node("a").transfer("c")
    group.lose("c")
    assert group.propose("a", "z") is Proposed.APPENDED


def test_who_asks_for_a_handover_again_and_again_holds_nobody_up() -> None:
    group = Group()
    group.elect("a")
    # Nobody is told that it is lost.
    group.isolate("c")
    group.propose("a", "x")
    group.settle()
    outcomes = []
    for turn in range(4 * group.timing.election_ticks):
        group.node("b").transfer("c")
        group.pump("b")
        group.tick_all()
        outcomes.append(group.propose("a", f"y{turn}"))
        group.settle()
    assert outcomes.count(Proposed.REFUSED) <= group.timing.election_ticks
    group.heal()
    group.tick_all(2 * group.timing.heartbeat_ticks)
    group.node("b").transfer("c")
    group.pump("b")
    group.settle()
    assert group.leaders() == ["c"], "it has caught up"


def test_the_member_that_should_lead_asks_the_leader() -> None:
    group = Group()
    group.elect("a")
    group.campaign("b")
    group.settle()
    assert group.leaders() == ["b"]


@pytest.mark.parametrize("asking", ["a", "b"])
def test_a_read_needs_no_entry_but_a_majority(asking: str) -> None:
    group = Group()
    group.elect("a")
    group.propose("a", "x")
    group.settle()
    entries = group.node("a").log.last_index
    group.read(asking, "r1")
    assert "r1" not in group.read_results
    group.settle()
    assert group.read_results["r1"] == entries == group.node("a").log.last_index


def test_an_answer_of_an_earlier_round_confirms_no_later_read() -> None:
    group = Group()
    group.elect("a")
    group.read("a", "r1")
    for beat in group.take(Heartbeat):
        group.deliver(beat)
    old = group.take(HeartbeatAnswer)
    group.read("a", "r2")
    group.take()
    for answer in old:
        group.deliver(answer)
    assert "r1" in group.read_results
    assert "r2" not in group.read_results


def test_a_read_of_a_new_leader_waits_for_its_first_commit() -> None:
    group = Group()
    group.elect("a")
    group.propose("a", "x")
    for append in group.take(Append):
        group.deliver(append)
    group.settle()
    group.crash("a")
    group.lose("a")
    while not group.leaders():
        group.deliver(group.network.pop(0))
    (leader,) = group.leaders()
    held = group.take(Append)
    group.read(leader, "r")
    group.settle()
    assert "r" not in group.read_results
    for append in held:
        group.deliver(append)
    group.settle()
    assert group.read_results["r"] == group.node(leader).log.commit_index


def test_an_idle_group_rests_and_a_proposal_wakes_it() -> None:
    group = Group()
    group.elect("a")
    group.propose("a", "x")
    group.tick_all(20)
    assert [group.node(name).resting for name in "abc"] == [True] * 3
    for _ in range(500):
        for name in "abc":
            group.tick(name)
        assert group.network == []
    group.propose("c", "y")
    group.settle()
    assert [group.payloads(name) for name in "abc"] == [["x", "y"]] * 3
    assert group.leaders() == ["a"]


def test_a_resting_group_notices_the_loss_of_its_leader() -> None:
    group = Group()
    group.elect("a")
    group.tick_all(20)
    assert group.node("b").resting
    group.crash("a")
    group.lose("a")
    group.settle()
    assert group.leaders() == ["b"], "the first in rank needs no time-out at all"
    group.start("a")
    group.find("a")
    group.tick_all(30)
    assert [group.node(name).resting for name in "abc"] == [True] * 3
    assert [group.node(name).leader for name in "abc"] == ["b"] * 3


def test_who_notices_the_loss_first_need_not_ask_again() -> None:
    group = Group()
    group.elect("a")
    group.tick_all(20)
    group.crash("a")
    group.lose("a", seen_by="b")
    group.settle()
    assert group.leaders() == [], "c still defends the leader it believes alive"
    group.lose("a", seen_by="c")
    group.settle()
    assert group.leaders() == ["b"], "c remembers that b asked"


def test_a_last_word_of_a_lost_leader_does_not_bring_it_back() -> None:
    group = Group()
    group.elect("a")
    group.tick("a", group.timing.heartbeat_ticks)
    last_words = group.take(Heartbeat, to="c")
    group.take()
    group.crash("a")
    group.lose("a", seen_by="c")
    for beat in last_words:
        group.deliver(beat)
    group.lose("a", seen_by="b")
    group.settle()
    assert group.leaders() == ["b"]


def test_a_group_with_a_lost_member_does_not_rest() -> None:
    group = Group()
    group.elect("a")
    group.crash("c")
    group.lose("c")
    group.tick_all(60)
    assert not group.node("a").resting
    group.start("c")
    group.find("c")
    group.tick_all(20)
    assert group.node("a").resting


def test_a_group_does_not_rest_while_somebody_lacks_something() -> None:
    group = Group()
    group.elect("a")
    group.propose("a", "x")
    group.take(Append, to="c")
    group.cut = {("a", "c")}
    group.settle()
    for _ in range(20):
        group.tick("a")
        group.settle()
    assert group.node("a").log.commit_index == 2
    assert not group.node("a").resting
    group.heal()
    group.tick_all(15)
    assert group.payloads("c") == ["x"]
    assert group.node("a").resting


def test_a_member_that_did_not_hear_that_all_rest_wakes_them() -> None:
    group = Group()
    group.elect("a")
    while not group.node("a").resting:
        group.tick_all()
        group.take(Heartbeat, to="c", where=lambda m: m.rest)
    group.restart("c")
    group.tick_all(60)
    assert group.leaders() == ["a"]
    assert [group.node(name).resting for name in "abc"] == [True] * 3


def test_a_resting_leader_that_died_unnoticed_is_replaced_when_somebody_proposes() -> None:
    group = Group()
    group.elect("a")
    group.tick_all(20)
    group.crash("a")
    assert group.propose("b", "x") is Proposed.FORWARDED
    group.tick_all(120)
    assert len(group.leaders()) == 1
    group.propose("b", "x")
    group.settle()
    assert group.payloads("c") == ["x"]


def test_a_stream_with_a_lost_message_is_repaired() -> None:
    group = Group()
    group.elect("a")
    group.propose("a", "p0")
    group.settle()
    group.propose("a", "p1")
    group.take(Append, to="b")
    group.propose("a", "p2")
    group.settle()
    group.tick_all(4)
    group.propose("a", "p3")
    group.take(Append, to="b")
    group.settle()
    group.tick_all(6)
    assert group.payloads("b") == ["p0", "p1", "p2", "p3"]


def test_what_is_in_flight_is_bounded() -> None:
    group = Group()
    group.elect("a")
    group.cut = {("c", "a")}
    for n in range(300):
        group.propose("a", f"p{n}")
    assert len(group.take(Append, to="c")) <= 65
    group.settle()
    group.heal()
    group.tick_all(6)
    assert len(group.payloads("c")) == 300


def test_a_leader_that_nobody_confirms_takes_on_no_more_than_it_can_bear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leading, "UNCOMMITTED_BYTES_MAX", 6)
    group = Group()
    group.elect("a")
    group.isolate("a")
    outcomes = [group.propose("a", f"p{n}") for n in range(4)]
    assert outcomes == [Proposed.APPENDED] * 3 + [Proposed.REFUSED]
    assert group.propose("a", "p1") is Proposed.APPENDED, "it is there already"
    group.heal()
    group.tick_all(6)
    outcomes = [group.propose("a", f"q{n}") for n in range(3)]
    group.settle()
    assert outcomes == [Proposed.APPENDED] * 3
    assert group.payloads("c") == ["p0", "p1", "p2", "q0", "q1", "q2"]


def test_a_follower_that_lost_its_disk_is_noticed() -> None:
    group = Group()
    group.elect("a")
    group.propose("a", "x")
    group.settle()
    group.members["c"].disk.entries.clear()
    group.restart("c")
    group.tick("a", group.timing.heartbeat_ticks)
    (beat,) = group.take(Heartbeat, to="c")
    with pytest.raises(CorruptRecord, match="its disk lost some"):
        group.node("c").step(beat)


def test_a_leader_that_contradicts_committed_entries_is_refused() -> None:
    group = Group()
    group.elect("a")
    group.propose("a", "x")
    group.settle()
    wrong = Append("b", "c", 5, 1, 1, (Entry(5, 2, "other", b"other"),), 0)
    with pytest.raises(CorruptRecord, match="committed"):
        group.node("c").step(wrong)


def test_two_leaders_of_one_term_are_refused() -> None:
    group = Group()
    group.elect("a")
    with pytest.raises(CorruptRecord, match="both lead"):
        group.node("a").step(Heartbeat("b", "a", 1, 0, 0))


def test_strangers_count_nowhere_and_misdirected_messages_are_ignored() -> None:
    group = Group()
    group.node("a").step(VoteRequest("b", "c", 9, 99, 9, pre=False, transfer=True))
    assert group.node("a").term == 0
    (request, *_) = stand(group, "a", through="b")
    group.deliver(VoteAnswer("z", "a", request.term, pre=False, granted=True))
    assert group.node("a").role is Role.CANDIDATE
    group = Group()
    group.elect("b")
    group.isolate("b")
    group.propose("b", "x")
    group.deliver(AppendAnswer("z", "b", group.node("b").term, accepted=True, index=2))
    assert group.node("b").log.commit_index == 1
    group.read("b", "r")
    group.deliver(HeartbeatAnswer("z", "b", group.node("b").term, 1))
    assert group.read_results == {}


def test_bad_proposals_are_named() -> None:
    group = Group()
    group.elect("a")
    with pytest.raises(InvalidRequest, match="over the limit of 1,000,000"):
        group.node("a").propose("x", bytes(1_000_001))
    with pytest.raises(InvalidRequest, match="id of its own"):
        group.node("a").propose("", b"x")
    with pytest.raises(InvalidRequest, match="cannot be a member"):
        Node(me="x", members=("a",), rng=group.rng)
