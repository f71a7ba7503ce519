"""Majority arithmetic; a member always counts itself."""

from __future__ import annotations

from collections.abc import Iterable


def majority(member_count: int) -> int:
    """How many members of `member_count` decide; more than half, the asking member included."""
    return member_count // 2 + 1


def agreed(values: Iterable[int]) -> int:
    """The highest value that a majority has reached, given one value per member."""
    descending = sorted(values, reverse=True)
    return descending[majority(len(descending)) - 1]
