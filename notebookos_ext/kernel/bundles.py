"""Small components that rest are looked at by the hundred.

A pickler costs more than a short list does. Components of one small value that did not change the
last time are bundled: one pickle of all their values, compared by one fingerprint. A bundle that
differs, or shares an object with something outside, is looked at component by component.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from notebookos_ext.kernel.grouping import Group

BUNDLE = 100
"""How many components a bundle holds at most."""


class Bundle(NamedTuple):
    """Components, and the fingerprint of their values taken together."""

    groups: tuple[Group, ...]
    fingerprint: bytes


class Bundles:
    """All bundles of a namespace."""

    def __init__(self) -> None:
        self._bundles: list[Bundle] = []
        self._bundled: set[Group] = set()

    def current(self, groups: set[Group]) -> list[Bundle]:
        """The bundles whose components are all in `groups`; others are dissolved."""
        self._keep([each for each in self._bundles if groups.issuperset(each.groups)])
        return self._bundles

    def dissolve(self, names: set[str]) -> None:
        """Look at these names one by one the next time."""
        kept = [b for b in self._bundles if not any(names & set(g.names) for g in b.groups)]
        self._keep(kept)

    def renew(
        self,
        resting: Iterable[Group],
        broken: set[Group],
        take: Callable[[tuple[Group, ...]], bytes | None],
    ) -> None:
        """Drop bundles with a component in `broken`; bundle those of `resting` that are in none.

        `take` pickles some components together and returns the fingerprint, None if it cannot.
        """
        if broken:
            self._keep([each for each in self._bundles if broken.isdisjoint(each.groups)])
        free = [each for each in resting if each not in self._bundled]
        for start in range(0, len(free), BUNDLE):
            groups = tuple(free[start : start + BUNDLE])
            if len(groups) < 4:
                break
            fingerprint = take(groups)
            if fingerprint is not None:
                self._bundles.append(Bundle(groups, fingerprint))
                self._bundled.update(groups)

    def _keep(self, bundles: list[Bundle]) -> None:
        if len(bundles) != len(self._bundles):
            self._bundles = bundles
            self._bundled = {group for each in bundles for group in each.groups}
