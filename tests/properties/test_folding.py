"""A folded log gives the namespace that the whole log gives, and forgets what was superseded."""

from __future__ import annotations

import random
from collections.abc import Iterable

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from notebookos_ext.cluster.entries import Component, Delta, EnvironmentRecord, HistoryRecord
from notebookos_ext.cluster.folding import FoldedDelta, fold

NAMES = ("a", "b", "c", "d", "_e")
SECTIONS = ("env:random", "env:path")


class Thing:
    """A value or a definition: which version it is, and the definitions it mentions."""

    def __init__(self, version: int, references: Iterable[str] = ()) -> None:
        self.version = version
        self.references = frozenset(references)


def reachable(names: dict[str, Thing], definitions: dict[str, Thing]) -> dict[str, Thing]:
    """The definitions that names lead to: nothing else keeps one alive."""
    found: dict[str, Thing] = {}
    left = [ref for thing in names.values() for ref in thing.references]
    while left:
        def_id = left.pop()
        if def_id not in found and def_id in definitions:
            found[def_id] = definitions[def_id]
            left += definitions[def_id].references
    return found


class Executor:
    """A namespace that changes at random, and says in deltas what changed."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names: dict[str, Thing] = {}
        self.definitions: dict[str, Thing] = {}
        self.known: dict[str, int] = {}
        self.count = 0
        self.inputs = 0

    def _next(self) -> int:
        self.count += 1
        return self.count

    def _some(self) -> list[str]:
        alive = sorted(self.definitions)
        return self.rng.sample(alive, min(len(alive), self.rng.randrange(3)))

    def change(self) -> None:
        rng = self.rng
        kind = rng.randrange(6)
        if kind == 0:
            def_id = f"f{self._next()}"
            self.definitions[def_id] = Thing(self._next(), self._some())
            self.names[rng.choice(NAMES)] = Thing(self._next(), [def_id])
        elif kind == 1 and self.definitions:
            def_id = rng.choice(sorted(self.definitions))
            self.definitions[def_id] = Thing(self._next(), self._some())
        elif kind == 2 and self.names:
            del self.names[rng.choice(sorted(self.names))]
        elif kind == 3:
            self.names[rng.choice(SECTIONS)] = Thing(self._next(), self._some()[:1])
        else:
            self.names[rng.choice(NAMES)] = Thing(self._next(), self._some())
        for name in SECTIONS:
            self.names.setdefault(name, Thing(self._next()))
        self.definitions = reachable(self.names, self.definitions)

    def delta(self) -> Delta:
        """What changed, in components of any shape; what did not change may come along."""
        now = {**self.names, **self.definitions}
        changed = [name for name in sorted(now) if self.known.get(name) != now[name].version]
        gone = [name for name in self.known if name not in now and not name.startswith("f")]
        self.known = {name: thing.version for name, thing in now.items()}
        groups: list[list[str]] = []
        for name in changed:
            around = name.startswith("env:")
            fitting = [g for g in groups if g[0].startswith("env:") == around]
            if fitting and self.rng.random() < 0.4:
                self.rng.choice(fitting).append(name)
            else:
                groups.append([name])
        resting = [name for name in now if name not in changed and not name.startswith("env:")]
        for group in groups:
            if resting and not group[0].startswith("env:") and self.rng.random() < 0.3:
                group.append(resting.pop(self.rng.randrange(len(resting))))
        made = [component(group, now) for group in groups]
        around_it = tuple(c for c in made if c.names and c.names[0].startswith("env:"))
        self.inputs += 1
        text = f"cell {self.inputs}"
        record = HistoryRecord(self.inputs, (text,), (text,), self.inputs, (self.inputs, -1, -1))
        return Delta(
            components=tuple(c for c in made if c not in around_it),
            deleted=tuple(sorted(gone)),
            environment=msgspec.msgpack.encode(EnvironmentRecord(around_it, record)),
            pending=(f"p{self.inputs}",),
        )


def component(group: list[str], now: dict[str, Thing]) -> Component:
    content = {name: (now[name].version, sorted(now[name].references)) for name in group}
    definitions = tuple(name for name in group if name.startswith("f"))
    mentioned = {ref for name in group for ref in now[name].references} - set(definitions)
    return Component(
        names=tuple(name for name in group if name not in definitions),
        skeleton=msgspec.msgpack.encode(content),
        definitions=definitions,
        references=tuple(sorted(mentioned)),
    )


class Standby:
    """Applies deltas by the rules of `kernel/synchronizer.py`."""

    def __init__(self) -> None:
        self.names: dict[str, Thing] = {}
        self.definitions: dict[str, Thing] = {}
        self.awaited: dict[str, Thing] = {}
        self.inputs: list[str] = []
        self.last: Delta | None = None

    def apply(self, delta: Delta) -> None:
        record = delta.around()
        names: dict[str, Thing] = {}
        loaded: dict[str, Thing] = {}
        seen: set[str] = set()
        components = (*delta.components, *record.components)
        for each in components:
            assert each.definitions is not None
            assert seen.isdisjoint(each.names + each.definitions), "twice in one delta"
            seen.update(each.names + each.definitions)
            content = msgspec.msgpack.decode(each.skeleton, type=dict[str, tuple[int, list[str]]])
            for name, (version, refs) in content.items():
                (loaded if name.startswith("f") else names)[name] = Thing(version, refs)
        self.definitions = {**self.awaited, **self.definitions, **loaded}
        for each in components:
            for ref in each.references:
                assert ref in self.definitions, f"{ref} is not on this replica"
        for name in delta.deleted:
            self.names.pop(name, None)
        self.names |= names
        if record.history is not None:
            del self.inputs[record.history.start - 1 :]
            self.inputs += record.history.inputs
        self.awaited = {**self.awaited, **loaded} if delta.unfinished else {}
        self.definitions = reachable(self.names, self.definitions)
        self.last = delta

    def seen(self) -> object:
        assert self.last is not None
        things = {**self.names, **self.definitions}
        history = self.last.around().history
        assert history is not None
        return (
            {name: (t.version, t.references) for name, t in things.items()},
            self.inputs,
            history.latest,
            history.count,
            self.last.pending,
        )


def applied(deltas: Iterable[FoldedDelta]) -> Standby:
    standby = Standby()
    for folded in deltas:
        standby.apply(folded.delta)
    return standby


@given(st.randoms(use_true_random=False), st.lists(st.integers(1, 3), min_size=1, max_size=12))
def test_a_folded_log_gives_the_same_namespace(rng: random.Random, cells: list[int]) -> None:
    executor = Executor(rng)
    deltas: list[FoldedDelta] = []
    folded: tuple[FoldedDelta, ...] = ()
    for index, changes in enumerate(cells, start=1):
        for _ in range(changes):
            executor.change()
        deltas.append(FoldedDelta(index, executor.delta()))
        if rng.random() < 0.4:
            # As an agent does: what was folded before is folded again with what came since.
            folded = fold((*folded, *deltas[folded[-1].index if folded else 0 :]))
    whole = applied(deltas)
    rest = deltas[folded[-1].index if folded else 0 :]
    for way in (fold(deltas), (*folded, *rest), fold((*folded, *rest))):
        assert applied(way).seen() == whole.seen()
        assert way[-1].index == deltas[-1].index
        assert not way[-1].delta.unfinished


def cell(index: int, *components: Component, deleted: tuple[str, ...] = ()) -> FoldedDelta:
    return FoldedDelta(index, Delta(components=components, deleted=deleted))


def value(name: str, content: bytes, **more: tuple[str, ...]) -> Component:
    return Component((name,), content, **{"definitions": (), **more})


def test_a_value_that_was_replaced_or_deleted_is_gone() -> None:
    log = [cell(1, value("a", b"1"), value("b", b"2")), cell(2, value("a", b"3"))]
    log.append(cell(3, deleted=("b",)))
    assert fold(log) == (cell(3, value("a", b"3")),)


def test_many_changes_of_one_name_fold_into_one() -> None:
    log = [cell(index, value("a", b"%d" % index)) for index in range(1, 1001)]
    assert fold(log) == (cell(1000, value("a", b"1000")),)


def test_an_unused_definition_is_gone_and_a_used_one_stays() -> None:
    f = Component((), b"f", definitions=("f",))
    log = [cell(1, f, value("a", b"1", references=("f",))), cell(2, value("a", b"2"))]
    assert fold(log) == (cell(2, value("a", b"2")),)
    assert fold(log[:1]) == tuple(log[:1])


def test_that_a_name_of_ipython_was_deleted_is_remembered() -> None:
    assert fold([cell(1, value("exit", b"1")), cell(2, deleted=("exit", "x"))]) == (
        cell(2, deleted=("exit",)),
    )


def test_components_of_an_older_log_are_never_taken_for_superseded() -> None:
    old = Component(("a",), b"old")
    folded = fold([cell(1, old), cell(2, value("a", b"new")), cell(3, value("b", b"1"))])
    assert [each.delta.components for each in folded] == [
        (old,),
        (value("a", b"new"), value("b", b"1")),
    ]


def test_large_values_come_in_pieces() -> None:
    values = [value(name, b"x" * 3_000_000) for name in NAMES]
    folded = fold([cell(number, each) for number, each in enumerate(values, start=1)])
    assert [len(each.delta.components) for each in folded] == [2, 2, 1]
    assert [each.delta.unfinished for each in folded] == [True, True, False]
    assert [each.index for each in folded] == [0, 0, 5]


def test_a_long_history_comes_in_pieces() -> None:
    text = "x" * 400_000
    log = [
        FoldedDelta(
            number,
            Delta(
                environment=msgspec.msgpack.encode(
                    EnvironmentRecord(
                        (), HistoryRecord(number, (text,), (text,), number, (number,))
                    )
                )
            ),
        )
        for number in range(1, 6)
    ]
    records = [each.delta.around().history for each in fold(log)]
    assert [record and (record.start, len(record.inputs), record.latest) for record in records] == [
        (1, 1, (-1,)),
        (2, 1, (-1,)),
        (3, 1, (-1,)),
        (4, 1, (-1,)),
        (5, 1, (5,)),
    ]
