"""A checkpoint store in a folder: `chunks/<first two digits>/<digest>`, written aside and renamed.

Several host agents of one machine (or of one network file system) may share the folder: a chunk
is complete from the moment its name exists, and writing it twice gives the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from notebookos_ext.clock import Clock
from notebookos_ext.errors import CorruptRecord, NotFound, StorageError, StorageFull
from notebookos_ext.storage.base import StoreUsage, check_chunk, check_digest

ABANDONED_AFTER_S = 3600.0
"""Half-written files this old belong to a process that died; a living one takes seconds."""

SWEPT = "swept-"
"""Begins the name of a chunk that a sweep is about to delete."""


class DiskStore:
    """Chunks as files under `folder`. Safe for several threads and processes at once."""

    def __init__(self, folder: Path, *, clock: Clock) -> None:
        self._folder = folder
        self._chunks = folder / "chunks"
        self._incoming = folder / "incoming"
        self._corrupt = folder / "corrupt"
        self._clock = clock
        with _as_storage_error(folder):
            for path in (folder, self._chunks, self._incoming):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._sweep(clock.now() - ABANDONED_AFTER_S)

    @property
    def name(self) -> str:
        """See `CheckpointStore.name`."""
        return str(self._folder)

    def check(self) -> None:
        """See `CheckpointStore.check`."""
        with _as_storage_error(self._folder):
            for path in (self._chunks, self._incoming):
                path.stat()
            if not os.access(self._incoming, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def put(self, digest: str, data: bytes) -> None:
        """See `CheckpointStore.put`."""
        check_chunk(digest, data)
        path = self._path(digest)
        with _as_storage_error(path):
            if _freshened(path):
                return
            written = self._write_aside(data)
            try:
                self._publish(written, path)
            except OSError:
                written.unlink(missing_ok=True)
                raise

    def get(self, digest: str) -> bytes:
        """See `CheckpointStore.get`. A corrupt chunk is set aside, so that it can be put again."""
        check_digest(digest)
        path = self._path(digest)
        with _as_storage_error(path):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                raise NotFound(f"chunk {digest[:12]}… is not in the store {path.parent}") from None
        try:
            check_chunk(digest, data)
        except CorruptRecord as error:
            with _as_storage_error(path):
                self._corrupt.mkdir(mode=0o700, exist_ok=True)
                path.rename(self._corrupt / digest)
            raise CorruptRecord(f"{error.message}; the file is now in {self._corrupt}") from error
        return data

    def has(self, digest: str) -> bool:
        """See `CheckpointStore.has`."""
        check_digest(digest)
        with _as_storage_error(self._chunks):
            return _freshened(self._path(digest))

    def delete(self, digest: str) -> None:
        """See `CheckpointStore.delete`."""
        check_digest(digest)
        with _as_storage_error(self._chunks):
            self._path(digest).unlink(missing_ok=True)

    def sweep(
        self, named: Collection[str], older_than_s: float, *, dry_run: bool = False
    ) -> StoreUsage:
        """See `CheckpointStore.sweep`."""
        count = size = 0
        before = self._clock.now() - older_than_s
        with _as_storage_error(self._chunks):
            for path in self._chunks.glob("*/*"):
                if path.name in named:
                    continue
                with contextlib.suppress(FileNotFoundError):
                    found = path.stat()
                    if found.st_mtime < before:
                        freed: int | None = found.st_size
                        if not dry_run:
                            freed = self._delete_unless_looked_for(path, before)
                        size += freed or 0
                        count += freed is not None
        return StoreUsage(chunks=count, size_bytes=size)

    def usage(self) -> StoreUsage:
        """See `CheckpointStore.usage`."""
        count = size = 0
        with _as_storage_error(self._chunks):
            for path in self._chunks.glob("*/*"):
                with contextlib.suppress(FileNotFoundError):
                    size += path.stat().st_size
                    count += 1
        return StoreUsage(chunks=count, size_bytes=size)

    def _delete_unless_looked_for(self, path: Path, before: float) -> int | None:
        """Its bytes, None if somebody looked for it meanwhile, who counts on it now.

        Taken away first: whoever looks then does not find it, and writes it again.
        """
        taken = self._incoming / f"{SWEPT}{path.name}"
        path.rename(taken)
        found = taken.stat()
        if found.st_mtime >= before:
            taken.rename(path)
            return None
        taken.unlink()
        return found.st_size

    def _path(self, digest: str) -> Path:
        return self._chunks / digest[:2] / digest

    def _write_aside(self, data: bytes) -> Path:
        descriptor, name = tempfile.mkstemp(dir=self._incoming)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
        return Path(name)

    def _publish(self, written: Path, path: Path) -> None:
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _sync_folder(self._chunks)
        written.rename(path)
        _sync_folder(path.parent)

    def _sweep(self, before: float) -> None:
        for path in self._incoming.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                if path.name.startswith(SWEPT):
                    if found.st_ctime < before:
                        # Its sweeper died before it knew whether anybody counts on it.
                        path.rename(self._path(path.name.removeprefix(SWEPT)))
                elif found.st_mtime < before:
                    path.unlink()


def _freshened(path: Path) -> bool:
    """Whether the chunk is there; it counts as new then, so that no sweep takes it meanwhile."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """A rename survives a power cut only when the folder itself was synced."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _as_storage_error(path: Path) -> Iterator[None]:
    """Turn the system's errors into sentences."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(
                f"no space is left for the checkpoint store at {path}",
                hint="Free space there, or move the store to another disk.",
            ) from error
        raise StorageError(
            f"the checkpoint store at {path} cannot be used: {error.strerror or error}"
        ) from error
