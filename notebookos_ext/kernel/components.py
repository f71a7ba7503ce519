"""One survey of the namespace: which names share parts, and what each component looks like now.

Every object that is not an atom is pickled, each known component by one pickler; all picklers stay
alive until the end, so that an address met by two of them is one object that both share. Components
that share are pickled together. What comes out is compared by fingerprint with what the other
replicas have. Nothing of the survey outlives it: it holds no user object alive.
"""

from __future__ import annotations

import gc
import itertools
import operator
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
from xxhash import xxh3_128_digest

from notebookos_ext.kernel.blocks import Fingerprints
from notebookos_ext.kernel.bundles import Bundle
from notebookos_ext.kernel.definitions import Definition
from notebookos_ext.kernel.grouping import Group, Memo, joined
from notebookos_ext.kernel.held import Leaf, Tombstone, type_name
from notebookos_ext.kernel.references import Index
from notebookos_ext.kernel.serializer import NamespacePickler, SurveySession
from notebookos_ext.kernel.set_order import frozen_recipe_for

_DEEP_STACK_BYTES = 512 * 1024 * 1024
_MAX_STARTS = 8
_TRIES = 20
"""How often to pickle something that a thread changes meanwhile."""


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

    @property
    def size_bytes(self) -> int:
        """The stream and the blocks."""
        return len(self.skeleton) + sum(block.nbytes for block in self.blocks)


_SETS = frozenset({set, frozenset})
_OBJECT = operator.itemgetter(1)


def _sets_in(memo: Memo) -> list[Any]:
    """The sets and frozen sets that were pickled."""
    # Most components have none, and some have a million objects.
    if _SETS.isdisjoint(map(type, map(_OBJECT, memo.values()))):
        return []
    return [value for _, value in memo.values() if type(value) in _SETS]


class Unpicklable(NamedTuple):
    """Stands for a value whose pickling failed as a whole."""

    type_name: str
    reason: str


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection, which would look at all that pickling makes, and no warnings.

    Warnings of what user objects do when pickled are not for the user. The list of filters is
    swapped: `catch_warnings` would make all warnings that were shown once be shown again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    filters = warnings.filters
    warnings.filters = [("ignore", None, Warning, None, 0)]
    try:
        yield
    finally:
        warnings.filters = filters
        if was_enabled:
            gc.enable()


