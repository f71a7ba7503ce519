"""The write-ahead log of one Raft member: what it must not forget, on disk before it is said.

One file per member. It begins with a head (magic, format version, checksum) and goes on in frames.
The first says whose log it is and where it begins: with nothing, or with a snapshot (in a file of
its own, named by its digest) and the entries that followed it. Every other frame is one save: the
new term and vote, if any, and entries that replace everything at their indices and beyond. It is
written with one call and flushed with one `fdatasync`, so a save happened wholly or not at all.

To forget old entries, the snapshot is written and flushed; then a file with the snapshot's name and
what is left is written aside, flushed, and takes the log's name; then the old snapshot is deleted.
Whenever it dies in between, one of the two logs is there, with its snapshot. What is found at the
start is flushed before it is believed: a killed process may not have come to that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from notebookos_ext.cluster.consensus.messages import Entry, HardState
from notebookos_ext.cluster.consensus.snapshot import Snapshot
from notebookos_ext.errors import UNREADABLE, CorruptRecord, NotFound, StorageError
from notebookos_ext.storage.durable import (
    as_storage_error,
    explained,
    flush_folder,
    make_folder,
    publish,
    write_all,
    write_aside,
)
from notebookos_ext.storage.records import (
    FORMAT_VERSION,
    HEAD_BYTES,
    WITHOUT_SNAPSHOTS,
    check_head,
    damaged,
    file_head,
    framed,
    frames_in,
)
from notebookos_ext.storage.snapshots import (
    SnapshotRef,
    delete_snapshots,
    read_snapshot,
    write_snapshot,
)

FILE_NAME = "member.wal"
DAMAGED_NAME = "damaged.wal"
"""What a log is called that was set aside."""
FOLDERS_OF_A_LOG = 4
"""Those of the group, of its kernel and of all kernels, and the one that these are in."""


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """Whose log this is; a file of another member or group is not taken for ours.

    `members` founded the group; there are none in the log of a member that joined later.
    """

    group: str
    member: str
    members: tuple[str, ...]


class _Save(msgspec.Struct, frozen=True, array_like=True):
    hard_state: HardState | None
    entries: Sequence[Entry]


class _Beginning(msgspec.Struct, frozen=True, array_like=True):
    identity: Identity
    hard_state: HardState = HardState()
    entries: Sequence[Entry] = ()
    snapshot: SnapshotRef | None = None


_encoder = msgspec.msgpack.Encoder()
_decode_identity = msgspec.msgpack.Decoder(Identity).decode
_decode_beginning = msgspec.msgpack.Decoder(_Beginning).decode
_decode_save = msgspec.msgpack.Decoder(_Save).decode


class WriteAheadLog:
    """An open log. `hard_state`, `snapshot` and the `entries` after it are what the disk holds.

    After a failed write the file is as before and the save may be tried again; after a failed
    flush nobody knows what the disk holds, so the log refuses everything from then on.
    """

    def __init__(self, path: Path, descriptor: int, identity: Identity) -> None:
        self.path = path
        self.identity = identity
        self.hard_state = HardState()
        self.snapshot: SnapshotRef | None = None
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
        with explained(f"the log {path} cannot be opened"):
            if not path.exists():
                _create(folder, identity)
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        log = cls(path, descriptor, identity)
        try:
            log._lock(descriptor)
            with explained(f"the log {path} cannot be read"):
                log._recover()
        except BaseException:
            os.close(log._descriptor)
            raise
        return log

    @property
    def size_bytes(self) -> int:
        """Bytes in the file."""
        return self._size_bytes

    def save(
        self,
        hard_state: HardState | None,
        entries: Sequence[Entry],
        snapshot: Snapshot | None = None,
    ) -> None:
        """Return when all of it is on disk. `snapshot` takes the place of everything before it.

        Raises:
            StorageFull: no space is left; nothing was saved, try again when there is.
            StorageError: the disk failed.
        """
        if self._broken:
            raise StorageError(self._broken)
        if snapshot is not None:
            ref = write_snapshot(self.path.parent, snapshot)
            self._begin_anew(hard_state or self.hard_state, ref, list(entries))
            return
        save = _Save(hard_state, entries)
        self._check_follows(save)
        frame = framed(self._frame_count + 1, _encoder.encode(save))
        try:
            write_all(self._descriptor, frame, self._size_bytes)
        except OSError as error:
            self._cut(self._size_bytes)
            raise as_storage_error(error, f"the log {self.path} cannot grow") from error
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            # The kernel may have dropped the pages already, so that a second try would succeed
            # without having written anything.
            self._broken = f"the log {self.path} could not be flushed and is out of use: {error}"
            raise StorageError(self._broken) from error
        self._frame_count += 1
        self._size_bytes += len(frame)
        self._take(save)

    def keep(self, snapshot: Snapshot) -> SnapshotRef:
        """Put a snapshot on disk for `compact`; saves may go on meanwhile, in other threads.

        Raises StorageFull, StorageError; nothing has changed then.
        """
        return write_snapshot(self.path.parent, snapshot)

    def compact(self, snapshot: SnapshotRef) -> None:
        """Forget what a snapshot that was kept stands for. Nothing may be saved meanwhile.

        Raises:
            StorageFull: no space is left; the log is as before.
            StorageError: the disk failed.
        """
        if self._broken:
            raise StorageError(self._broken)
        first = snapshot.index + 1 - self._first_index
        self._begin_anew(self.hard_state, snapshot, self.entries[max(first, 0) :])

    def read_snapshot(self) -> Snapshot | None:
        """The snapshot that this log begins with. Raises CorruptRecord, StorageError."""
        ref = self.snapshot
        if ref is None:
            return None
        try:
            return read_snapshot(self.path.parent, ref)
        except CorruptRecord:
            if self.snapshot is ref:
                raise
        # Another thread has compacted the log meanwhile, and deleted that one.
        return self.read_snapshot()

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
            delete_snapshots(self.path.parent, but=None)
            self.path.parent.rmdir()
        flush_folder(self.path.parent.parent)

    @property
    def _first_index(self) -> int:
        return 1 if self.snapshot is None else self.snapshot.index + 1

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StorageError(
                f"the log {self.path} is in use by another process; end that host agent first"
            ) from error

    def _recover(self) -> None:
        try:
            self._recover_from(self.path.read_bytes())
        except UNREADABLE as error:
            raise damaged(self.path, self._size_bytes) from error

    def _recover_from(self, content: bytes) -> None:
        version = check_head(content, self.path)
        frames = frames_in(content, self.path)
        self._size_bytes, body = next(frames, (0, b""))
        if not body:
            raise damaged(self.path, HEAD_BYTES)
        beginning = _beginning(version, body)
        _check_identity(self.path, beginning.identity, self.identity)
        self.hard_state, self.snapshot = beginning.hard_state, beginning.snapshot
        self._read(_Save(None, beginning.entries))
        self._frame_count = 1
        for self._size_bytes, body in frames:
            self._frame_count += 1
            self._read(_decode_save(body))
        if self.snapshot is not None:
            self.read_snapshot()
        if self._size_bytes < len(content):
            self._cut(self._size_bytes)
        self._flush_what_was_found()
        delete_snapshots(self.path.parent, but=self.snapshot)
        if version != FORMAT_VERSION:
            self._begin_anew(self.hard_state, self.snapshot, self.entries)

    def _flush_what_was_found(self) -> None:
        """Have the disk keep what was read here, which from now on counts and is acknowledged.

        A process that was killed between a write and its flush, or between a new name and that of
        its folder, leaves what only the system's memory holds: the next power cut would take it.
        """
        os.fsync(self._descriptor)
        for folder in (*self.path.parents,)[:FOLDERS_OF_A_LOG]:
            # Where it may not read it has made no folder either, see `make_folder`.
            with contextlib.suppress(PermissionError):
                flush_folder(folder)

    def _read(self, save: _Save) -> None:
        self._check_follows(save)
        self._take(save)

    def _take(self, save: _Save) -> None:
        if save.hard_state is not None:
            self.hard_state = save.hard_state
        if not save.entries:
            return
        first = save.entries[0].index - self._first_index + 1
        del self.entries[first - 1 :]
        self.entries += save.entries

    def _check_follows(self, save: _Save) -> None:
        if not save.entries:
            return
        first, end = save.entries[0].index, self._first_index + len(self.entries)
        if not self._first_index <= first <= end:
            raise CorruptRecord(
                f"the log {self.path} has the entries {self._first_index} to {end - 1}, so entry "
                f"{first} cannot follow them"
            )

    def _begin_anew(
        self, hard_state: HardState, snapshot: SnapshotRef | None, entries: list[Entry]
    ) -> None:
        """Put a new file that holds exactly this in the place of the present one."""
        beginning = _Beginning(self.identity, hard_state, entries, snapshot)
        content = _new_file(beginning)
        try:
            descriptor = write_aside(self.path, content)
        except OSError as error:
            raise as_storage_error(error, f"the log {self.path} cannot be rewritten") from error
        try:
            self._lock(descriptor)
            publish(self.path)
        except BaseException as error:
            # After a power cut either of the two files may have the name.
            os.close(descriptor)
            self._broken = f"the log {self.path} could not be replaced and is out of use: {error}"
            if isinstance(error, OSError):
                raise StorageError(self._broken) from error
            raise
        os.close(self._descriptor)
        self._descriptor = descriptor
        self._size_bytes, self._frame_count = len(content), 1
        self.hard_state, self.snapshot, self.entries = hard_state, snapshot, entries
        with contextlib.suppress(OSError):
            delete_snapshots(self.path.parent, but=snapshot)

    def _cut(self, size_bytes: int) -> None:
        try:
            os.ftruncate(self._descriptor, size_bytes)
        except OSError as error:
            self._broken = f"the log {self.path} could not be repaired and is out of use: {error}"


def identity_in(folder: Path) -> Identity | None:
    """Whose log is in `folder`; None if there is none.

    Raises:
        CorruptRecord: its beginning is damaged.
        NotFound: there was one, which was set aside.
        StorageError: it cannot be read.
    """
    path = folder / FILE_NAME
    with explained(f"the log {path} cannot be read"):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            if (folder / DAMAGED_NAME).exists():
                raise NotFound(f"the log {path} was damaged and set aside") from None
            return None
        version = check_head(content, path)
        _, body = next(frames_in(content, path), (0, b""))
        if not body:
            raise damaged(path, HEAD_BYTES)
        try:
            return _beginning(version, body).identity
        except UNREADABLE as error:
            raise damaged(path, HEAD_BYTES) from error


def set_aside(folder: Path) -> None:
    """Take a log that cannot be used out of the way, and keep it. Raises StorageError."""
    path = folder / FILE_NAME
    with explained(f"the log {path} cannot be set aside"):
        if path.exists():
            path.rename(folder / DAMAGED_NAME)
            flush_folder(folder)


def _beginning(version: int, body: bytes) -> _Beginning:
    if version == WITHOUT_SNAPSHOTS:
        return _Beginning(_decode_identity(body))
    return _decode_beginning(body)


def _check_identity(path: Path, found: Identity, identity: Identity) -> None:
    if found != identity:
        raise CorruptRecord(
            f"the log {path} belongs to member {found.member} of group {found.group} "
            f"{list(found.members)}, not to {identity.member} of {identity.group} "
            f"{list(identity.members)}"
        )


def _new_file(beginning: _Beginning) -> bytes:
    return file_head() + framed(1, _encoder.encode(beginning))


def _create(folder: Path, identity: Identity) -> None:
    """Under its name there is a complete new log or none, whenever the machine dies."""
    make_folder(folder)
    path = folder / FILE_NAME
    os.close(write_aside(path, _new_file(_Beginning(identity))))
    publish(path)
