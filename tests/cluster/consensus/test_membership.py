"""Changes of a group's membership, one member at a time, while it works."""

from __future__ import annotations

import pytest
from raft_group import Group

from notebookos_ext.cluster.consensus.membership import (
    Change,
    Changed,
    ChangeKind,
    Membership,
    changed,
    host_of,
    later_member,
)
from notebookos_ext.cluster.consensus.messages import (
    Append,
    AppendAnswer,
    ChangeRequest,
    Heartbeat,
    HeartbeatAnswer,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
)
from notebookos_ext.cluster.consensus.ready import Role
from notebookos_ext.errors import InvalidRequest

ADD, PROMOTE, REMOVE = ChangeKind.ADD_LEARNER, ChangeKind.PROMOTE, ChangeKind.REMOVE


def voters(group: Group, name: str) -> str:
    return "".join(group.node(name).log.committed_membership.voters)


def grow(group: Group, name: str, *, leader: str = "a") -> None:
    """Take in `name` as a learner and make it a voter."""
    if name not in group.names:
        group.join(name)
    assert group.change(leader, ADD, name) is Changed.APPENDED
    group.settle()
    group.tick_all(4)
    assert group.change(leader, PROMOTE, name) is Changed.APPENDED
    group.settle()
    group.tick_all(4)


def shrink(group: Group, name: str, *, leader: str = "a") -> None:
    assert group.change(leader, REMOVE, name) is Changed.APPENDED
    group.settle()


def test_a_group_grows_from_one_to_five_and_back_while_it_works() -> None:
    group = Group("a")
    group.elect("a")
    group.propose("a", "alone")
    for name in "bcde":
        grow(group, name)
        group.propose("a", f"with-{name}")
        group.settle()
    assert voters(group, "e") == "abcde"
    assert all(
        group.payloads(name) == ["alone", "with-b", "with-c", "with-d", "with-e"]
        for name in "abcde"
    )
    for name in "edcb":
        shrink(group, name)
        group.propose("a", f"without-{name}")
        group.settle()
        assert group.node(name).is_removed
    assert voters(group, "a") == "a"
    assert group.payloads("a")[-1] == "without-b"


@pytest.mark.parametrize("names", ["abc", "abcde"])
def test_every_member_of_a_group_can_be_replaced(names: str) -> None:
    group = Group(names)
    group.elect("a")
    for name in names[1:]:
        grow(group, name.upper())
        shrink(group, name)
    grow(group, "A")
    shrink(group, "a")
    group.settle()
    new = names.upper()
    assert group.leaders()[-1] in new
    group.propose(group.leaders()[-1], "x")
    group.settle()
    assert all(group.payloads(name) == ["x"] for name in new)


def test_learners_get_everything_and_are_not_counted() -> None:
    group = Group()
    group.elect("a")
    group.propose("a", "x")
    for name in "de":
        group.join(name)
        group.change("a", ADD, name)
        group.settle()
    assert group.payloads("d") == group.payloads("e") == ["x"]
    # Three of five have it now, but of the voters there is only a.
    group.isolate("a", "d", "e")
    committed = group.node("a").log.commit_index
    group.propose("a", "y")
    group.settle()
    assert group.node("a").log.commit_index == committed
    assert group.on_disk("d")[-1] == group.on_disk("e")[-1] == (1, "y")
    group.read("a", "r")
    group.tick_all(4)
    assert "r" not in group.read_results, "nor does their word confirm a read"
    group.tick_all(40)
    assert "a" not in group.leaders(), "nor does their presence keep a leader"


def test_a_learner_neither_stands_nor_is_it_asked() -> None:
    group = Group()
    group.elect("a")
    group.join("d")
    group.change("a", ADD, "d")
    group.settle()
    for name in "abc":
        group.crash(name)
    group.campaign("d")
    group.tick("d", 100)
    assert (group.node("d").role, group.node("d").term) == (Role.FOLLOWER, 1)
    assert group.node("d").leader is None
    group.take()
    group.start("b")
    group.campaign("b")
    assert {m.to for m in group.take(VoteRequest)} == {"a", "c"}
    # Its vote does not count either, should somebody have asked for it.
    group.deliver(VoteAnswer("d", "b", 2, pre=True, granted=True))
    assert group.node("b").role is Role.PRE_CANDIDATE


