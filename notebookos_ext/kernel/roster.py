"""What all replicas have: each component with its fingerprint, and the atoms by value."""

from __future__ import annotations

import itertools
import operator
import types
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from notebookos_ext.kernel.bundles import Bundle, Bundles
from notebookos_ext.kernel.components import Dumped
from notebookos_ext.kernel.definitions import Definition, Definitions
from notebookos_ext.kernel.grouping import Group
from notebookos_ext.kernel.held import Leaf

ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, type(Ellipsis)})
"""Exact types whose values are compared themselves, without pickling."""

_NAMES = operator.itemgetter(0)
_SMALL_BYTES = 4 * 1024
"""Components up to this size are bundled."""
_LOOSEN_BYTES = 256 * 1024
_LOOSEN_AFTER = 10
"""Changes after which a component above `_LOOSEN_BYTES` is taken apart again."""


class Known(NamedTuple):
    """A component as all replicas have it."""

    fingerprint: bytes
    references: frozenset[str]
    leaves: tuple[tuple[str, Leaf], ...]
    size_bytes: int
    prints: frozenset[bytes]
    """Fingerprints of the chunks of its blocks."""
    changed: int = 0
    """Changes since its roots were last looked at one by one."""


class Plan(NamedTuple):
    """How to look at the namespace."""

    alone: list[Group]
    bundles: list[Bundle]
    loose: list[Group]
    """Known components whose names are looked at one by one this time."""


