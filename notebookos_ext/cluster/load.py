"""What is remembered of the load: how kernels rest, what was wanted and what was launched."""

from __future__ import annotations

import bisect
import math
from collections import deque

EDGES_S = (15.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1_920.0, 3_840.0, 15_360.0, 61_440.0)
"""A length falls into the first class whose edge it does not exceed; the last has no edge."""
RESTS = (0.02, 0.06, 0.14, 0.24, 0.21, 0.13, 0.07, 0.04, 0.03, 0.03, 0.02, 0.01)
"""Shares by class of rests between two cells in a public trace of notebook use."""
RUNS = (0.04, 0.08, 0.13, 0.25, 0.18, 0.13, 0.09, 0.05, 0.02, 0.02, 0.007, 0.003)
"""The same of how long cells ran (paper section 8.1)."""
PRIOR_WEIGHT = 40.0
"""As many lengths of our own count as much as the prior."""
LAUNCHES_S = 600.0
"""Over how long launches are counted."""
MONTH_S = 30 * 86_400.0
BISECTIONS = 12
FORGET_AT = 4_000.0
"""With more lengths than these the older ones count half."""


class Lengths:
    """How long something lasts that kernels do, all of them together.

    What was measured in a public trace stands in until there are enough lengths of our own.
    """

    def __init__(self, prior: tuple[float, ...]) -> None:
        self._counts = [share * PRIOR_WEIGHT for share in prior]
        self._total = PRIOR_WEIGHT
        self.own = 0
        """How many were added."""

    def add(self, length_s: float) -> None:
        """One has ended."""
        self._counts[bisect.bisect_left(EDGES_S, length_s)] += 1
        self._total += 1
        self.own += 1
        if self._total > FORGET_AT:
            self._counts = [count / 2 for count in self._counts]
            self._total /= 2

    def longer_than(self, length_s: float) -> float:
        """How many were longer, as a share."""
        below, low = 0.0, 0.0
        for edge, count in zip(EDGES_S, self._counts, strict=False):
            if length_s < edge:
                # Within a class lengths are spread evenly over the logarithm of their length.
                first = max(low, 1.0)
                inside = math.log(max(length_s, first) / first) / math.log(edge / first)
                return 1.0 - (below + count * inside) / self._total
            below += count
            low = edge
        return max(self._counts[-1] / self._total * low / max(length_s, low), 1e-9)

    def ends_within(self, lasted_s: float, horizon_s: float) -> float:
        """The chance that one which has lasted so long ends within the horizon."""
        now = self.longer_than(lasted_s)
        return min(1.0, max(0.0, 1.0 - self.longer_than(lasted_s + horizon_s) / now))

    def half_of_rest_s(self, lasted_s: float) -> float:
        """After how much more time half of those that have lasted so long have ended."""
        wanted = self.longer_than(lasted_s) / 2
        low, high = lasted_s, max(1.0, 2 * lasted_s)
        while self.longer_than(high) > wanted and high < MONTH_S:
            low, high = high, 2 * high
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.longer_than(middle) > wanted else (low, middle)
        return high - lasted_s


class Scaling:
    """What the autoscaler remembers."""

    def __init__(self) -> None:
        self.looked_at = float("-inf")
        self.asked_at = float("-inf")
        self.asked_for = 0
        self.unavailable_until = float("-inf")
        self.unavailable_reason = ""
        """Why the backend had no more hosts when it was last asked; empty once one has joined."""
        self.rests = Lengths(RESTS)
        """From the end of a cell with GPUs to the arrival of the kernel's next."""
        self.runs = Lengths(RUNS)
        """How long cells with GPUs hold them."""
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
