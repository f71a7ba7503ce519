"""Files that are there wholly or not at all, whenever the process or the machine dies.

A file is written aside under another name, flushed, given its name, and the folder flushed: a
rename survives a power cut only when the folder itself was.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from notebookos_ext.errors import CorruptRecord, StorageError, StorageFull

DRAFT = ".new"
"""Ends the name of a file that is not complete yet."""

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_aside(path: Path, content: bytes) -> int:
    """Write what `publish` gives its name later; an open descriptor. Raises OSError."""
    draft = path.with_name(path.name + DRAFT)
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, content, 0)
        os.fsync(descriptor)
    except BaseException:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    return descriptor


def publish(path: Path) -> None:
    """Give what was written aside its name, in the place of what had it. Raises OSError."""
    path.with_name(path.name + DRAFT).rename(path)
    flush_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make the folder, and those above it that are missing. Raises OSError."""
    for missing in [*reversed([p for p in folder.parents if not p.exists()]), folder]:
        missing.mkdir(exist_ok=True)
        flush_folder(missing.parent)


def write_all(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of `data` at `offset`. Raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written


def flush_folder(folder: Path) -> None:
    """Return when the names in the folder are on disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn the system's errors into sentences that begin with `what`."""
    try:
        yield
    except OSError as error:
        raise as_storage_error(error, what) from error
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"{what}: {error}") from error


def as_storage_error(error: OSError, what: str) -> StorageError:
    """The error of ours that says the same."""
    if error.errno in _NO_SPACE:
        return StorageFull(f"{what} because no space is left; free some on that disk")
    return StorageError(f"{what}: {error.strerror or error}")