class Roster:
    """Remembers what was sent or applied. Holds no user object but atoms."""

    def __init__(self, definitions: Definitions) -> None:
        self.known: dict[Group, Known | None] = {}
        """None: the other replicas may lack it."""
        self.home: dict[str, Group] = {}
        """In which component a definition travels."""
        self.atoms: dict[str, Any] = {}
        self.missing: set[str] = set()
        """Names whose deletion the other replicas may not know of."""
        self.bundles = Bundles()
        self._definitions = definitions
        self._simple: dict[str, tuple[Any, ...]] = {}

    # ------------------------------------------------------------- asking

    def names(self) -> set[str]:
        """All names that other replicas may have."""
        named = itertools.chain.from_iterable(map(_NAMES, self.known))
        return set(named).union(self.atoms, self.missing)

    def plan(self, values: Collection[str]) -> Plan:
        """How to look at the names in `values`."""
        groups: list[Group] = []
        loose: list[Group] = []
        grouped: set[str] = set()
        present = self._definitions.get
        for group, known in self.known.items():
            if len(group.names) == 1 and not group.definitions:
                # By far the most.
                if group.names[0] in values:
                    groups.append(group)
                    grouped.add(group.names[0])
                continue
            names = tuple(name for name in group.names if name in values)
            if not names:
                continue
            if known is not None and self._is_loose(group, known):
                loose.append(group)
                continue
            ids = tuple(each for each in group.definitions if present(each) is not None)
            groups.append(Group(names, ids))
            grouped.update(names)
        bundles = self.bundles.current(set(groups))
        bundled = {group for bundle in bundles for group in bundle.groups}
        alone = [group for group in groups if group not in bundled]
        alone += [Group((name,), ()) for name in values if name not in grouped]
        return Plan(alone, list(bundles), loose)

    def holding(self, prints: set[bytes]) -> list[Group]:
        """The components with names that have chunks with these fingerprints."""
        return [
            group
            for group, known in self.known.items()
            if group.names and known is not None and not known.prints.isdisjoint(prints)
        ]

    def fell_apart(self, loose: Group, whole: Dumped, dumps: Iterable[Dumped]) -> set[Group]:
        """The parts of a component that no longer share, if the others have the whole as it is."""
        if not self.has(whole) or whole.group != loose:
            return set()
        names, ids = set(loose.names), set(loose.definitions)
        groups = (each.group for each in dumps)
        return {g for g in groups if names.issuperset(g.names) and ids.issuperset(g.definitions)}

    @staticmethod
    def _is_loose(group: Group, known: Known) -> bool:
        """Whether to take a component apart: what shared once may share no more."""
        if len(group.names) + len(group.definitions) < 2 or not known.changed:
            return False
        return known.size_bytes <= _LOOSEN_BYTES or known.changed >= _LOOSEN_AFTER

    def has(self, dumped: Dumped) -> bool:
        """Whether the other replicas have the component as it is."""
        known = self.known.get(dumped.group)
        return known is not None and known.fingerprint == dumped.fingerprint

    def has_atom(self, name: str, value: Any) -> bool:
        """Whether the other replicas have the atom."""
        known = self.atoms.get(name, self)
        if known is value:
            return True
        if type(known) is not type(value):
            return False
        if type(value) in {float, complex}:
            # repr tells 0.0 from -0.0 and knows NaN.
            return repr(known) == repr(value)
        return bool(known == value)

    def is_simple(self, def_id: str, definition: Definition) -> bool:
        """Whether a definition is a known function without state that is still the same."""
        known = self.known.get(Group((), (def_id,)))
        if known is None or known.references:
            return False
        token = _token(definition)
        return token is not None and _same(self._simple.get(def_id), token)

    # ------------------------------------------------------------- remembering

    def remember(
        self,
        dumps: list[Dumped],
        at_rest: Iterable[Group],
        reached: set[str],
        atoms: dict[str, Any],
    ) -> set[Group]:
        """Everything was sent; returns the components that did not change."""
        sent = {def_id for each in dumps for def_id in each.group.definitions}
        rested = set(at_rest)
        kept = {
            group: known
            for group, known in self.known.items()
            if group in rested
            or (
                not group.names
                and known is not None
                and reached.issuperset(group.definitions)
                and sent.isdisjoint(group.definitions)
            )
        }
        quiet: set[Group] = set()
        for each in dumps:
            before = self.known.get(each.group)
            if before is not None and before.fingerprint == each.fingerprint:
                quiet.add(each.group)
                # Whatever was taken apart for a look holds together after all.
                kept[each.group] = before if not before.changed else before._replace(changed=0)
            else:
                kept[each.group] = _known(each, 0 if before is None else before.changed + 1)
                self._note_simple(each.group)
        self.known = kept
        self._rehome()
        self.atoms = atoms
        self.missing.clear()
        return quiet

    def small(self, groups: Iterable[Group]) -> list[Group]:
        """Those of `groups` that may be bundled."""
        found = []
        for group in groups:
            known = self.known.get(group)
            if known is None or group.definitions or len(group.names) != 1 or known.leaves:
                continue
            if known.size_bytes <= _SMALL_BYTES and ":" not in group.names[0]:
                found.append(group)
        return found

    def note(self, dumped: Dumped) -> None:
        """A component was applied."""
        self.known[dumped.group] = _known(dumped, 0)
        self.home.update(dict.fromkeys(dumped.group.definitions, dumped.group))
        self._note_simple(dumped.group)

    def replace(self, names: set[str], definitions: set[str]) -> None:
        """These get new contents: what is left of their old components is no longer known."""
        kept: dict[Group, Known | None] = {}
        for group, known in self.known.items():
            if names.isdisjoint(group.names) and definitions.isdisjoint(group.definitions):
                kept[group] = known
                continue
            rest = Group(
                tuple(name for name in group.names if name not in names),
                tuple(each for each in group.definitions if each not in definitions),
            )
            if rest.names or rest.definitions:
                kept[rest] = None
        self.known = kept
        self._rehome()
        self.bundles.dissolve(names)
        for name in names:
            self.atoms.pop(name, None)

    def forget(self, names: set[str], also: str) -> None:
        """The others may lack these names, all definitions, and names that begin with `also`."""
        for group in self.known:
            if not group.names or names & set(group.names) or group.names[0].startswith(also):
                self.known[group] = None
        # What refers to a lost definition could not be loaded, or will be loaded before it.
        lost = {each for group in self.known for each in group.definitions if not self.known[group]}
        for group, known in self.known.items():
            if known is not None and known.references & lost:
                self.known[group] = None
        self.missing |= names
        self.bundles.dissolve(names)
        for name in names:
            self.atoms.pop(name, None)
        self._simple.clear()

    def _rehome(self) -> None:
        self.home = {def_id: group for group in self.known for def_id in group.definitions}

    def _note_simple(self, group: Group) -> None:
        if not group.names and len(group.definitions) == 1:
            (def_id,) = group.definitions
            definition = self._definitions.get(def_id)
            token = _token(definition) if definition is not None else None
            if token is None:
                self._simple.pop(def_id, None)
            else:
                self._simple[def_id] = token


def _known(dumped: Dumped, changed: int) -> Known:
    prints = frozenset(itertools.chain(*dumped.prints))
    return Known(
        dumped.fingerprint, dumped.references, dumped.leaves, dumped.size_bytes, prints, changed
    )


def _token(definition: Definition) -> tuple[Any, ...] | None:
    """What a function without state consists of; None for everything that needs a closer look."""
    if not isinstance(definition, types.FunctionType):
        return None
    if definition.__closure__ is not None or definition.__kwdefaults__ or definition.__dict__:
        return None
    defaults = definition.__defaults__ or ()
    annotations = definition.__annotations__
    if any(type(each) not in ATOMS for each in defaults):
        return None
    if any(
        not isinstance(each, type) or each.__module__ != "builtins" for each in annotations.values()
    ):
        return None
    return (
        definition.__code__,
        definition.__name__,
        definition.__qualname__,
        definition.__doc__,
        definition.__module__,
        len(defaults),
        *defaults,
        *annotations,
        *annotations.values(),
    )


def _same(one: tuple[Any, ...] | None, other: tuple[Any, ...]) -> bool:
    if one is None or len(one) != len(other):
        return False
    return all(a is b for a, b in zip(one, other, strict=True))
