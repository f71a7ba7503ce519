"""Asks Linux which pages of this process's memory were written since they were last protected.

userfaultfd in its asynchronous write-protect mode marks pages, the PAGEMAP_SCAN ioctl lists those
written since, and PROCMAP_QUERY says what kind of memory it is (all three since Linux 6.11, and no
privilege is needed). It is tried out before it is used: `PageTracker.open` gives None where it is
missing, forbidden or wrong. Only private anonymous memory is watched, since others may write what
is shared, and nothing while a device that writes past the page tables is open.

Sources: ioctl_userfaultfd(2); in the kernel's Documentation admin-guide/mm/pagemap.rst and
filesystems/proc.rst.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import sys

PAGE = mmap.PAGESIZE

_USERFAULTFD_NUMBERS = {"x86_64": 323, "aarch64": 282}
"""Number of the system call."""
_USER_MODE_ONLY = 1
_API, _REGISTER = 0xC018AA3F, 0xC020AA00
_API_VERSION = 0xAA
_WP_UNPOPULATED, _WP_ASYNC = 1 << 13, 1 << 15
_MODE_WP = 2
_PAGEMAP_SCAN = 0xC0606610
_WP_MATCHING, _CHECK_WPASYNC = 1, 2
_IS_WRITTEN = 2
_PROCMAP_QUERY = 0xC0686611
_SHARED = 8
_REGIONS = 512
"""Written ranges taken in at once; a scan that finds more goes on from there."""
_MAX_SCANS = 16
"""After as many, the rest counts as written."""
_DMA_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/infiniband")
"""Devices that may write into pinned host memory without a page fault."""

Range = tuple[int, int]
"""First address and the one after the last."""


class _Api(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("api", "features", "ioctls")]


class _Register(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("start", "len", "mode", "ioctls")]


class _Scan(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "size",
            "flags",
            "start",
            "end",
            "walk_end",
            "vec",
            "vec_len",
            "max_pages",
            "category_inverted",
            "category_mask",
            "category_anyof_mask",
            "return_mask",
        )
    ]


class _Mapping(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_uint64)
            for name in (
                "size",
                "query_flags",
                "query_addr",
                "vma_start",
                "vma_end",
                "vma_flags",
                "vma_page_size",
                "vma_offset",
                "inode",
            )
        ),
        *(
            (name, ctypes.c_uint32)
            for name in ("dev_major", "dev_minor", "vma_name_size", "build_id_size")
        ),
        *((name, ctypes.c_uint64) for name in ("vma_name_addr", "build_id_addr")),
    ]


class _Region(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("start", "end", "categories")]


def inner_pages(start: int, end: int) -> Range:
    """The whole pages within a range of addresses; empty ranges have equal ends."""
    first = -(-start // PAGE) * PAGE
    return first, max(first, end // PAGE * PAGE)


class PageTracker:
    """Protects pages and tells which were written; belongs to the process that opened it."""

    def __init__(self) -> None:
        """Raises OSError where the system does not offer it."""
        number = _USERFAULTFD_NUMBERS.get(platform.machine())
        if sys.platform != "linux" or number is None:
            raise OSError("userfaultfd is not known here")
        library = ctypes.CDLL(None, use_errno=True)
        flags = os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY
        self._faults = int(library.syscall(number, flags))
        if self._faults < 0:
            raise OSError(ctypes.get_errno(), "userfaultfd is refused")
        self._descriptors = [self._faults]
        try:
            api = _Api(_API_VERSION, _WP_UNPOPULATED | _WP_ASYNC, 0)
            fcntl.ioctl(self._faults, _API, api)
            self._pagemap = self._open("/proc/self/pagemap")
            self._maps = self._open("/proc/self/maps")
        except OSError:
            self.close()
            raise
        self._regions = (_Region * _REGIONS)()
        self._process = os.getpid()

    @classmethod
    def open(cls) -> PageTracker | None:
        """A tracker that has passed its test, or None."""
        try:
            tracker = cls()
        except OSError:
            return None
        try:
            works = tracker._sees_writes()
        except OSError:
            works = False
        if works:
            return tracker
        tracker.close()
        return None

    def close(self) -> None:
        """Give the descriptors back; nothing is protected any more."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    @property
    def is_safe(self) -> bool:
        """Whether every write of now goes through this process's page tables."""
        if self._process != os.getpid():
            return False
        for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a Path for each costs more
            try:
                target = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - as above
            except FileNotFoundError:
                continue
            if target.startswith(_DMA_DEVICES):
                return False
        return True

    def watch(self, pages: Range) -> bool:
        """Make the range one whose pages can be armed; False if it cannot be."""
        try:
            if not self._is_private(pages):
                return False
            request = _Register(pages[0], pages[1] - pages[0], _MODE_WP, 0)
            fcntl.ioctl(self._faults, _REGISTER, request)
        except OSError:
            return False
        return True

    def arm(self, pages: Range) -> bool:
        """From now on, notice writes to these pages. False if that cannot be."""
        scan = self._scan(pages, _WP_MATCHING | _CHECK_WPASYNC)
        try:
            while scan.start < scan.end:
                fcntl.ioctl(self._pagemap, _PAGEMAP_SCAN, scan)
                if scan.walk_end <= scan.start:
                    return False
                scan.start = scan.walk_end
        except OSError:
            return False
        return True

    def written(self, pages: Range) -> list[Range] | None:
        """What was written since it was armed, or was never armed; None if nobody can tell."""
        scan = self._scan(pages, _CHECK_WPASYNC)
        scan.vec, scan.vec_len = ctypes.addressof(self._regions), _REGIONS
        found: list[Range] = []
        try:
            for _ in range(_MAX_SCANS):
                count = fcntl.ioctl(self._pagemap, _PAGEMAP_SCAN, scan)
                found += [(int(each.start), int(each.end)) for each in self._regions[:count]]
                if scan.walk_end >= scan.end:
                    return found
                scan.start = scan.walk_end
        except OSError:
            return None
        return [*found, (int(scan.start), pages[1])]

    def _open(self, path: str) -> int:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._descriptors.append(descriptor)
        return descriptor

    def _is_private(self, pages: Range) -> bool:
        """Whether all of the range is anonymous memory that only this process can write."""
        query = _Mapping(ctypes.sizeof(_Mapping), 0, pages[0])
        while query.query_addr < pages[1]:
            fcntl.ioctl(self._maps, _PROCMAP_QUERY, query)
            if query.vma_flags & _SHARED or query.inode:
                return False
            query.query_addr = query.vma_end
        return True

    @staticmethod
    def _scan(pages: Range, flags: int) -> _Scan:
        scan = _Scan(ctypes.sizeof(_Scan), flags, *pages)
        scan.category_mask = scan.return_mask = _IS_WRITTEN
        return scan

    def _sees_writes(self) -> bool:
        """Try it on memory of our own: by this process, by a system call, and dropped pages."""
        with mmap.mmap(-1, 8 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory[:] = b"1" * len(memory)
            anchor = ctypes.c_char.from_buffer(memory)
            start = ctypes.addressof(anchor)
            del anchor
            pages = (start, start + len(memory))
            if not (self.watch(pages) and self.arm(pages)) or self.written(pages) != []:
                return False
            memory[2 * PAGE] = ord("1")
            reader, writer = os.pipe()
            try:
                os.write(writer, b"2")
                with memoryview(memory) as view:
                    os.readv(reader, [view[4 * PAGE : 4 * PAGE + 1]])
            finally:
                os.close(reader)
                os.close(writer)
            memory.madvise(mmap.MADV_DONTNEED, 6 * PAGE, PAGE)
            seen = [(start + page * PAGE, start + (page + 1) * PAGE) for page in (2, 4, 6)]
            if self.written(pages) != seen:
                return False
            return self.arm(pages) and self.written(pages) == []
