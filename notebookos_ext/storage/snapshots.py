"""Snapshot files of one Raft member: each is written aside, flushed, and only then referred to.

    file = magic | format version u32 | msgpack of `Snapshot`

The member's log names its snapshot with a digest of the whole file, so that damage is noticed and a
snapshot that no log names yet, or any more, is nothing but litter.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec

from notebookos_ext.cluster.consensus.snapshot import Snapshot
from notebookos_ext.cluster.digests import chunk_digest
from notebookos_ext.errors import UNREADABLE, CorruptRecord
from notebookos_ext.storage.durable import DRAFT, explained, publish, write_aside

FORMAT_VERSION = 1
_HEAD = struct.Struct(">8sI")
_MAGIC = b"nbossnap"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Snapshot).decode


class SnapshotRef(msgspec.Struct, frozen=True, array_like=True):
    """How a log names its snapshot: the last entry that is in it, and the file."""

    index: int
    term: int
    size_bytes: int
    digest: str

    @property
    def file_name(self) -> str:
        """Of the file in the log's folder."""
        return f"snapshot-{self.index}-{self.digest[:16]}"


def write_snapshot(folder: Path, snapshot: Snapshot) -> SnapshotRef:
    """Return when the snapshot is on disk. Raises StorageFull, StorageError."""
    content = _HEAD.pack(_MAGIC, FORMAT_VERSION) + _encode(snapshot)
    meta = snapshot.meta
    ref = SnapshotRef(meta.index, meta.term, len(content), chunk_digest(content))
    path = folder / ref.file_name
    with explained(f"the snapshot {path} cannot be written"):
        os.close(write_aside(path, content))
        publish(path)
    return ref


def read_snapshot(folder: Path, ref: SnapshotRef) -> Snapshot:
    """The snapshot, checked. Raises CorruptRecord, StorageError."""
    path = folder / ref.file_name
    with explained(f"the snapshot {path} cannot be read"):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise _unusable(path, "is gone") from None
        if chunk_digest(content) != ref.digest:
            raise _unusable(path, "is damaged")
        _, version = _HEAD.unpack_from(content)
        if version != FORMAT_VERSION:
            raise CorruptRecord(
                f"the snapshot {path} has format {version}, but this version reads "
                f"{FORMAT_VERSION}; use the version that wrote it"
            )
        try:
            return _decode(memoryview(content)[_HEAD.size :])
        except UNREADABLE as error:
            raise _unusable(path, "cannot be read by this version") from error


def delete_snapshots(folder: Path, *, but: SnapshotRef | None) -> None:
    """Delete what no log names any more; what cannot be deleted stays as litter."""
    kept = None if but is None else but.file_name
    for path in (*folder.glob("snapshot-*"), *folder.glob(f"*{DRAFT}")):
        if path.name != kept:
            path.unlink(missing_ok=True)


def _unusable(path: Path, what: str) -> CorruptRecord:
    return CorruptRecord(
        f"the snapshot {path} {what}; this member must not vote or count again without it, so "
        "give the kernel a new replica"
    )
