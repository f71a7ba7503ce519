"""The write-ahead log of one Raft member: what it must not forget, on disk before it is said.

One file per member, only ever appended to. It begins with a head (magic, format version, checksum)
and goes on in frames. A frame is one save: the new term and vote, if any, and entries that replace
everything at their indices and beyond. It is written with one call and flushed with one
`fdatasync`, so a save happened wholly or not at all.

    frame = marker u32 | number u64 | length u32 | body crc32 u32 | crc32 of these u32
            | body | end u32

A process or machine that dies while writing leaves an incomplete last frame, which nobody was told
about; it is cut off. Anything else that does not check out was on disk and has been damaged since:
a member that went on from there might vote or count against its own word, so opening is refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from notebookos_ext.cluster.consensus.messages import Entry, HardState
from notebookos_ext.errors import CorruptRecord, StorageError, StorageFull

FILE_NAME = "member.wal"
FORMAT_VERSION = 1

_MAGIC = b"nbos-wal"
_HEAD = struct.Struct(">8sII")
_MARKER = 0x6E626F73
_FRAME = struct.Struct(">IQIII")
_END = b"nbo."
"""Never zero, so that a last sector full of zeros was certainly not written."""
_SECTOR_BYTES = 512
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """Whose log this is; a file of another member or group is not taken for ours."""

    group: str
    member: str
    members: tuple[str, ...]


class _Save(msgspec.Struct, frozen=True, array_like=True):
    hard_state: HardState | None
    entries: Sequence[Entry]


_encoder = msgspec.msgpack.Encoder()
_decode_identity = msgspec.msgpack.Decoder(Identity).decode
_decode_save = msgspec.msgpack.Decoder(_Save).decode


class WriteAheadLog:
    """An open log. `hard_state` and `entries` are what the file held when it was opened.

    After a failed write the file is as before and the save may be tried again; after a failed
    flush nobody knows what the disk holds, so the log refuses everything from then on.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.hard_state = HardState()
        self.entries: list[Entry] = []
        self._descriptor = descriptor
        self._size_bytes = 0
        self._frame_count = 0
        self._broken = ""

    @classmethod
    def open(cls, folder: Path, identity: Identity) -> WriteAheadLog:
        """Open the log in `folder`, or create it there.

        Raises:
            CorruptRecord: the file is damaged, or belongs to another member or group.
            StorageFull: there is no room to create it.
            StorageError: the folder cannot be used, or another process has this log open.
        """
        path = folder / FILE_NAME
        with _explained(f"the log {path} cannot be opened"):
            if not path.exists():
                _create(folder, identity)
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        log = cls(path, descriptor)
        try:
            log._lock()
            with _explained(f"the log {path} cannot be read"):
                log._recover(identity)
        except BaseException:
            os.close(descriptor)
            raise
        return log

    @property
    def size_bytes(self) -> int:
        """Bytes in the file."""
        return self._size_bytes

    def save(self, hard_state: HardState | None, entries: Sequence[Entry]) -> None:
        """Return when all of it is on disk.

        Raises:
            StorageFull: no space is left; nothing was saved, try again when there is.
            StorageError: the disk failed.
        """
        if self._broken:
            raise StorageError(self._broken)
        body = _encoder.encode(_Save(hard_state, entries))
        frame = _framed(self._frame_count + 1, body)
        try:
            _write_all(self._descriptor, frame, self._size_bytes)
        except OSError as error:
            self._cut(self._size_bytes)
            raise _as_storage_error(error, f"the log {self.path} cannot grow") from error
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            # The kernel may have dropped the pages already, so that a second try would succeed
            # without having written anything.
            self._broken = f"the log {self.path} could not be flushed and is out of use: {error}"
            raise StorageError(self._broken) from error
        self._frame_count += 1
        self._size_bytes += len(frame)

    def close(self) -> None:
        """Let go of the file; closing twice does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._broken = f"the log {self.path} is closed"

    def delete(self) -> None:
        """Close and remove the file, and its folder if nothing else is in it."""
        self.close()
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()
        _flush_folder(self.path.parent.parent)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StorageError(
                f"the log {self.path} is in use by another process; end that host agent first"
            ) from error

    def _recover(self, identity: Identity) -> None:
        content = self.path.read_bytes()
        _check_head(content, self.path)
        frames = _frames(content, self.path)
        self._size_bytes, body = next(frames, (0, b""))
        if not body:
            raise _damaged(self.path, _HEAD.size)
        _check_identity(self.path, _decode_identity(body), identity)
        self._frame_count = 1
        for self._size_bytes, body in frames:
            self._frame_count += 1
            self._take(_decode_save(body))
        if self._size_bytes < len(content):
            self._cut(self._size_bytes)
            os.fsync(self._descriptor)

    def _take(self, save: _Save) -> None:
        if save.hard_state is not None:
            self.hard_state = save.hard_state
        if not save.entries:
            return
        first = save.entries[0].index
        if first > len(self.entries) + 1:
            raise CorruptRecord(
                f"the log {self.path} lacks the entries between {len(self.entries)} and {first}"
            )
        del self.entries[first - 1 :]
        self.entries += save.entries

    def _cut(self, size_bytes: int) -> None:
        try:
            os.ftruncate(self._descriptor, size_bytes)
        except OSError as error:
            self._broken = f"the log {self.path} could not be repaired and is out of use: {error}"


def _framed(number: int, body: bytes) -> bytes:
    head = struct.pack(">IQII", _MARKER, number, len(body), zlib.crc32(body))
    return b"".join((head, struct.pack(">I", zlib.crc32(head)), body, _END))


def _frames(content: bytes, path: Path) -> Iterator[tuple[int, bytes]]:
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
            raise _damaged(path, start)
        if found_number != number + 1:
            raise _damaged(path, start)
        body_end = head_end + length
        end = body_end + len(_END)
        if end > len(content):
            return
        body = content[head_end:body_end]
        if zlib.crc32(body) != body_crc or content[body_end:end] != _END:
            if end == len(content) and _ends_unwritten(content, start):
                return
            raise _damaged(path, start)
        yield end, body
        start, number = end, found_number


def _ends_unwritten(content: bytes, start: int) -> bool:
    """Whether the last frame's end was never written: whole sectors of it are zero."""
    boundary = (len(content) - 1) // _SECTOR_BYTES * _SECTOR_BYTES
    return boundary > start and not any(content[boundary:])