def test_a_promoted_learner_votes_before_it_knows_that_it_may() -> None:
    """Otherwise a group of which it is half the majority could not elect anybody."""
    group = Group("ab")
    group.elect("a")
    group.join("c")
    group.change("a", ADD, "c")
    group.settle()
    group.tick_all(4)
    group.cut = {("a", "c"), ("c", "a")}
    assert group.change("a", PROMOTE, "c") is Changed.APPENDED
    group.settle()
    assert voters(group, "b") == "abc"
    assert voters(group, "c") == "ab"
    group.crash("a")
    group.lose("a")
    group.settle()
    assert group.leaders() == ["b"]


def test_a_learner_that_lags_is_not_promoted() -> None:
    group = Group()
    group.elect("a")
    for n in range(10):
        group.propose("a", f"p{n}")
    group.settle()
    group.join("d")
    group.isolate("d")
    group.change("a", ADD, "d")
    group.settle()
    group.tick_all(40)
    assert group.change("a", PROMOTE, "d") is Changed.NOT_CAUGHT_UP
    group.heal()
    group.tick_all(6)
    assert group.change("a", PROMOTE, "d") is Changed.APPENDED


def test_a_learner_that_died_is_not_promoted() -> None:
    """A voter that cannot answer could cost the group its majority for good."""
    group = Group("a")
    group.elect("a")
    group.join("b")
    group.change("a", ADD, "b")
    group.settle()
    group.tick_all(4)
    group.crash("b")
    group.tick_all(2 * group.timing.election_ticks)
    assert group.change("a", PROMOTE, "b") is Changed.NOT_CAUGHT_UP
    group.start("b")
    group.tick_all(6)
    assert group.change("a", PROMOTE, "b") is Changed.APPENDED


def test_one_change_at_a_time() -> None:
    group = Group()
    group.elect("a")
    group.join("d")
    group.join("e")
    group.isolate("a")
    assert group.change("a", ADD, "d") is Changed.APPENDED
    assert group.change("a", ADD, "e") is Changed.REFUSED
    assert group.change("a", ADD, "d") is Changed.REFUSED, "nobody can tell yet"
    group.heal()
    group.tick_all(4)
    assert group.change("a", ADD, "d") is Changed.COMMITTED
    assert group.change("a", ADD, "e") is Changed.APPENDED


def test_no_change_before_the_leader_has_committed_in_its_term() -> None:
    """Else leaders of two terms each have a majority that the other knows nothing of."""
    group = Group("abcd")
    group.elect("a")
    group.propose("a", "x")
    group.settle()
    group.isolate("a")
    group.change("a", REMOVE, "d")
    group.lose("a", seen_by="bcd")
    group.isolate("b", "c", "d")
    # b leads, but none of its entries has reached anybody.
    while "b" not in group.leaders():
        group.deliver(group.network.pop(0))
    assert group.change("b", REMOVE, "c") is Changed.REFUSED
    group.take()
    group.tick("b", 2)
    group.settle()
    group.tick_all(4)
    assert group.change("b", REMOVE, "c") is Changed.APPENDED


def test_a_change_that_was_overwritten_is_taken_back() -> None:
    group = Group()
    group.elect("a")
    group.isolate("a")
    group.change("a", REMOVE, "c")
    assert group.node("a").log.membership == Membership(("a", "b"))
    assert voters(group, "a") == "abc"
    group.lose("a", seen_by="bc")
    group.settle()
    group.heal()
    group.tick_all(6)
    assert group.node("a").log.membership == Membership(("a", "b", "c"))
    assert group.node("a").log.membership_index == 0


def test_a_membership_is_in_force_before_it_is_committed() -> None:
    group = Group()
    group.elect("a")
    group.propose("a", "x")
    group.settle()
    group.isolate("a")
    group.change("a", REMOVE, "b")
    group.heal()
    # Of a and c both are needed now; the word of b no longer counts.
    group.cut = {("a", "c"), ("c", "a")}
    group.find("b")
    group.tick_all(4)
    group.propose("a", "y")
    group.settle()
    group.tick_all(4)
    assert group.node("a").log.commit_index == 2
    group.heal()
    group.tick_all(4)
    assert group.payloads("c") == ["x", "y"]


