"""Fingerprints of large buffers, without reading again what was not written since the last time.

Each chunk of a buffer is *armed* (its pages are write-protected, see `pages`), *resting* (unchanged
the last time, armed the next time) or *hot* (changed the last time: hashing it again is cheaper
than the page faults that arming costs whoever writes it). Bytes of a chunk on pages that it shares
with its neighbours are always hashed. A chunk is armed before it is hashed, so that a write in
between is noticed.
"""

from __future__ import annotations

import ctypes
import sys
from bisect import bisect_left
from enum import Enum

from notebookos_ext.cluster.entries import CHUNK_BYTES
from notebookos_ext.kernel.blocks import Fingerprints, fingerprint, fingerprints
from notebookos_ext.kernel.pages import PageTracker, Range, inner_pages

WATCHED_BYTES = 1024 * 1024
"""Smaller buffers are hashed."""
FORGOTTEN_AFTER = 256
"""Surveys with large buffers after which one that was not met again is forgotten."""


class State(Enum):
    """Of a chunk, see above."""

    HOT = "hot"
    RESTING = "resting"
    ARMED = "armed"


class _Chunk:
    def __init__(self, start: int, end: int, base: int) -> None:
        self.bounds = slice(start, end)
        self.pages = inner_pages(base + start, base + end)
        first, last = self.pages
        self.head = slice(start, min(end, first - base))
        self.tail = slice(max(start, last - base), end)
        self.state = State.HOT
        self.print = b""
        self.edges = b""

    def edge_print(self, view: memoryview) -> bytes:
        """A hash of the bytes that lie on pages shared with others."""
        return fingerprint(bytes(view[self.head]) + bytes(view[self.tail]))


class _Watched:
    def __init__(self, base: int, size: int) -> None:
        self.range: Range = (base, base + size)
        self.pages = inner_pages(*self.range)
        self.chunks = [
            _Chunk(start, min(start + CHUNK_BYTES, size), base)
            for start in range(0, size, CHUNK_BYTES)
        ]
        self.registered = False
        self.seen = 0


class BlockWatch:
    """What is known of the large buffers of one process; main thread only.

    `tracker` is None where the system offers none: then everything is hashed.
    """

    def __init__(self, tracker: PageTracker | None) -> None:
        self._tracker = tracker
        self._watched: dict[int, _Watched] = {}
        """By address. No two overlap: arming one would hide what was written to the other."""
        self._starts: list[int] = []
        self._surveys = 0
        self._is_safe: bool | None = None

    def begin(self) -> None:
        """A survey begins: the process may have opened a device since the last one."""
        self._is_safe = None

    def fingerprints(self, view: memoryview) -> Fingerprints:
        """One fingerprint per chunk of a buffer that user code may go on changing."""
        return self._fingerprints(view, settled=False)

    def settled_fingerprints(self, view: memoryview) -> Fingerprints:
        """The same for a buffer that nobody is about to change: it is armed at once."""
        return self._fingerprints(view, settled=True)

    def _fingerprints(self, view: memoryview, *, settled: bool) -> Fingerprints:
        if self._tracker is None or view.nbytes < WATCHED_BYTES or not self._safe():
            return fingerprints(view)
        base = _address(view)
        if base is None:
            return fingerprints(view)
        watched = self._find(base, view.nbytes)
        watched.seen = self._surveys
        written = self._written(watched)
        for chunk in watched.chunks:
            self._look(watched, chunk, view, written, settled=settled)
        return tuple(chunk.print for chunk in watched.chunks)

    def _safe(self) -> bool:
        if self._is_safe is None:
            self._age()
            self._is_safe = self._tracker is not None and self._tracker.is_safe
            if not self._is_safe:
                self._watched.clear()
                self._starts.clear()
        return self._is_safe

    def _age(self) -> None:
        # A standby meets only what a delta is about: not every survey meets every buffer.
        self._surveys += 1
        oldest = self._surveys - FORGOTTEN_AFTER
        for base in [base for base, each in self._watched.items() if each.seen < oldest]:
            self._forget(base)

    def _find(self, base: int, size: int) -> _Watched:
        known = self._watched.get(base)
        if known is not None and known.range[1] == base + size:
            return known
        place = bisect_left(self._starts, base)
        before = self._starts[place - 1 : place] if place else []
        for other in [*before, *self._starts[place : bisect_left(self._starts, base + size)]]:
            if self._watched[other].range[1] > base:
                self._forget(other)
        watched = self._watched[base] = _Watched(base, size)
        self._starts.insert(bisect_left(self._starts, base), base)
        return watched

    def _forget(self, base: int) -> None:
        del self._watched[base]
        del self._starts[bisect_left(self._starts, base)]

    def _written(self, watched: _Watched) -> list[Range]:
        """What may have changed on the watched pages: all of them if nobody can tell."""
        assert self._tracker is not None  # noqa: S101 - the caller looked
        if not watched.registered:
            return [watched.pages]
        written = self._tracker.written(watched.pages)
        if written is None:
            # Other memory lies there now.
            watched.registered = False
            return [watched.pages]
        return written

    def _look(
        self,
        watched: _Watched,
        chunk: _Chunk,
        view: memoryview,
        written: list[Range],
        *,
        settled: bool,
    ) -> None:
        if chunk.state is State.ARMED and not _meet(chunk.pages, written):
            if chunk.edge_print(view) == chunk.edges:
                return
        elif chunk.state is State.RESTING or (settled and not chunk.print):
            chunk.state = State.ARMED if self._arm(watched, chunk) else State.HOT
        else:
            chunk.state = State.HOT
        before, chunk.print = chunk.print, fingerprint(view[chunk.bounds])
        if chunk.state is State.ARMED:
            chunk.edges = chunk.edge_print(view)
        elif before == chunk.print:
            chunk.state = State.RESTING

    def _arm(self, watched: _Watched, chunk: _Chunk) -> bool:
        assert self._tracker is not None  # noqa: S101 - the callers looked
        if not watched.registered:
            watched.registered = self._tracker.watch(watched.pages)
        return watched.registered and self._tracker.arm(chunk.pages)


def _meet(pages: Range, written: list[Range]) -> bool:
    """Whether a range has any of the others' pages; those are in order."""
    place = bisect_left(written, pages[1], key=lambda each: each[0])
    return place > 0 and written[place - 1][1] > pages[0]


def _address(view: memoryview) -> int | None:
    """Where a buffer is; None if only numpy could tell and it is not loaded."""
    if not view.readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(view))
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    return int(numpy.frombuffer(view, dtype="u1").__array_interface__["data"][0])
