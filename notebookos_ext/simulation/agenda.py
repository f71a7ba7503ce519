"""What is to happen at which time: a heap, and the virtual time that it drives."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Agenda:
    """Calls in the order of their time; calls of one time in the order in which they were noted."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._calls: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._noted = 0

    def __len__(self) -> int:
        return len(self._calls)

    def at(self, at_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call it then; what lies in the past is called next."""
        self._noted += 1
        heapq.heappush(self._calls, (max(at_s, self.now_s), self._noted, call, arguments))

    def after(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call it so much later."""
        self._noted += 1
        heapq.heappush(self._calls, (self.now_s + delay_s, self._noted, call, arguments))

    def step(self) -> None:
        """Move on to the next call and make it."""
        self.now_s, _, call, arguments = heapq.heappop(self._calls)
        call(*arguments)
