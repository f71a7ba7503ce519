"""Ends replicas that somebody stopped (SIGSTOP) and nobody lets go on: their cells would hang.

Looks are counted, not seconds: an agent that stood still itself has not looked meanwhile. A process
that a debugger holds is in another state, and is left alone.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable

from notebookos_ext.agent.procfs import process

LOOK_S = 2.0
STOPPED = "T"

log = logging.getLogger(__name__)


class StoppedProcesses:
    """Which processes have been stopped at so many looks in a row."""

    def __init__(self, looks: int, state_of: Callable[[int], str]) -> None:
        self._looks = looks
        self._state_of = state_of
        self._seen: dict[int, int] = {}

    def look(self, pids: Iterable[int]) -> list[int]:
        """Look at these once; those that have stood still for long enough, each told once."""
        seen = {pid: self._seen.get(pid, 0) + 1 for pid in pids if self._state_of(pid) == STOPPED}
        self._seen = seen
        return [pid for pid, count in seen.items() if count == self._looks]


class Watchdog:
    """Looks at the replicas of a host for as long as it is watched; `limit_s` 0: never ends any.

    `pids` says which live now, `end` ends one for a reason.
    """

    def __init__(
        self,
        limit_s: float,
        *,
        pids: Callable[[], Iterable[int]],
        end: Callable[[int, str], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        state_of: Callable[[int], str] | None = None,
    ) -> None:
        self._limit_s = limit_s
        self._pids = pids
        self._end = end
        self._sleep = sleep
        self._look_s = min(LOOK_S, limit_s)
        looks = math.ceil(limit_s / self._look_s) if limit_s > 0 else 0
        self._stopped = StoppedProcesses(looks, state_of or _state_of)

    async def watch(self) -> None:
        """Until it is cancelled."""
        while self._limit_s > 0:
            await self._sleep(self._look_s)
            for pid in self._stopped.look(list(self._pids())):
                log.warning("process %d was stopped for %g s and is ended", pid, self._limit_s)
                self._end(pid, f"its process was stopped (SIGSTOP) for {self._limit_s:g} s")


def _state_of(pid: int) -> str:
    found = process(pid)
    return "" if found is None else found.state
