"""How the checkpoint store is as this host finds it, and how long to wait before it is asked again.

What fails once is repeated for a while; after that whoever needs it is told, and from then on the
store is looked at now and then until it works again.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Iterator

import msgspec

from notebookos_ext.clock import Clock
from notebookos_ext.cluster.messages.control import StoreReport
from notebookos_ext.errors import NotebookOSError


class Patience(msgspec.Struct, frozen=True):
    """How often and how long something is repeated, in seconds."""

    first_pause_s: float = 0.1
    longest_pause_s: float = 10.0
    repeat_s: float = 3.0
    """So long a write or read that fails is repeated before it counts as failed."""
    stall_s: float = 15.0
    """A commit waits for its chunks as long as some are written within each such time."""

    def pauses(self, rng: random.Random) -> Iterator[float]:
        """Ever longer, up to the longest; each drawn from its upper half, so that hosts spread."""
        pause_s = self.first_pause_s
        while True:
            yield pause_s * rng.uniform(0.5, 1.0)
            pause_s = min(2 * pause_s, self.longest_pause_s)


class Kind(enum.Enum):
    """What the store may fail to do while the other works: a full one can still be read."""

    READ = "read"
    WRITE = "write"


class StoreHealth:
    """Notes how each call of the store went; `on_change` when it stops or begins to work."""

    def __init__(self, clock: Clock, on_change: Callable[[], None]) -> None:
        self._clock = clock
        self._on_change = on_change
        self._errors: dict[Kind, str] = {}
        self._since = clock.now()
        self._counts = dict.fromkeys(Kind, 0)
        self._bytes = dict.fromkeys(Kind, 0)

    @property
    def works(self) -> bool:
        """Whether the last call of each kind went well."""
        return not self._errors

    def fails_to(self, kind: Kind) -> bool:
        """Whether the last call of this kind failed."""
        return kind in self._errors

    def worked(self, kind: Kind, size_bytes: int | None = None) -> None:
        """A call went well; `size_bytes` of a chunk went there or came from there."""
        if size_bytes is not None:
            self._counts[kind] += 1
            self._bytes[kind] += size_bytes
        if self._errors.pop(kind, None) is not None and self.works:
            self._changed()

    def failed(self, kind: Kind, error: NotebookOSError) -> None:
        """A call failed in a way that says something of the store, not of the chunk."""
        worked = self.works
        self._errors[kind] = error.message
        if worked:
            self._changed()

    def report(self, waiting_chunks: int, waiting_bytes: int) -> StoreReport:
        """For the controller."""
        error = self._errors.get(Kind.WRITE) or self._errors.get(Kind.READ) or ""
        return StoreReport(
            works=self.works,
            error=error,
            since=self._since,
            waiting_chunks=waiting_chunks,
            waiting_bytes=waiting_bytes,
            put_chunks=self._counts[Kind.WRITE],
            put_bytes=self._bytes[Kind.WRITE],
            fetched_chunks=self._counts[Kind.READ],
            fetched_bytes=self._bytes[Kind.READ],
        )

    def _changed(self) -> None:
        self._since = self._clock.now()
        self._on_change()