def _damaged(path: Path, offset: int) -> CorruptRecord:
    return CorruptRecord(
        f"the log {path} is damaged at byte {offset}; this member must not vote or count again "
        "with it, so move the file away and give the kernel a new replica"
    )


def _check_head(content: bytes, path: Path) -> None:
    if len(content) < _HEAD.size:
        raise _damaged(path, 0)
    magic, version, crc = _HEAD.unpack_from(content)
    if magic != _MAGIC or zlib.crc32(content[: _HEAD.size - 4]) != crc:
        raise _damaged(path, 0)
    if version != FORMAT_VERSION:
        raise CorruptRecord(
            f"the log {path} has format {version}, but this version reads {FORMAT_VERSION}; "
            "use the version that wrote it"
        )


def _check_identity(path: Path, found: Identity, identity: Identity) -> None:
    if found != identity:
        raise CorruptRecord(
            f"the log {path} belongs to member {found.member} of group {found.group} "
            f"{list(found.members)}, not to {identity.member} of {identity.group} "
            f"{list(identity.members)}"
        )


def _create(folder: Path, identity: Identity) -> None:
    """Under its name there is a complete new log or none, whenever the machine dies."""
    for missing in [*reversed([p for p in folder.parents if not p.exists()]), folder]:
        missing.mkdir(exist_ok=True)
        _flush_folder(missing.parent)
    head = struct.pack(">8sI", _MAGIC, FORMAT_VERSION)
    content = head + struct.pack(">I", zlib.crc32(head)) + _framed(1, _encoder.encode(identity))
    draft = folder / f"{FILE_NAME}.new"
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(descriptor, content, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    draft.rename(folder / FILE_NAME)
    _flush_folder(folder)


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _as_storage_error(error, what) from error
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"{what}: {error}") from error


def _as_storage_error(error: OSError, what: str) -> StorageError:
    if error.errno in _NO_SPACE:
        return StorageFull(f"{what} because no space is left; free some on that disk")
    return StorageError(f"{what}: {error.strerror or error}")
