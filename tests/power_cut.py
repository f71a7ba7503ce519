"""A disk that keeps only what was flushed, also when the process that wrote it was killed.

`keep_flushed` has a process copy into `kept` whatever it flushes: contents of a file, names in a
folder. `cut` puts that in the place of the files, as the worst disk does when its machine loses
power. Since the copy is on the disk, it outlives any number of killed processes: what one of them
wrote and did not flush is lost with the power, unless a later one did.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from pathlib import Path

FOLDER = 0
"""Stands for the inode of a folder, which is known by its path."""


def keep_flushed(files: Path, kept: Path) -> None:
    """From now on this process's flushes below `files` are what a power cut leaves."""
    files.mkdir(parents=True, exist_ok=True)
    os.fsync = os.fdatasync = _Kept(files, kept).flushed  # type: ignore[assignment]


def cut(files: Path, kept: Path) -> int:
    """The machine loses power; how many bytes of files are lost with it."""
    before = _size_bytes(files)
    rebuilt = files.with_name(files.name + ".rebuilt")
    _rebuild(kept, ".", rebuilt)
    shutil.rmtree(files)
    rebuilt.rename(files)
    shutil.rmtree(kept)
    # What is there now was flushed, whatever becomes of it.
    disk = _Kept(files, kept)
    for path in (files, *files.rglob("*")):
        descriptor = os.open(path, os.O_RDONLY)
        disk.flushed(descriptor)
        os.close(descriptor)
    return before - _size_bytes(files)


class _Kept:
    def __init__(self, files: Path, kept: Path) -> None:
        self._files = files
        self._kept = kept
        # Linked here, an inode gets no other file while a flushed name may stand for it.
        self._held = kept / "held"
        self._held.mkdir(parents=True, exist_ok=True)
        (kept / "contents").mkdir(exist_ok=True)
        (kept / "names").mkdir(exist_ok=True)

        # Snapshots are written by threads.
        self._lock = threading.Lock()

    def flushed(self, descriptor: int) -> None:
        opened = Path(f"/proc/self/fd/{descriptor}")
        path = opened.readlink()
        if not path.is_relative_to(self._files):
            return
        with self._lock:
            if path.is_dir():
                names = json.dumps(self._names_in(path)).encode()
                self._put("names", _key(path.relative_to(self._files)), names)
            else:
                inode = os.fstat(descriptor).st_ino
                self._hold(path, inode)
                self._put("contents", str(inode), opened.read_bytes())

    def _names_in(self, folder: Path) -> dict[str, int]:
        names = {}
        for path in folder.iterdir():
            # Others are deleted at this moment.
            with contextlib.suppress(FileNotFoundError):
                names[path.name] = FOLDER if path.is_dir() else path.stat().st_ino
                if names[path.name] != FOLDER:
                    self._hold(path, names[path.name])
        return names

    def _hold(self, path: Path, inode: int) -> None:
        if not (self._held / str(inode)).exists():
            (self._held / str(inode)).hardlink_to(path)

    def _put(self, kind: str, name: str, content: bytes) -> None:
        draft = self._kept / f"{kind}-{name}.draft"
        draft.write_bytes(content)
        draft.rename(self._kept / kind / name)


def _key(folder: Path) -> str:
    return "|".join(("root", *folder.parts))


def _rebuild(kept: Path, folder: str, to: Path) -> None:
    to.mkdir()
    names = kept / "names" / _key(Path(folder))
    for name, inode in json.loads(names.read_bytes() if names.exists() else b"{}").items():
        if inode == FOLDER:
            _rebuild(kept, str(Path(folder, name)), to / name)
        else:
            content = kept / "contents" / str(inode)
            (to / name).write_bytes(content.read_bytes() if content.exists() else b"")


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
