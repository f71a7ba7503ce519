"""A disk that forgets what was not flushed, and a process that dies at a chosen step.

While `LossyDisk` is in force, every step of a file's life under `root` (open, write, flush, cut,
rename, unlink, mkdir) is counted; at step `dies_at` the process "dies" before it. `after_power_cut`
makes the folder as a disk may have it then: contents as of each file's last flush, names as of each
folder's last flush or, as a real disk is free to, as of the last change.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest


class Died(BaseException):
    """Not an `Exception`: nothing in the code under test may handle it."""


class LossyDisk:
    """Watches `root` through the functions of `os`."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, dies_at: int = 0) -> None:
        self.steps: list[str] = []
        self._root = root
        self._dies_at = dies_at
        self._contents: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, int]] = {}
        for path in (root, *root.rglob("*")):
            if path.is_dir():
                self._flush_folder(path)
            else:
                self._contents[path.stat().st_ino] = path.read_bytes()
        self._real = {
            name: getattr(os, name)
            for name in ("pwrite", "fsync", "fdatasync", "ftruncate", "rename", "unlink", "mkdir")
        }
        for name in self._real:
            patch.setattr(os, name, self._step(name))

    def _step(self, name: str) -> Any:
        def step(target: Any, *arguments: Any, **options: Any) -> Any:
            self.steps.append(name)
            if self._dies_at and len(self.steps) >= self._dies_at:
                if name == "pwrite" and len(self.steps) == self._dies_at:
                    # Half of a write is as likely as none.
                    data, offset = arguments
                    self._real[name](target, data[: len(data) // 2], offset)
                raise Died
            result = self._real[name](target, *arguments, **options)
            if name in {"fsync", "fdatasync"}:
                self._flush(target)
            return result

        return step

    def _flush(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}")
        if path.is_dir():
            self._flush_folder(path.resolve())
        else:
            self._contents[os.fstat(descriptor).st_ino] = path.read_bytes()

    def _flush_folder(self, folder: Path) -> None:
        self._names[folder] = {path.name: path.stat().st_ino for path in folder.iterdir()}

    def restart(self) -> None:
        """The process that died starts again, and no longer dies; the machine went on meanwhile."""
        self._dies_at = 0

    def after_power_cut(self, to: Path, *, newest_names: bool) -> Path:
        """What the disk has."""
        if newest_names:
            for folder in (self._root, *self._root.rglob("*")):
                if folder.is_dir():
                    self._flush_folder(folder)
        shutil.rmtree(to, ignore_errors=True)
        self._rebuild(self._root, to)
        return to

    def _rebuild(self, folder: Path, to: Path) -> None:
        to.mkdir()
        for name, inode in self._names.get(folder, {}).items():
            if (folder / name).is_dir():
                self._rebuild(folder / name, to / name)
            else:
                (to / name).write_bytes(self._contents.get(inode, b""))
