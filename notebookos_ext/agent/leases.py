"""The lease of a host agent: renewed by its controller; when it runs out the agent ends."""

from __future__ import annotations

import asyncio

from notebookos_ext.clock import Clock
from notebookos_ext.errors import InvalidRequest

LONGEST_LEASE_S = 30 * 24 * 3600.0


class Lease:
    """Counts from its creation; `renew` starts it anew, as long as the controller wants."""

    def __init__(self, clock: Clock, lease_s: float) -> None:
        self._clock = clock
        self._renewed = asyncio.Event()
        self._ends_at = 0.0
        self.renew(lease_s)

    def renew(self, lease_s: float) -> None:
        """Run for `lease_s` seconds from now. Raises InvalidRequest for an impossible length."""
        if not 0 < lease_s <= LONGEST_LEASE_S:
            raise InvalidRequest(
                f"a lease of {lease_s:g} s is not possible; "
                f"choose more than 0 and at most {LONGEST_LEASE_S:g} s"
            )
        self._ends_at = self._clock.monotonic() + lease_s
        self._renewed.set()

    @property
    def remaining_s(self) -> float:
        """Seconds until it runs out, never negative."""
        return max(0.0, self._ends_at - self._clock.monotonic())

    async def expired(self) -> None:
        """Return when it has run out."""
        while (remaining_s := self.remaining_s) > 0:
            self._renewed.clear()
            try:
                # A renewal may also shorten it.
                await asyncio.wait_for(self._renewed.wait(), remaining_s)
            except TimeoutError:
                continue
