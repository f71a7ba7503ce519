"""One survey of the namespace: which names share parts, and what each such component looks like now.

Every object that is not an atom is pickled, each known component by one pickler; all picklers stay
alive until the end, so that an address met by two of them is one object that both share. Components
that share are pickled together. What comes out is compared by fingerprint with what the other
replicas have. Nothing of the survey outlives it: it holds no user object alive.
"""

from __future__ import annotations

import gc
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
from xxhash import xxh3_128

from notebookos_ext.kernel.blocks import Fingerprints, fingerprints
from notebookos_ext.kernel.definitions import Definition
from notebookos_ext.kernel.held import Leaf, Tombstone, type_name
from notebookos_ext.kernel.serializer import SEPARATE_TYPES, Index, NamespacePickler, SurveySession

_DEEP_STACK_BYTES = 512 * 1024 * 1024
_MAX_STARTS = 8


Memo = dict[int, tuple[int, Any]]
"""A pickler's memo: address to (number, object)."""


class Group(NamedTuple):
    """The roots of a component: names of the namespace and ids of definitions."""

    names: tuple[str, ...]
    definitions: tuple[str, ...]


class Dumped(NamedTuple):
    """A component as it is now. Its blocks are live memory: valid until user code runs again."""

    group: Group
    skeleton: bytes
    blocks: tuple[memoryview, ...]
    prints: tuple[Fingerprints, ...]
    fingerprint: bytes
    references: frozenset[str]
    leaves: tuple[tuple[str, Leaf], ...]
    """What cannot travel, with the name it was met under."""


class Unpicklable(NamedTuple):
    """Stands for a value whose pickling failed as a whole."""

    type_name: str
    reason: str


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection: pickling makes many objects, and each pass would look at all of them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def deeply(call: Callable[[], Any]) -> Any:
    """Run `call` on a thread with a large stack, for structures nested deeper than Python allows."""
    outcome: list[Any] = []
    limit, size = sys.getrecursionlimit(), threading.stack_size(_DEEP_STACK_BYTES)

    def run() -> None:
        try:
            outcome.extend((True, call()))
        except Exception as error:  # noqa: BLE001 - carried over to the caller
            outcome.extend((False, error))

    thread = threading.Thread(target=run)
    sys.setrecursionlimit(1_000_000)
    try:
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(limit)
        threading.stack_size(size)
    done, result = outcome
    if not done:
        raise result
    return result