def deeply(call: Callable[[], Any]) -> Any:
    """Run `call` on a thread with a large stack, for structures nested very deep."""
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
        """Alive until all memos were compared, so that no address of a temporary is used twice."""
        self._memos: list[Memo] = []
        self._groups: list[Group] = []
        self._dumps: list[Dumped] = []
        self._home: dict[str, Group] = {}
        self._skip: Skip = _never
        self.reached: set[str] = set()
        """Ids of all definitions that the groups lead to."""

    def run(
        self,
        groups: Iterable[Group],
        home: dict[str, Group],
        skip: Skip,
        bundles: Iterable[Bundle] = (),
    ) -> Found:
        """Pickle `groups` and every definition they lead to; components that share are merged.

        `home` says in which known group a definition travels, `skip` that one is as it was. The
        groups of `bundles` are looked at together, and one by one only where that does not do.
        """
        self._home, self._skip = home, skip
        taken = [(bundle, *self.dump_bundle(bundle.groups)) for bundle in bundles]
        needed = [def_id for _, _, _, references in taken for def_id in references]
        for group in groups:
            self.reached.update(group.definitions)
            needed.extend(self._add(group).references)
        self._follow(needed)
        # A bundle stands behind all components: it is opened if it shares with any of them.
        sets = self._joined([memo for _, memo, _, _ in taken])
        alone = {members[0] for members in sets if len(members) == 1}
        at_rest: list[Group] = []
        for number, (bundle, _, fingerprint, _) in enumerate(taken, start=len(self._memos)):
            if fingerprint == bundle.fingerprint and number in alone:
                at_rest.extend(bundle.groups)
                continue
            for group in bundle.groups:
                needed.extend(self._add(group).references)
        if len(at_rest) < sum(len(bundle.groups) for bundle, *_ in taken):
            self._follow(needed)
            sets = self._joined([])
        merged = self._merged(sets)
        # Before the garbage collector is on again: it would look at all that they hold.
        self._memos.clear()
        self._picklers.clear()
        return Found(merged, at_rest)

    def _follow(self, needed: list[str]) -> None:
        """Pickle the definitions that were referred to, and those that they refer to."""
        while needed:
            def_id = needed.pop()
            if def_id in self.reached:
                continue
            home = self._home.get(def_id)
            # A component with names comes with its names, unless those are gone or looked at
            # one by one; then its definitions are looked at one by one, too.
            together = home.definitions if home is not None and not home.names else (def_id,)
            group = self._alive(together)
            self.reached.update((def_id, *group.definitions))
            definition = self._session.definitions.get(def_id)
            if definition is None or (
                len(group.definitions) == 1 and self._skip(def_id, definition)
            ):
                continue
            needed.extend(self._add(group).references)

    def dump_alone(self, group: Group) -> Dumped:
        """Pickle one group and nothing that it leads to."""
        return self._dump(group)[1]

    def dump_bundle(self, groups: tuple[Group, ...]) -> tuple[Memo, bytes, set[str]]:
        """Pickle the values of several groups at once: memo, fingerprint, references."""
        pickler = self._pickler()
        try:
            pickler.dump([self._values[name] for group in groups for name in group.names])
        except Exception:  # noqa: BLE001 - whatever it is, it comes again when looked at one by one
            return {}, b"", set()
        if pickler.leaves or pickler.blocks or pickler.cells or pickler.touched:
            return {}, b"", set()
        memo = pickler.memo.copy()
        pickler.dump_recipes(value for value in _sets_in(memo) if type(value) is set)
        return memo, xxh3_128_digest(pickler.file.getbuffer()), pickler.references

    def _pickler(self) -> NamespacePickler:
        pickler = NamespacePickler(self._session)
        self._picklers.append(pickler)
        return pickler

    def _alive(self, definitions: tuple[str, ...]) -> Group:
        present = self._session.definitions.get
        return Group((), tuple(each for each in definitions if present(each) is not None))

    def _add(self, group: Group) -> Dumped:
        memo, dumped = self._dump(group)
        self._memos.append(memo)
        self._groups.append(group)
        self._dumps.append(dumped)
        return dumped

    def _dump(self, group: Group) -> tuple[Memo, Dumped]:
        tries = _TRIES
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
                tries -= 1
                if tries and isinstance(error, RuntimeError) and "during iteration" in str(error):
                    # A thread of the user's goes on; what it has when we look is as good as any.
                    continue
                self._refuse(group, error)

    def _refuse(self, group: Group, error: Exception) -> None:
        name = self._current
        if name not in group.names or type(self._values[name]) is Unpicklable:
            raise error
        reason = str(error) or type(error).__name__
        self._values[name] = Unpicklable(type_name(self._values[name]), reason)

    def _dump_once(
        self, group: Group, frozen: tuple[frozenset[Any], ...] = ()
    ) -> tuple[Memo, Dumped]:
        pickler = self._pickler()
        if frozen:
            pickler.dump_frozen(frozen)
        self._current = ""
        leaves: list[tuple[str, Leaf]] = []
        ranked: tuple[tuple[str, int], ...] = ()
        if group.definitions:
            present = self._session.definitions.get
            found = [(def_id, present(def_id)) for def_id in group.definitions]
            pairs = [(def_id, each) for def_id, each in found if each is not None]
            ranked = pickler.dump_definitions(pairs)
            leaves = [(pairs[0][1].__qualname__, leaf) for leaf in pickler.leaves]
            pickler.leaves.clear()
        for name in group.names:
            self._current = name
            value = self._values[name]
            if type(value) is Unpicklable:
                pickler.leaves.append(Leaf(*value))
                value = Tombstone(value.type_name, value.reason)
            pickler.dump(value)
            leaves += [(name, leaf) for leaf in pickler.leaves]
            pickler.leaves.clear()
        memo = pickler.memo.copy()
        found_sets = _sets_in(memo)
        tail = bool(found_sets or pickler.cells)
        if tail:
            pickler.dump_cells()
            memo = pickler.memo.copy()
            found_sets = _sets_in(memo)
            pickler.dump_recipes(value for value in found_sets if type(value) is set)
            leaves += [(group.names[0], leaf) for leaf in pickler.leaves if group.names]
        if not frozen:
            odd = [each for each in found_sets if type(each) is frozenset]
            odd = [each for each in odd if frozen_recipe_for(each) is not None]
            if odd:
                return self._dump_once(group, tuple(odd))
        memo.update((id(value), (len(memo), value)) for value in pickler.touched)
        if pickler.held:
            # Pickled once, under the first name that led to it; its own name tells the user more.
            held = ((name, pickler.held.get(id(self._values[name]))) for name in group.names)
            leaves += [(name, leaf) for name, leaf in held if leaf is not None]
        pieces = tuple(pickler.pieces)
        index = msgspec.msgpack.encode(Index(ranked, group.names, bool(frozen), tail, pieces))
        stream = pickler.file.getvalue()
        blocks = tuple(pickler.blocks)
        prints = tuple(map(self._session.fingerprints, blocks))
        digest = xxh3_128_digest(stream)
        if prints:
            digest = xxh3_128_digest(b"".join((digest, *itertools.chain(*prints))))
        dumped = Dumped(
            Group(group.names, tuple(def_id for def_id, _ in ranked)),
            len(index).to_bytes(4, "big") + index + stream,
            blocks,
            prints,
            digest,
            frozenset(pickler.references),
            tuple(leaves),
        )
        return memo, dumped

    # ------------------------------------------------------------- sharing

    def _joined(self, more: list[Memo]) -> list[list[int]]:
        memos = [*self._memos, *more]
        return joined(memos, self._session.separate, len(self._session.specials))

    def _merged(self, sets: list[list[int]]) -> list[Dumped]:
        """Pickle together what shares an object."""
        merged: list[Dumped] = []
        for numbers in sets:
            members = [number for number in numbers if number < len(self._groups)]
            if len(members) == 1:
                merged.append(self._dumps[members[0]])
            elif members:
                names = sorted({name for each in members for name in self._groups[each].names})
                ids = sorted({each for one in members for each in self._groups[one].definitions})
                merged.append(self._dump(Group(tuple(names), tuple(ids)))[1])
        return merged


