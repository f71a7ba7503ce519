"""Every state that a small Raft group of real members can reach within given bounds.

A global state is the members' states, the messages that will still arrive, and what the search
remembers to check by. States of members and messages are numbered, and what an event makes of a
member is worked out once, so that the search mostly looks up numbers. States that differ only by
the members' names are one.

Messages arrive in any order, or never. `in_flight` bounds how many of those that will still arrive
are under way at once: of any that would be too many, each choice is lost.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest import mock

import msgspec
from gate.bounds import BUDGETS, DUPLICATES, Bounds, less
from gate.events import own_events
from gate.member import COPIER, Disk, Member, Ways
from gate.safety import Ghost, Safety

from notebookos_ext.cluster.consensus import leading
from notebookos_ext.cluster.consensus.messages import AppendAnswer, Message, VoteAnswer
from notebookos_ext.cluster.consensus.progress import Progress


class State(NamedTuple):
    """Numbers of the members' states, numbers of messages, what is left, what is remembered."""

    members: tuple[int, ...]
    network: tuple[int, ...]
    left: tuple[int, ...]
    ghost: Ghost


class Found(msgspec.Struct, frozen=True):
    """A state that breaks a promise, and the steps that lead there."""

    what: str
    steps: tuple[str, ...]

    def told(self) -> str:
        """The promise and the numbered steps, one a line."""
        steps = (f"{number:4} {step}" for number, step in enumerate(self.steps, 1))
        return "\n".join((self.what, *steps))


class Report(msgspec.Struct, frozen=True):
    """What a search has seen."""

    states: int
    steps: int
    member_states: int
    depth: int
    exhausted: bool
    seconds: float
    found: Found | None = None


