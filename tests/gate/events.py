"""What can happen to one member in a search, besides that a message arrives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gate.bounds import (
    BEATS,
    CHANGES,
    COMMANDS,
    COMPACTIONS,
    CRASHES,
    READS,
    REPEATS,
    TRANSFERS,
    Bounds,
)
from gate.member import Member
from gate.safety import Ghost

from notebookos_ext.cluster.consensus.membership import Change, ChangeKind
from notebookos_ext.cluster.consensus.ready import Role

Event = tuple[Any, ...]
"""The name of a method of a member's turn, and its arguments."""
Costly = tuple[Event, int | None]
"""An event and the budget that it takes from."""


def own_events(
    member: Member, bounds: Bounds, left: tuple[int, ...], ghost: Ghost
) -> Iterator[Costly]:
    """What may happen at any time."""
    node = member.node
    leads = node.role is Role.LEADER
    if member.saving is not None:
        yield ("saved",), None
    if not leads and node.term < bounds.terms and node.may_stand:
        yield ("campaign" if bounds.asks_first else "elect",), None
    if left[CRASHES]:
        yield ("crash",), CRASHES
    if left[COMPACTIONS] and member.saving is None:
        yield ("compact",), COMPACTIONS
    if leads and left[BEATS]:
        yield ("beat",), BEATS
    if leads or (bounds.forwards and node.leader is not None):
        yield from _requests(member, bounds, left, ghost)
    if leads and left[CHANGES]:
        yield from _changes(member, bounds)


def _requests(
    member: Member, bounds: Bounds, left: tuple[int, ...], ghost: Ghost
) -> Iterator[Costly]:
    if left[COMMANDS]:
        command = f"command {bounds.commands - left[COMMANDS] + 1}"
        since = member.node.heard_commit_index if bounds.repeats else None
        yield ("propose", command, since), COMMANDS
    if left[REPEATS]:
        for name, since in ghost.asked:
            if name.startswith("command"):
                yield ("propose", name, since), REPEATS
    if left[READS]:
        yield ("read", f"read {left[READS]}"), READS
    if left[TRANSFERS]:
        for name in bounds.names:
            if name != member.name:
                yield ("transfer", name), TRANSFERS


def _changes(member: Member, bounds: Bounds) -> Iterator[Costly]:
    membership = member.node.log.membership
    for name in bounds.names:
        if name in membership.learners:
            yield ("change", Change(ChangeKind.PROMOTE, name)), CHANGES
        if name not in membership.everybody:
            yield ("change", Change(ChangeKind.ADD_LEARNER, name)), CHANGES
        elif membership.voters != (name,):
            yield ("change", Change(ChangeKind.REMOVE, name)), CHANGES