class Found(NamedTuple):
    """What a survey found."""

    dumps: list[Dumped]
    at_rest: list[Group]
    """Components of bundles that did not change."""


Skip = Callable[[str, Definition], bool]


def _never(_: str, __: Definition) -> bool:
    return False


def survey(
    open_session: Callable[[], SurveySession],
    values: dict[str, Any],
    groups: list[Group],
    home: dict[str, Group],
    skip: Skip,
    bundles: Iterable[Bundle] = (),
) -> tuple[Survey, Found]:
    """Survey `values`: the components, and the survey itself for what else it knows.

    Starts again when memory taken for separate turned out to be shared (`torch.from_numpy` of a
    part of an array that was met later): the second time, the owner is known from the beginning.
    """
    memory: dict[str, Any] = {}
    with undisturbed():
        for _ in range(_MAX_STARTS):
            session = open_session()
            owners = memory.get("owners")
            if owners is not None:
                owners.forget_foreign()
                session.memory["owners"] = owners
            run = Survey(session, values)
            found = run.run(groups, home, skip, bundles)
            if not session.conflict:
                break
            memory = session.memory
        return run, found


def survey_one(
    open_session: Callable[[], SurveySession], values: dict[str, Any], group: Group
) -> Dumped:
    """One component as it is, whatever it may share with others."""
    with undisturbed():
        return Survey(open_session(), values).dump_alone(group)