class Search:
    """One search; `run` does it."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.names = tuple(bounds.names)
        self._ways = Ways(
            slow_disks=bounds.slow_disks,
            ticks=bounds.beats > 0,
            repeats=bounds.repeats > 0,
            identities=bounds.identities,
        )
        self._members: list[Member] = []
        self._member_number: dict[Any, int] = {}
        self._messages: list[Message] = []
        self._message_number: dict[Message, int] = {}
        self._addressee: list[int] = []
        self._after: dict[tuple[int, Any], tuple[int, tuple[int, ...], Any, str]] = {}
        self._dead: dict[tuple[int, int], bool] = {}
        self._shapes: list[int] = []
        self._shape_number: dict[Any, int] = {}
        self._renamings = list(itertools.permutations(range(len(self.names))))
        self._sorting: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {}
        self._renamed_members: dict[tuple[int, int], int] = {}
        self._renamed_messages: dict[tuple[int, int], int] = {}
        self._safety = Safety(self._members, self.names, fixed=not bounds.changes)

    def run(self) -> Report:
        """Breadth first, so that what is found has a shortest course."""
        with ExitStack() as stack:
            if self.bounds.one_entry_each:
                small = {"APPEND_BYTES_MAX": -1, "PROBE_BYTES_MAX": -1}
                stack.enter_context(mock.patch.multiple(leading, **small))
            if self.bounds.changes:
                stack.enter_context(mock.patch.object(Progress, "is_caught_up", new=True))
            return self._run()

    def _run(self) -> Report:
        begun = time.perf_counter()
        bounds = self.bounds
        start = self.canonical(self.start())
        seen: dict[int, int] = {hash(start): 0}
        level, depth, steps = [start], 0, 0
        found: Found | None = None
        complete = True
        while level and found is None:
            if bounds.depth is not None and depth >= bounds.depth:
                complete = False
                break
            following: list[State] = []
            for state in level:
                own = hash(state)
                for successor, _, _, error in self.successors(state):
                    steps += 1
                    if error:
                        found = Found(error, self._course(seen, own))
                        break
                    reached = self.canonical(successor)
                    number = hash(reached)
                    if number not in seen:
                        seen[number] = own
                        following.append(reached)
                if found or (bounds.states is not None and len(seen) >= bounds.states):
                    break
            else:
                level = following
                depth += 1
                continue
            complete = False
            break
        return Report(
            states=len(seen),
            steps=steps,
            member_states=len(self._members),
            depth=depth,
            exhausted=complete,
            seconds=time.perf_counter() - begun,
            found=found,
        )

    # -- steps -------------------------------------------------------------------------------

    def start(self) -> State:
        """All members empty and up, nothing under way."""
        founders = self.names[: self.bounds.founders]
        members = tuple(
            self._number(
                Member.started(name, founders if name in founders else (), Disk(), self._ways)
            )
            for name in self.names
        )
        left = tuple(getattr(self.bounds, budget) for budget in BUDGETS)
        state = State(members, (), left, Ghost())
        return self._begun(state) if self.bounds.begun else state

    def _begun(self, state: State) -> State:
        members, network = list(state.members), [("elect", 0)]
        ghost = state.ghost
        while network:
            kind, number = network.pop(0)
            place = 0 if kind == "elect" else self._addressee[number]
            event = (kind,) if kind == "elect" else (kind, number)
            members[place], sent, reads, error = self._outcome(members[place], event)
            ghost, broken = self._safety.after(ghost, tuple(members), event, place, reads)
            failed = error or broken
            assert not failed, failed
            network += [("deliver", message) for message in sent]
        return State(tuple(members), (), state.left, ghost)

    def successors(self, state: State) -> Iterator[tuple[State, int, Any, str]]:
        """Each state that one event leads to, its place, and which promise it breaks, if any."""
        for place, event, network, left in self._events(state):
            after, sent, reads, error = self._outcome(state.members[place], event)
            if error:
                yield state, place, event, error
                return
            if after == state.members[place] and not sent and not reads:
                # The same as if it had not happened, with less left.
                continue
            members = (*state.members[:place], after, *state.members[place + 1 :])
            ghost, broken = self._safety.after(state.ghost, members, event, place, reads)
            if broken:
                yield state, place, event, broken
                return
            for arriving in self._arriving(network, sent, members):
                yield State(members, arriving, left, ghost), place, event, ""

    def _events(self, state: State) -> Iterator[tuple[int, Any, tuple[int, ...], tuple[int, ...]]]:
        members, network, left, ghost = state
        for position, number in enumerate(network):
            if position and network[position - 1] == number:
                continue
            rest = network[:position] + network[position + 1 :]
            event = ("deliver", number)
            yield self._addressee[number], event, rest, left
            if left[DUPLICATES] and not self._is_dead(
                self._outcome(members[self._addressee[number]], event)[0], number
            ):
                yield self._addressee[number], event, network, less(left, DUPLICATES)
        for place, number in enumerate(members):
            for event, budget in own_events(self._members[number], self.bounds, left, ghost):
                yield place, event, network, left if budget is None else less(left, budget)

    def _arriving(
        self, network: tuple[int, ...], sent: tuple[int, ...], members: tuple[int, ...]
    ) -> Iterator[tuple[int, ...]]:
        """The messages that will still arrive: all of them, or each choice of those that may."""
        both = [
            number
            for number in (*network, *sent)
            if not self._is_dead(members[self._addressee[number]], number)
        ]
        if len(both) <= self.bounds.in_flight:
            yield tuple(sorted(both))
            return
        yield from set(itertools.combinations(sorted(both), self.bounds.in_flight))

    def _is_dead(self, member: int, message: int) -> bool:
        """Whether the message can change nothing any more, whenever it arrives."""
        key = (member, message)
        if key in self._dead:
            return self._dead[key]
        content, addressee = self._messages[message], self._members[member]
        passed = getattr(content, "term", addressee.disk.hard_state.term)
        older = passed < addressee.disk.hard_state.term
        vote = isinstance(content, VoteAnswer) and not content.pre
        answer = isinstance(content, AppendAnswer) and content.accepted and not self.bounds.beats
        dead = False
        if older or vote or answer:
            after, sent, reads, error = self._outcome(member, ("deliver", message))
            idle = after == member and not sent and not reads and not error
            dead = idle and (older or passed == addressee.disk.hard_state.term)
        self._dead[key] = dead
        return dead

    def _outcome(self, member: int, event: Any) -> tuple[int, tuple[int, ...], Any, str]:
        known = self._after.get((member, event))
        if known is None:
            real = ("deliver", self._messages[event[1]]) if event[0] == "deliver" else event
            outcome = self._members[member].after(real)
            known = (
                self._number(outcome.member),
                tuple(self._numbered(message) for message in outcome.sent),
                outcome.reads,
                outcome.error,
            )
            self._after[member, event] = known
        return known

    def _number(self, member: Member) -> int:
        key = member.key()
        number = self._member_number.get(key)
        if number is None:
            number = self._member_number[key] = len(self._members)
            self._members.append(member)
            # What it is, whoever it is, and whoever the others are.
            others = [name for name in self.names if name != member.name]
            first, *rest = self.names
            shape = frozenset(
                member.renamed({member.name: first, **dict(zip(others, order, strict=True))}).key()
                for order in itertools.permutations(rest)
            )
            self._shapes.append(self._shape_number.setdefault(shape, len(self._shape_number)))
        return number

    def _numbered(self, message: Message) -> int:
        number = self._message_number.get(message)
        if number is None:
            number = self._message_number[message] = len(self._messages)
            self._messages.append(message)
            self._addressee.append(self.names.index(message.to))
        return number

    # -- names -------------------------------------------------------------------------------

    def canonical(self, state: State) -> State:
        """The same for all states that differ only by the members' names."""
        bounds = self.bounds
        if not bounds.symmetric or bounds.asks_first or bounds.compactions:
            # With pre-votes, who of two goes on depends on their rank, so names mean something;
            # the bytes of a snapshot have names in them.
            return state
        shapes = tuple(self._shapes[member] for member in state.members)
        sorting = self._sorting.get(shapes)
        if sorting is None:
            wanted = sorted(shapes)
            # `order[place]` is the new place of the member at `place`.
            sorting = self._sorting[shapes] = [
                (number, order)
                for number, order in enumerate(self._renamings)
                if all(wanted[order[place]] == shape for place, shape in enumerate(shapes))
            ]
        if len(sorting) == 1:
            return self._renamed(state, *sorting[0])
        return min(self._renamed(state, number, order) for number, order in sorting)

    def _renamed(self, state: State, number: int, order: tuple[int, ...]) -> State:
        if number == 0:
            return state
        members = [0] * len(order)
        for place, member in enumerate(state.members):
            known = self._renamed_members.get((member, number))
            if known is None:
                known = self._number(self._members[member].renamed(self._names_by(order)))
                self._renamed_members[member, number] = known
            members[order[place]] = known
        network = []
        for message in state.network:
            known = self._renamed_messages.get((message, number))
            if known is None:
                content = COPIER.renamed(self._messages[message], self._names_by(order))
                known = self._renamed_messages[message, number] = self._numbered(content)
            network.append(known)
        ghost = state.ghost.renamed(order)
        return State(tuple(members), tuple(sorted(network)), state.left, ghost)

    def _names_by(self, order: tuple[int, ...]) -> dict[str, str]:
        return {name: self.names[order[place]] for place, name in enumerate(self.names)}

    # -- telling -----------------------------------------------------------------------------

    def _told(self, place: int, event: Any) -> str:
        told = " ".join(str(part) for part in event)
        if event[0] == "deliver":
            told = f"gets {self._messages[event[1]]}"
        return f"{self.names[place]}: {told}"

    def _course(self, seen: dict[int, int], last: int) -> tuple[str, ...]:
        """The steps to the state with the hash `last`, and the one after it that breaks a promise.

        The states that were seen may have other names than those on the course.
        """
        hashes = [last]
        while seen[hashes[-1]]:
            hashes.append(seen[hashes[-1]])
        state, told = self.start(), []
        for wanted in [*reversed(hashes[:-1]), None]:
            for successor, place, event, error in self.successors(state):
                if error if wanted is None else hash(self.canonical(successor)) == wanted:
                    state = successor
                    told.append(self._told(place, event))
                    break
        return tuple(told)
