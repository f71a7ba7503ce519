"""Fingerprints of watched buffers: always those of a fresh look, mostly without looking."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notebookos_ext.cluster.entries import CHUNK_BYTES
from notebookos_ext.kernel import watching
from notebookos_ext.kernel.blocks import fingerprint, fingerprints
from notebookos_ext.kernel.pages import PAGE, PageTracker
from notebookos_ext.kernel.watching import FORGOTTEN_AFTER, BlockWatch

CHUNKS = 3
SIZE = CHUNKS * CHUNK_BYTES + 12_345


@pytest.fixture(scope="module")
def tracker() -> Iterator[PageTracker]:
    opened = PageTracker.open()
    if opened is None:
        pytest.skip("this system offers no write tracking")
    yield opened
    opened.close()


class Looker:
    """Looks at arrays through a watch, and counts what is hashed."""

    def __init__(self, tracker: PageTracker | None, patch: pytest.MonkeyPatch) -> None:
        self.watch = BlockWatch(tracker)
        self.hashed_bytes = 0
        patch.setattr(watching, "fingerprint", self._fingerprint)

    def _fingerprint(self, data: bytes | memoryview) -> bytes:
        self.hashed_bytes += len(data)
        return fingerprint(data)

    def look(self, array: np.ndarray, *, settled: bool = False) -> int:
        """How many bytes were hashed to get the right fingerprints."""
        self.watch.begin()
        self.hashed_bytes = 0
        view = memoryview(array)
        take = self.watch.settled_fingerprints if settled else self.watch.fingerprints
        assert take(view) == fingerprints(view)
        return self.hashed_bytes


@pytest.fixture
def looker(tracker: PageTracker, monkeypatch: pytest.MonkeyPatch) -> Looker:
    return Looker(tracker, monkeypatch)


def test_what_rests_is_not_read_again(looker: Looker) -> None:
    array = np.ones(SIZE, "u1")
    assert looker.look(array) == SIZE
    assert looker.look(array) == SIZE
    assert looker.look(array) >= SIZE
    assert looker.look(array) < 4 * PAGE * CHUNKS
    array[CHUNK_BYTES + 50_000] = 2
    assert CHUNK_BYTES <= looker.look(array) < CHUNK_BYTES + 4 * PAGE * CHUNKS


def test_what_changes_each_time_is_hashed_and_not_protected(
    looker: Looker, tracker: PageTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.zeros(SIZE, "u1")
    monkeypatch.setattr(tracker, "arm", lambda _: pytest.fail("armed"))
    for value in range(1, 5):
        array[:] = value
        assert looker.look(array) == SIZE


def test_what_nobody_is_about_to_change_is_protected_at_once(looker: Looker) -> None:
    array = np.ones(SIZE, "u1")
    assert looker.look(array, settled=True) >= SIZE
    assert looker.look(array) < 4 * PAGE * CHUNKS


@pytest.mark.parametrize("at", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, SIZE - 1])
def test_bytes_on_pages_shared_with_others_count(looker: Looker, at: int) -> None:
    room = np.zeros(SIZE + 2 * PAGE, "u1")
    array = room[100 : 100 + SIZE]
    for _ in range(4):
        looker.look(array)
    array[at] = 1
    looker.look(array)
    # Neighbours on the same pages are not ours.
    room[0] = room[-1] = 5
    looker.look(array)


def test_a_buffer_is_not_confused_with_what_lay_there_before(looker: Looker) -> None:
    room = np.zeros(2 * SIZE, "u1")
    parts = [room[:SIZE], room[1000 : SIZE + 1000], room[: SIZE - CHUNK_BYTES], room]
    for step in range(12):
        room[step * 1_000_000] = step
        looker.look(parts[step % 4])


def test_read_only_buffers_are_watched_too(looker: Looker) -> None:
    array = np.ones(SIZE, "u1")
    array.flags.writeable = False
    looker.look(array, settled=True)
    assert looker.look(array) < 4 * PAGE * CHUNKS
    array.flags.writeable = True
    array[9_000_000] = 3
    array.flags.writeable = False
    assert looker.look(array) >= CHUNK_BYTES


def test_nothing_is_trusted_while_a_device_may_write_memory(
    looker: Looker, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.ones(SIZE, "u1")
    looker.look(array, settled=True)
    monkeypatch.setattr(PageTracker, "is_safe", False)
    array[5] = 9
    looker.look(array)
    monkeypatch.setattr(PageTracker, "is_safe", True)
    # What was known from before is not taken up again.
    assert looker.look(array) == SIZE


def test_without_a_tracker_everything_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    looker = Looker(None, monkeypatch)
    array = np.ones(SIZE, "u1")
    for value in range(3):
        array[value] = value
        looker.look(array)


def test_buffers_not_met_for_long_are_forgotten(looker: Looker) -> None:
    array, other = np.ones(SIZE, "u1"), np.ones(watching.WATCHED_BYTES, "u1")
    looker.look(array, settled=True)
    for _ in range(FORGOTTEN_AFTER - 1):
        looker.look(other)
    assert looker.look(array) < 4 * PAGE * CHUNKS
    for _ in range(FORGOTTEN_AFTER):
        looker.look(other)
    assert looker.look(array) == SIZE


steps = st.lists(
    st.tuples(
        st.sampled_from(["look", "settled", "write", "fill", "new", "part"]),
        st.integers(0, SIZE - 1),
        st.integers(0, 255),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=60)
@given(steps)
def test_fingerprints_are_always_those_of_a_fresh_look(
    tracker: PageTracker, taken: list[tuple[str, int, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        looker = Looker(tracker, patch)
        array = np.zeros(SIZE, "u1")
        for what, place, value in taken:
            match what:
                case "write":
                    array[place] = value
                case "fill":
                    array[place : place + 3 * PAGE] = value
                case "new":
                    array = np.full(SIZE, value, "u1")
                case "part":
                    looker.look(array[place:])
                case _:
                    looker.look(array, settled=what == "settled")
        looker.look(array)
