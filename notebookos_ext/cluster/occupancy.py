"""How many GPUs there are and how many of them are bound, as stretches in which neither changes."""

from __future__ import annotations

import msgspec

NOTE_S = 60.0
"""A stretch that goes on is written down this often: what a killed server forgets is no more."""


class GpuStretch(msgspec.Struct, frozen=True):
    """From `since` to `until` so many GPUs were there, and so many of them bound; key: `since`."""

    since: float
    until: float
    provisioned: int
    bound: int


class Occupancy:
    """Watches two numbers."""

    def __init__(self) -> None:
        self._open: GpuStretch | None = None
        self._noted_at = 0.0

    def note(self, at: float, *, provisioned: int, bound: int) -> list[GpuStretch]:
        """What they are at the time `at`; the stretch to write down, if there is one."""
        now = GpuStretch(at, at, provisioned, bound)
        last = self._open
        if last is None:
            self._open, self._noted_at = now, at
            return []
        same = (last.provisioned, last.bound) == (provisioned, bound)
        if same and at - self._noted_at < NOTE_S:
            return []
        self._noted_at = at
        if not same:
            self._open = now
        return self._until(last, at)

    def finish(self, at: float) -> list[GpuStretch]:
        """Nobody watches any more: the stretch up to now."""
        return [] if self._open is None else self._until(self._open, at)

    @staticmethod
    def _until(stretch: GpuStretch, at: float) -> list[GpuStretch]:
        return [msgspec.structs.replace(stretch, until=at)] if at > stretch.since else []