def test_a_removed_leader_steps_down_when_that_is_committed_and_another_leads_at_once() -> None:
    group = Group()
    group.elect("a")
    assert group.change("a", REMOVE, "a") is Changed.APPENDED
    assert group.leaders() == ["a"], "until then it leads a group that it does not belong to"
    # Its own disk no longer counts.
    assert group.node("a").log.commit_index == 1
    for append in group.take(Append, to="b"):
        group.deliver(append)
    for answer in group.take(AppendAnswer):
        group.deliver(answer)
    assert group.node("a").log.commit_index == 1, "of b and c both must have it"
    group.settle()
    assert group.node("a").is_removed
    assert group.leaders() == ["b"]
    group.tick("a", 100)
    assert group.node("a").term == 1
    group.propose("b", "x")
    group.settle()
    assert group.payloads("c") == ["x"]


def test_a_member_that_leaves_is_told_and_then_left_alone() -> None:
    group = Group()
    group.elect("a")
    shrink(group, "c")
    assert group.node("c").is_removed
    group.propose("a", "x")
    group.tick("a", 4)
    assert not [m for m in group.network if m.to == "c"]
    group.settle()
    group.tick("c", 200)
    assert (group.node("c").role, group.node("c").term) == (Role.FOLLOWER, 1)


def test_a_removed_member_that_does_not_know_disturbs_nobody() -> None:
    group = Group()
    group.elect("a")
    group.isolate("c")
    shrink(group, "c")
    group.propose("a", "x")
    group.settle()
    group.heal()
    assert not group.node("c").is_removed
    for _ in range(100):
        group.tick_all()
    assert group.leaders() == ["a"]
    assert group.node("a").term == group.node("b").term == 1


def test_a_group_of_one_leads_again_although_who_left_asks_for_votes_without_end() -> None:
    """A vote that was asked for before the removal ends a leadership once, not for ever."""
    group = Group("ab")
    group.elect("a")
    group.cut.add(("a", "b"))
    shrink(group, "b")
    assert voters(group, "a") == "a"
    group.deliver(TimeoutNow("a", "b", 1))
    group.settle()
    assert group.leaders() == []
    group.heal()
    # Without a leader a member waits less than twice this, whoever is refused meanwhile.
    for _ in range(2 * group.timing.retry_ticks):
        group.tick_all()
    assert group.leaders() == ["a"]
    term = group.node("a").term
    for _ in range(100):
        group.tick_all()
        assert group.leaders() == ["a"]
    assert group.node("a").term == term
    group.propose("a", "x")
    group.settle()
    assert group.payloads("a") == ["x"]
    assert not group.node("b").is_removed, "the test is about a member that does not know"


def test_a_removed_member_is_needed_until_its_removal_is_committed() -> None:
    """The leader sent the entry and died before it saved it: only who leaves has it."""
    group = Group("ab")
    group.elect("a")
    group.propose("a", "x")
    group.settle()
    group.node("a").change_membership(Change(REMOVE, "b"))
    group.begin_save("a")
    for append in group.take(Append):
        group.deliver(append)
    group.restart("a")
    group.take()
    group.lose("a", seen_by="b")
    group.settle()
    for _ in range(60):
        group.tick_all()
    assert group.leaders() == ["a"]
    assert voters(group, "a") == "a"
    assert group.node("b").is_removed


def test_who_leaves_is_needed_also_when_it_has_restarted_since() -> None:
    """It knows no more what is committed, so it has to take every membership in its log for it."""
    group = Group("a")
    group.elect("a")
    grow(group, "b")
    group.node("a").change_membership(Change(REMOVE, "b"))
    group.begin_save("a")
    for append in group.take(Append):
        group.deliver(append)
    for name in "ab":
        group.restart(name)
    group.take()
    for _ in range(60):
        group.tick_all()
    assert group.leaders() == ["a"]
    assert group.node("b").is_removed


def test_a_request_for_an_older_membership_changes_nothing() -> None:
    group = Group()
    group.elect("a")
    group.join("d")
    assert group.change("b", ADD, "d") is Changed.FORWARDED
    (request,) = group.take(ChangeRequest)
    group.deliver(request)
    group.settle()
    shrink(group, "d")
    group.deliver(request)
    group.settle()
    assert group.node("a").log.membership.learners == ()


def test_any_member_can_ask_for_a_change() -> None:
    group = Group()
    group.elect("a")
    group.join("d")
    for kind in (ADD, PROMOTE):
        assert group.change("c", kind, "d") is Changed.FORWARDED
        group.settle()
        group.tick_all(4)
        assert Change(kind, "d").is_done_in(group.node("c").log.committed_membership)
    assert group.change("d", REMOVE, "d") is Changed.FORWARDED
    group.settle()
    assert group.node("d").is_removed
    # Nonsense from far away changes nothing, and breaks nothing.
    group.change("b", PROMOTE, "z")
    group.settle()
    assert voters(group, "a") == "abc"
    group.crash("a")
    group.lose("a")
    assert group.change("c", ADD, "e") is Changed.REFUSED


