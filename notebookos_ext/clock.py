"""Time as an argument: the only file of the package that calls `time.*`."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What anything that waits or stamps receives instead of reading the time itself."""

    def now(self) -> float:
        """Seconds since the Unix epoch; for what people and files see."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards; for durations and time-outs."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()


class VirtualClock:
    """A clock that moves only when told to; for tests and the simulator."""

    def __init__(self, start: float = 0.0) -> None:
        self._seconds = start

    def now(self) -> float:
        """The virtual time, in seconds."""
        return self._seconds

    def monotonic(self) -> float:
        """The virtual time, in seconds."""
        return self._seconds

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`; a negative step is a mistake of the caller."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back {-seconds} s")
        self._seconds += seconds
