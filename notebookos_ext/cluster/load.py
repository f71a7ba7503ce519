"""What is remembered of the load: how kernels rest, what was wanted and what was launched."""

from __future__ import annotations

import math
from collections import deque

EDGES_S = (15.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1_920.0, 3_840.0, 15_360.0, 61_440.0)
"""A rest falls into the first class whose edge it does not exceed; the last class has no edge."""
PRIOR = (0.02, 0.06, 0.14, 0.24, 0.21, 0.13, 0.07, 0.04, 0.03, 0.03, 0.02, 0.01)
"""Shares of rests by class in a month of notebook use (paper section 8.1, think times)."""
PRIOR_WEIGHT = 40.0
"""As many rests of our own count as much as the prior."""
LAUNCHES_S = 600.0
"""Over how long launches are counted."""
FORGET_AT = 4_000.0
"""With more rests than these the older ones count half."""


class Rests:
    """How long kernels rest from the end of a cell with GPUs to the arrival of the next.

    All kernels together. What was measured in a public trace stands for some rests until there are
    enough of our own.
    """

    def __init__(self) -> None:
        self._counts = [share * PRIOR_WEIGHT for share in PRIOR]
        self._total = PRIOR_WEIGHT

    def add(self, rest_s: float) -> None:
        """A rest has ended."""
        place = 0
        for edge in EDGES_S:
            if rest_s <= edge:
                break
            place += 1
        self._counts[place] += 1
        self._total += 1
        if self._total > FORGET_AT:
            self._counts = [count / 2 for count in self._counts]
            self._total /= 2

    def longer_than(self, rest_s: float) -> float:
        """How many rests were longer, as a share."""
        below, low = 0.0, 0.0
        for edge, count in zip(EDGES_S, self._counts, strict=False):
            if rest_s < edge:
                # Within a class rests are spread evenly over the logarithm of their length.
                first = max(low, 1.0)
                inside = math.log(max(rest_s, first) / first) / math.log(edge / first)
                return 1.0 - (below + count * inside) / self._total
            below += count
            low = edge
        return max(self._counts[-1] / self._total * low / max(rest_s, low), 1e-9)

    def ends_within(self, rested_s: float, horizon_s: float) -> float:
        """The chance that a rest which has lasted so long ends within the horizon."""
        now = self.longer_than(rested_s)
        return max(0.0, 1.0 - self.longer_than(rested_s + horizon_s) / now)


class Scaling:
    """What the autoscaler remembers."""

    def __init__(self) -> None:
        self.looked_at = float("-inf")
        self.asked_at = float("-inf")
        self.asked_for = 0
        self.unavailable_until = float("-inf")
        self.rests = Rests()
        self._wanted: deque[tuple[float, int]] = deque()
        """What was wanted when, greatest first: what a later, greater one hides is forgotten."""

    def want(self, count: int, at: float) -> None:
        """The rule wants so many hosts."""
        while self._wanted and self._wanted[-1][1] <= count:
            self._wanted.pop()
        self._wanted.append((at, count))

    def wanted_since(self, since: float) -> int:
        """The most that was wanted since then, and at the last look."""
        while len(self._wanted) > 1 and self._wanted[0][0] < since:
            self._wanted.popleft()
        return self._wanted[0][1] if self._wanted else 0


class Launches:
    """How often replicas are launched, which is how often pre-warmed ones could be of use."""

    def __init__(self) -> None:
        self.used_at: list[float] = []
        """When replicas were launched, pre-warmed or not, within the window."""
        self.looked_at = float("-inf")

    def note(self, at: float) -> None:
        """A replica was launched."""
        self.used_at.append(at)

    def per_minute(self, at: float) -> float:
        """How many replicas were launched a minute, lately."""
        self.used_at = [used for used in self.used_at if used > at - LAUNCHES_S]
        return len(self.used_at) * 60.0 / LAUNCHES_S