def test_during_a_handover_nothing_changes() -> None:
    group = Group()
    group.elect("a")
    group.isolate("a")
    group.node("a").transfer("b")
    assert group.change("a", REMOVE, "c") is Changed.REFUSED


def test_nobody_hands_over_to_a_learner() -> None:
    group = Group()
    group.elect("a")
    group.join("d")
    group.change("a", ADD, "d")
    group.settle()
    group.node("a").transfer("d")
    group.pump("a")
    assert group.take(TimeoutNow) == []
    group.deliver(TimeoutNow("a", "d", 1))
    assert group.node("d").term == 1


def test_memberships_survive_restarts_and_snapshots() -> None:
    group = Group("a")
    group.elect("a")
    for name in "bc":
        grow(group, name)
    for name in "abc":
        group.restart(name)
    group.elect("b")
    assert group.node("a").log.membership == Membership(("a", "b", "c"))
    group.settle()
    for name in "abc":
        group.compact(name)
        group.restart(name)
        assert group.node(name).log.membership == Membership(("a", "b", "c"))
    group.elect("c")
    # Where it stands is remembered too: requests are compared by it.
    assert {group.node(name).log.membership_index for name in "abc"} == {5}
    grow(group, "d", leader="c")
    assert voters(group, "d") == "abcd"


def test_a_joining_member_learns_the_membership_from_a_snapshot() -> None:
    group = Group()
    group.elect("a")
    for n in range(5):
        group.propose("a", f"p{n}")
    group.settle()
    group.compact("a")
    grow(group, "d")
    assert group.members["d"].disk.base_index == 6
    assert group.payloads("d") == [f"p{n}" for n in range(5)]
    assert not group.node("d").is_removed
    group.restart("d")
    assert group.node("d").log.membership.voters == ("a", "b", "c", "d")


def test_a_member_that_lost_its_disk_comes_back_as_somebody_else() -> None:
    """With its old name it could vote twice in a term, and would count for what it has lost."""
    group = Group()
    group.elect("a")
    group.propose("a", "x")
    group.settle()
    group.crash("c")
    again = later_member("c", "7f")
    assert host_of(again) == "c"
    group.join(again)
    group.node(again).step(Heartbeat("a", "c", 1, 2, 0))
    assert group.node(again).term == 0, "what is said to the former self is not for it"
    shrink(group, "c")
    grow(group, again)
    assert group.node("a").log.membership == Membership(("a", "b", again))
    assert group.payloads(again) == ["x"]
    group.deliver(AppendAnswer("c", "a", 1, accepted=True, index=99))
    group.deliver(HeartbeatAnswer("c", "a", 1, 99))
    assert group.leaders() == ["a"]


def test_a_loss_of_somebody_who_left_does_not_keep_the_group_awake() -> None:
    group = Group()
    group.elect("a")
    group.crash("c")
    group.lose("c")
    shrink(group, "c")
    group.tick_all(40)
    assert group.node("a").resting
    assert group.node("b").resting
    assert group.node("a").lost == frozenset()


def test_bad_changes_are_named() -> None:
    group = Group("a")
    group.elect("a")
    with pytest.raises(InvalidRequest, match="only voter"):
        group.change("a", REMOVE, "a")
    with pytest.raises(InvalidRequest, match="add it as a learner first"):
        group.change("a", PROMOTE, "z")
    with pytest.raises(InvalidRequest, match="needs a name"):
        group.change("a", ADD, "")
    assert group.change("a", REMOVE, "z") is Changed.COMMITTED


def test_changed_is_one_step() -> None:
    membership = Membership(("a", "b"), ("c",))
    assert changed(membership, Change(ADD, "d")) == Membership(("a", "b"), ("c", "d"))
    assert changed(membership, Change(ADD, "a")) == membership
    assert changed(membership, Change(PROMOTE, "c")) == Membership(("a", "b", "c"))
    assert changed(membership, Change(PROMOTE, "b")) == membership
    assert changed(membership, Change(REMOVE, "c")) == Membership(("a", "b"))
    assert changed(membership, Change(REMOVE, "a")) == Membership(("b",), ("c",))
    assert changed(membership, Change(REMOVE, "z")) == membership
