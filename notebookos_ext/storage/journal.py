"""The journal of a scheduler: every event that it handled, so that its day can be replayed.

A file is a sequence of records: 4 bytes of length, 4 bytes of CRC-32, then msgpack. A `JournalHead`
stands wherever a scheduler began anew; each `JournalEntry` after it is one event, with a check sum
of the actions that it led to, so that a replay can tell whether it decides the same. It is written
for study, not for recovery: records reach the operating system at once, the disk when it pleases.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from notebookos_ext.cluster.actions import Action
from notebookos_ext.cluster.events import Event
from notebookos_ext.cluster.options import Options
from notebookos_ext.errors import UNREADABLE, CorruptRecord, InvalidRequest, StorageError

VERSION = 1
SIZES = 8
RECORD_MAX_BYTES = 16 * 1024**2
"""Longer than any event; a longer length is a damaged one."""


class JournalHead(msgspec.Struct, frozen=True, tag=True):
    """A scheduler began: how to make another like it."""

    version: int
    policy: str
    max_hosts: int
    options: Options
    started_at: float
    """In seconds of the clock that the events use."""


class JournalEntry(msgspec.Struct, frozen=True, tag=True):
    """It handled an event."""

    event: Event
    actions_crc: int


Record = JournalHead | JournalEntry

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def actions_crc(actions: Sequence[Action]) -> int:
    """What a journal keeps of the actions that an event led to."""
    return zlib.crc32(_encoder.encode(actions))


class JournalWriter:
    """Appends to a journal; one writer at a time."""

    def __init__(self, path: Path, head: JournalHead, *, max_bytes: int = 1024**3) -> None:
        """Cuts what a crash left unfinished at the end, then notes the new beginning.

        At `max_bytes` the journal is `full` and takes nothing more. Raises StorageError,
        CorruptRecord.
        """
        self.path = path
        self.full = False
        self._max_bytes = max_bytes
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._size = _whole_bytes(path) if path.exists() else 0
            self._file = path.open("r+b" if path.exists() else "wb", buffering=0)
            self._file.truncate(self._size)
            self._file.seek(self._size)
        except OSError as problem:
            raise StorageError(f"cannot write the journal {path}: {problem.strerror}") from problem
        self._write(head)

    def append(self, event: Event, actions: Sequence[Action]) -> None:
        """One event that was handled, and what it led to. Raises StorageError."""
        if not self.full:
            self._write(JournalEntry(event, actions_crc(actions)))

    def close(self) -> None:
        """No more events."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, record: Record) -> None:
        body = _encoder.encode(record)
        framed = len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body
        if self._size + len(framed) > self._max_bytes:
            self.full = True
            return
        try:
            written = self._file.write(framed)
        except OSError as problem:
            self._file.truncate(self._size)
            self._file.seek(self._size)
            raise StorageError(
                f"cannot write the journal {self.path}: {problem.strerror}"
            ) from problem
        if written != len(framed):
            # The disk took a part: a reader would stop there for good.
            self._file.truncate(self._size)
            self._file.seek(self._size)
            raise StorageError(f"no space is left for the journal {self.path}")
        self._size += len(framed)


def read_journal(path: Path) -> Iterator[Record]:
    """Every record, oldest first; an unfinished one at the very end is left out.

    Raises StorageError when the file cannot be read, CorruptRecord when it is damaged before its
    end, InvalidRequest when it is no journal or one of another version.
    """
    first = True
    for _, body in _bodies(path):
        try:
            record = _decoder.decode(body)
        except UNREADABLE as problem:
            raise InvalidRequest(
                f"{path} holds something that this version does not know ({problem}); "
                "replay it with the version that wrote it"
            ) from problem
        if isinstance(record, JournalHead) and record.version != VERSION:
            raise InvalidRequest(
                f"{path} is a journal of version {record.version}, this reads version {VERSION}; "
                "replay it with the version that wrote it"
            )
        if first and not isinstance(record, JournalHead):
            raise InvalidRequest(f"{path} does not begin like a journal")
        first = False
        yield record


def _whole_bytes(path: Path) -> int:
    return max((end for end, _ in _bodies(path)), default=0)


def _bodies(path: Path) -> Iterator[tuple[int, bytes]]:
    """The end and the body of each whole record."""
    try:
        with path.open("rb") as file:
            total, end = path.stat().st_size, 0
            while sizes := file.read(SIZES):
                length = int.from_bytes(sizes[:4], "big")
                if len(sizes) < SIZES or (
                    end + SIZES + length > total and length <= RECORD_MAX_BYTES
                ):
                    return
                body = file.read(length) if length <= RECORD_MAX_BYTES else b""
                if zlib.crc32(body) != int.from_bytes(sizes[4:], "big") or not body:
                    if end + SIZES + length == total:
                        return
                    raise CorruptRecord(
                        f"the journal {path} is damaged at byte {end}; "
                        "what stands before it can be replayed from a copy cut there"
                    )
                end += SIZES + length
                yield end, body
    except OSError as problem:
        raise StorageError(f"cannot read the journal {path}: {problem.strerror}") from problem