class Survey:
    """Pickles groups of roots, and finds which of them must travel together."""

    def __init__(self, session: SurveySession, values: dict[str, Any]) -> None:
        self._session = session
        self._values = values
        self._picklers: list[NamespacePickler] = []
        self._memos: list[Memo] = []
        self._groups: list[Group] = []
        self._dumps: list[Dumped] = []

    def run(
        self,
        groups: Iterable[Group],
        home: dict[str, Group],
        skip: Callable[[str, Definition], bool],
    ) -> list[Dumped]:
        """Pickle `groups` and every definition they lead to; components that share are merged.

        `home` says in which known group a definition travels, `skip` that one is as it was.
        """
        needed: list[str] = []
        seen: set[str] = set()
        for group in groups:
            if group.names:
                seen.update(group.definitions)
                needed.extend(self._add(group).references)
        while needed:
            def_id = needed.pop()
            if def_id in seen:
                continue
            group = self._alive(home.get(def_id) or Group((), (def_id,)))
            seen.update(group.definitions)
            definition = self._session.definitions.get(def_id)
            if definition is None or (len(group.definitions) == 1 and skip(def_id, definition)):
                continue
            needed.extend(self._add(group).references)
        self.reached = seen
        return self._merge()

    def dump_alone(self, group: Group) -> Dumped:
        """Pickle one group and nothing that it leads to."""
        return self._dump(group)[1]

    def _alive(self, group: Group) -> Group:
        present = self._session.definitions.get
        return Group((), tuple(each for each in group.definitions if present(each) is not None))

    def _add(self, group: Group) -> Dumped:
        memo, dumped = self._dump(group)
        # Picklers and copies of their memos keep the temporaries' addresses taken until all were
        # compared.
        self._memos.append(memo)
        self._groups.append(group)
        self._dumps.append(dumped)
        return dumped

    def _dump(self, group: Group) -> tuple[Memo, Dumped]:
        while True:
            try:
                return self._dump_once(group)
            except RecursionError:
                try:
                    found: tuple[Memo, Dumped] = deeply(lambda: self._dump_once(group))
                except Exception as error:  # noqa: BLE001 - named to the user; the rest travels
                    self._refuse(group, error)
                else:
                    return found
            except Exception as error:  # noqa: BLE001 - named to the user; the rest travels
                self._refuse(group, error)

    def _refuse(self, group: Group, error: Exception) -> None:
        name = self._current
        if name not in group.names or isinstance(self._values[name], Unpicklable):
            raise error
        reason = str(error) or type(error).__name__
        self._values[name] = Unpicklable(type_name(self._values[name]), reason)

    def _dump_once(self, group: Group) -> tuple[Memo, Dumped]:
        pickler = NamespacePickler(self._session)
        present = self._session.definitions.get
        self._current = ""
        pairs = [
            (def_id, found)
            for def_id in group.definitions
            if (found := present(def_id)) is not None
        ]
        ranked = pickler.dump_definitions(pairs)
        leaves = [(def_name(found), leaf) for _, found in pairs[:1] for leaf in pickler.leaves]
        pickler.leaves.clear()
        for name in group.names:
            self._current = name
            value = self._values[name]
            if isinstance(value, Unpicklable):
                pickler.leaves.append(Leaf(*value))
                value = Tombstone(value.type_name, value.reason)
            pickler.dump(value)
            leaves += [(name, leaf) for leaf in pickler.leaves]
            pickler.leaves.clear()
        pickler.dump_cells()
        memo = pickler.memo.copy()
        memo.update((id(value), (len(memo), value)) for value in pickler.touched)
        pickler.dump_recipes(value for _, value in memo.values() if type(value) is set)
        leaves += [(name, leaf) for name in group.names[:1] for leaf in pickler.leaves]
        index = msgspec.msgpack.encode(Index(ranked, group.names))
        stream = pickler.file.getvalue()
        blocks = tuple(pickler.blocks)
        prints = tuple(map(fingerprints, blocks))
        whole = xxh3_128(stream)
        for each in prints:
            whole.update(b"".join(each))
        dumped = Dumped(
            Group(group.names, tuple(def_id for def_id, _ in ranked)),
            len(index).to_bytes(4, "big") + index + stream,
            blocks,
            prints,
            whole.digest(),
            frozenset(pickler.references),
            tuple(leaves),
        )
        self._picklers.append(pickler)
        return memo, dumped

    # ------------------------------------------------------------- sharing

    def _merge(self) -> list[Dumped]:
        """Pickle together what shares an object."""
        parent = list(range(len(self._dumps)))

        def find(node: int) -> int:
            while parent[node] != node:
                parent[node] = parent[parent[node]]
                node = parent[node]
            return node

        owner: dict[int, int] = {}
        separate, specials = self._session.separate, len(self._session.specials)
        for number, memo in enumerate(self._memos):
            for key, (place, value) in memo.items():
                if type(value) in SEPARATE_TYPES or place < specials or key in separate:
                    continue
                first = owner.setdefault(key, number)
                if first != number and not isinstance(value, (type, types.FunctionType)):
                    parent[find(number)] = find(first)
        together: dict[int, list[int]] = {}
        for number in range(len(self._dumps)):
            together.setdefault(find(number), []).append(number)
        merged: list[Dumped] = []
        for members in together.values():
            if len(members) == 1:
                merged.append(self._dumps[members[0]])
                continue
            names = sorted({name for number in members for name in self._groups[number].names})
            ids = sorted({each for number in members for each in self._groups[number].definitions})
            merged.append(self._dump(Group(tuple(names), tuple(ids)))[1])
        return merged


def def_name(definition: Definition) -> str:
    """A definition as the user knows it."""
    return definition.__qualname__


def survey(
    open_session: Callable[[], SurveySession],
    values: dict[str, Any],
    groups: list[Group],
    home: dict[str, Group],
    skip: Callable[[str, Definition], bool],
) -> tuple[list[Dumped], set[str]]:
    """Survey `values`; returns the components and the ids of all definitions they lead to.

    Starts again when memory taken for separate turned out to be shared (`torch.from_numpy` of a
    part of an array that was met later): the second time, the owner is known from the beginning.
    """
    memory: dict[str, Any] = {}
    with collector_paused():
        for _ in range(_MAX_STARTS):
            session = open_session()
            owners = memory.get("owners")
            if owners is not None:
                owners.forget_foreign()
                session.memory["owners"] = owners
            run = Survey(session, values)
            dumps = run.run(groups, home, skip)
            if not session.conflict:
                break
            memory = session.memory
        return dumps, run.reached


def survey_one(
    open_session: Callable[[], SurveySession], values: dict[str, Any], group: Group
) -> Dumped:
    """One component as it is, whatever it may share with others."""
    with collector_paused():
        run = Survey(open_session(), values)
        return run.dump_alone(group)
