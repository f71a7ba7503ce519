"""The frames of a write-ahead log as bytes: which are whole, where it was torn, what is damaged.

    file  = magic | format version u32 | crc32 of these u32 | frames
    frame = marker u32 | number u64 | length u32 | body crc32 u32 | crc32 of these u32
            | body | end u32

A process or machine that dies while writing leaves an incomplete last frame, which nobody was told
about; it is cut off. Anything else that does not check out was on disk and has been damaged since:
a member that went on from there might vote or count against its own word, so it is refused.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from notebookos_ext.errors import CorruptRecord

FORMAT_VERSION = 2
WITHOUT_SNAPSHOTS = 1
"""The format before this one; its first frame has nothing but the identity."""

_MAGIC = b"nbos-wal"
_HEAD = struct.Struct(">8sII")
HEAD_BYTES = _HEAD.size
_MARKER = 0x6E626F73
_FRAME = struct.Struct(">IQIII")
_END = b"nbo."
"""Never zero, so that a last sector full of zeros was certainly not written."""
_SECTOR_BYTES = 512


def file_head() -> bytes:
    """What a file begins with."""
    head = struct.pack(">8sI", _MAGIC, FORMAT_VERSION)
    return head + struct.pack(">I", zlib.crc32(head))


def check_head(content: bytes, path: Path) -> int:
    """The format's version. Raises CorruptRecord."""
    if len(content) < _HEAD.size:
        raise damaged(path, 0)
    magic, version, crc = _HEAD.unpack_from(content)
    if magic != _MAGIC or zlib.crc32(content[: _HEAD.size - 4]) != crc:
        raise damaged(path, 0)
    if version not in {FORMAT_VERSION, WITHOUT_SNAPSHOTS}:
        raise CorruptRecord(
            f"the log {path} has format {version}, but this version reads {FORMAT_VERSION}; "
            "use the version that wrote it"
        )
    return int(version)


def framed(number: int, body: bytes) -> bytes:
    """Frame number `number`."""
    head = struct.pack(">IQII", _MARKER, number, len(body), zlib.crc32(body))
    return b"".join((head, struct.pack(">I", zlib.crc32(head)), body, _END))


def frames_in(content: bytes, path: Path) -> Iterator[tuple[int, bytes]]:
    """Each whole frame's end and body; stops before an incomplete one, raises at a damaged one."""
    start, number = _HEAD.size, 0
    while start < len(content):
        rest = len(content) - start
        if rest < _FRAME.size:
            return
        marker, found_number, length, body_crc, head_crc = _FRAME.unpack_from(content, start)
        head_end = start + _FRAME.size
        if zlib.crc32(content[start : head_end - 4]) != head_crc or marker != _MARKER:
            if not any(content[start:]):
                # The machine died after the file had grown and before its bytes were written.
                return
            raise damaged(path, start)
        if found_number != number + 1:
            raise damaged(path, start)
        body_end = head_end + length
        end = body_end + len(_END)
        if end > len(content):
            return
        body = content[head_end:body_end]
        if zlib.crc32(body) != body_crc or content[body_end:end] != _END:
            if end == len(content) and _ends_unwritten(content, start):
                return
            raise damaged(path, start)
        yield end, body
        start, number = end, found_number


def _ends_unwritten(content: bytes, start: int) -> bool:
    """Whether the last frame's end was never written: whole sectors of it are zero."""
    boundary = (len(content) - 1) // _SECTOR_BYTES * _SECTOR_BYTES
    return boundary > start and not any(content[boundary:])


def damaged(path: Path, offset: int) -> CorruptRecord:
    """The error that says so."""
    return CorruptRecord(
        f"the log {path} is damaged at byte {offset}; this member must not vote or count again "
        "with it, so move the file away and give the kernel a new replica"
    )
