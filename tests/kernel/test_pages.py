"""Write tracking by the operating system: what it sees, and what it refuses to watch."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from notebookos_ext.kernel import pages
from notebookos_ext.kernel.pages import PAGE, PageTracker, Range, inner_pages

PAGES = 16


@pytest.fixture
def tracker() -> Iterator[PageTracker]:
    opened = PageTracker.open()
    if opened is None:
        pytest.skip("this system offers no write tracking")
    yield opened
    opened.close()


def place(memory: mmap.mmap) -> Range:
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return start, start + len(memory)


def anonymous(flags: int = mmap.MAP_PRIVATE) -> mmap.mmap:
    memory = mmap.mmap(-1, PAGES * PAGE, flags | mmap.MAP_ANONYMOUS)
    memory[:] = bytes(PAGES * PAGE)
    return memory


def armed(tracker: PageTracker) -> tuple[mmap.mmap, Range]:
    memory = anonymous()
    where = place(memory)
    assert tracker.watch(where)
    assert tracker.arm(where)
    assert tracker.written(where) == []
    return memory, where


def numbers(found: list[Range] | None, where: Range) -> list[int]:
    assert found is not None
    return [
        page
        for page in range(PAGES)
        if any(first <= where[0] + page * PAGE < last for first, last in found)
    ]


def test_inner_pages_are_whole() -> None:
    assert inner_pages(PAGE, 3 * PAGE) == (PAGE, 3 * PAGE)
    assert inner_pages(PAGE + 1, 3 * PAGE - 1) == (2 * PAGE, 2 * PAGE)
    assert inner_pages(1, 10) == (PAGE, PAGE)


def test_writes_are_seen_until_armed_again(tracker: PageTracker) -> None:
    memory, where = armed(tracker)
    memory[3 * PAGE + 5] = 0
    memory[4 * PAGE : 4 * PAGE + 4] = b"1234"
    assert numbers(tracker.written(where), where) == [3, 4]
    assert numbers(tracker.written(where), where) == [3, 4]
    assert tracker.arm((where[0] + 3 * PAGE, where[0] + 4 * PAGE))
    assert numbers(tracker.written(where), where) == [4]


def test_what_system_calls_write_is_seen(tracker: PageTracker) -> None:
    memory, where = armed(tracker)
    with tempfile.TemporaryFile(buffering=0) as file, memoryview(memory) as view:
        file.write(b"x" * 2 * PAGE)
        file.seek(0)
        assert file.readinto(view[5 * PAGE : 7 * PAGE]) == 2 * PAGE
    assert numbers(tracker.written(where), where) == [5, 6]


def test_a_fork_hides_nothing(tracker: PageTracker) -> None:
    memory, where = armed(tracker)
    go, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        os.read(go, 1)
        os._exit(not tracker.is_safe)
    memory[0] = 1
    assert numbers(tracker.written(where), where) == [0]
    os.close(told)
    os.close(go)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    memory[PAGE] = 1
    assert numbers(tracker.written(where), where) == [0, 1]


def test_memory_that_went_away_is_not_known(tracker: PageTracker) -> None:
    library = ctypes.CDLL(None)
    library.mmap.restype = ctypes.c_void_p
    number, size_type, address = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
    library.mmap.argtypes = [address, size_type, number, number, number, ctypes.c_long]
    library.munmap.argtypes = [address, size_type]
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    size = PAGES * PAGE
    start = library.mmap(None, size, protection, kind, -1, 0)
    where = (start, start + size)
    assert tracker.watch(where)
    assert tracker.arm(where)
    library.munmap(start, size)
    assert library.mmap(start, size, protection, kind, -1, 0) == start
    assert tracker.written(where) is None
    assert not tracker.arm(where)
    library.munmap(start, size)


@pytest.mark.parametrize("kind", ["shared", "file", "nothing"])
def test_memory_that_others_may_write_is_refused(tracker: PageTracker, kind: str) -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(PAGES * PAGE)
        memory = {
            "shared": lambda: anonymous(mmap.MAP_SHARED),
            "file": lambda: mmap.mmap(file.fileno(), PAGES * PAGE, mmap.MAP_PRIVATE),
            "nothing": anonymous,
        }[kind]()
    first, last = place(memory)
    if kind == "nothing":
        # The range goes on where nothing is mapped.
        last += 1 << 46
    assert not tracker.watch((first, last))


def test_more_scattered_writes_than_it_lists_count_as_one(
    tracker: PageTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_REGIONS", 2)
    monkeypatch.setattr(pages, "_MAX_SCANS", 2)
    memory, where = armed(tracker)
    for page in (1, 3, 5, 7, 9):
        memory[page * PAGE] = 1
    assert numbers(tracker.written(where), where)[:3] == [1, 3, 5]
    assert set(numbers(tracker.written(where), where)) >= {1, 3, 5, 7, 9, 15}


def test_a_device_that_writes_memory_itself_makes_it_unsafe(
    tracker: PageTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_DMA_DEVICES", ("/dev/full",))
    assert tracker.is_safe
    with Path("/dev/full").open("wb"):
        assert not tracker.is_safe
    assert tracker.is_safe


@pytest.mark.parametrize("broken", ["written", "arm", "watch"])
def test_what_does_not_pass_its_test_is_not_used(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def nothing(*_: Any) -> Any:
        return [] if broken == "written" else broken == "arm"

    monkeypatch.setattr(PageTracker, broken, nothing)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert PageTracker.open() is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_where_the_system_call_is_refused_nothing_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_USERFAULTFD_NUMBERS", {})
    assert PageTracker.open() is None
