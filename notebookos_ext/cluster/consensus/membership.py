"""Who belongs to a group, and the changes of it: one member at a time (thesis 4).

Two memberships that differ in one voter have no two majorities without a common member, so a change
needs no phase in between. A member is named by an opaque string, which is never given a second
time to a member with an empty disk: its former self may have voted.
"""

from __future__ import annotations

import enum

import msgspec

from notebookos_ext.errors import InvalidRequest

_INCARNATION_MARK = "#"


class Membership(msgspec.Struct, frozen=True, array_like=True):
    """Voters decide; learners only receive the log. Both in the order in which they came."""

    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()

    @property
    def everybody(self) -> tuple[str, ...]:
        """Voters, then learners."""
        return (*self.voters, *self.learners)


class ChangeKind(enum.StrEnum):
    """What can happen to one member."""

    ADD_LEARNER = "add-learner"
    PROMOTE = "promote"
    REMOVE = "remove"


class Change(msgspec.Struct, frozen=True, array_like=True):
    """One step from one membership to the next."""

    kind: ChangeKind
    member: str

    def is_done_in(self, membership: Membership) -> bool:
        """Whether `membership` is already what this change wants."""
        if self.kind is ChangeKind.ADD_LEARNER:
            return self.member in membership.everybody
        if self.kind is ChangeKind.PROMOTE:
            return self.member in membership.voters
        return self.member not in membership.everybody


class Changed(enum.StrEnum):
    """What became of a wish to change the membership; only the log says when it is committed."""

    COMMITTED = "committed"
    """The leader has committed a membership that is already like that."""
    APPENDED = "appended"
    """It is in this leader's log, and in force."""
    FORWARDED = "forwarded"
    """It is on its way to the leader, which does not answer: look at the membership, ask again."""
    REFUSED = "refused"
    """No leader is known, or it is busy with a handover or with another change: ask again."""
    NOT_CAUGHT_UP = "not-caught-up"
    """As a voter this learner would hold the group up: ask again."""


def changed(membership: Membership, change: Change) -> Membership:
    """The membership after `change`, which may be the same.

    Raises:
        InvalidRequest: it would leave nobody to decide, or promotes a stranger.
    """
    member = change.member
    if change.is_done_in(membership):
        return membership
    voters = tuple(voter for voter in membership.voters if voter != member)
    learners = tuple(learner for learner in membership.learners if learner != member)
    if change.kind is ChangeKind.ADD_LEARNER:
        if not member:
            raise InvalidRequest("a member of a group needs a name")
        return Membership(voters, (*learners, member))
    if change.kind is ChangeKind.PROMOTE:
        if member not in membership.learners:
            raise InvalidRequest(f"{member!r} is not a member yet; add it as a learner first")
        return Membership((*voters, member), learners)
    if not voters:
        raise InvalidRequest(f"{member!r} is the only voter of its group; add another one first")
    return Membership(voters, learners)


def later_member(host: str, incarnation: str) -> str:
    """The name of a member that joins from `host`; founders are named by their host alone.

    `incarnation` is drawn at random when the member's log is created, so that a host whose log was
    lost or damaged comes back as somebody who has never voted.
    """
    return f"{host}{_INCARNATION_MARK}{incarnation}"


def host_of(member: str) -> str:
    """The host that a member lives on."""
    return member.partition(_INCARNATION_MARK)[0]
