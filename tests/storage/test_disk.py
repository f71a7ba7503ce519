"""The folder store: the contract, and what only a disk can do to it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from storage.contract import DATA, DIGEST, StoreContract

from notebookos_ext.clock import SystemClock, VirtualClock
from notebookos_ext.errors import CorruptRecord, StorageError, StorageFull
from notebookos_ext.storage.base import CheckpointStore
from notebookos_ext.storage.disk import ABANDONED_AFTER_S, SWEPT, DiskStore


def chunk_path(folder: Path) -> Path:
    return folder / "chunks" / DIGEST[:2] / DIGEST


class TestDiskStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> CheckpointStore:
        return DiskStore(tmp_path / "store", clock=SystemClock())


def test_two_stores_share_a_folder(tmp_path: Path) -> None:
    one, other = (DiskStore(tmp_path, clock=SystemClock()) for _ in range(2))
    one.put(DIGEST, DATA)
    assert other.get(DIGEST) == DATA


def test_files_are_private(tmp_path: Path) -> None:
    DiskStore(tmp_path / "store", clock=SystemClock()).put(DIGEST, DATA)
    for path in (tmp_path / "store").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_corrupt_chunk_is_set_aside_and_can_be_put_again(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, clock=SystemClock())
    store.put(DIGEST, DATA)
    chunk_path(tmp_path).write_bytes(DATA[:-1] + b"X")
    with pytest.raises(CorruptRecord, match=f"now in {tmp_path / 'corrupt'}"):
        store.get(DIGEST)
    assert not store.has(DIGEST)
    store.put(DIGEST, DATA)
    assert store.get(DIGEST) == DATA


def test_a_full_disk_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStore(tmp_path, clock=SystemClock())

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StorageFull, match="no space is left"):
            store.put(DIGEST, DATA)
    assert not store.has(DIGEST)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
    store.put(DIGEST, DATA)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError, match="file/store cannot be used"):
        DiskStore(tmp_path / "file" / "store", clock=SystemClock())


def test_half_written_files_of_dead_processes_are_swept(tmp_path: Path) -> None:
    DiskStore(tmp_path, clock=SystemClock())
    left = tmp_path / "incoming" / "half"
    left.write_bytes(b"half")
    written_at = left.stat().st_mtime
    DiskStore(tmp_path, clock=VirtualClock(written_at + ABANDONED_AFTER_S - 1))
    assert left.exists()
    DiskStore(tmp_path, clock=VirtualClock(written_at + ABANDONED_AFTER_S + 1))
    assert not left.exists()


def test_what_a_dead_sweeper_had_taken_away_is_put_back(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, clock=SystemClock())
    store.put(DIGEST, DATA)
    taken = tmp_path / "incoming" / f"{SWEPT}{DIGEST}"
    chunk_path(tmp_path).rename(taken)
    taken_at = taken.stat().st_ctime
    DiskStore(tmp_path, clock=VirtualClock(taken_at + ABANDONED_AFTER_S - 1))
    assert not store.has(DIGEST)
    DiskStore(tmp_path, clock=VirtualClock(taken_at + ABANDONED_AFTER_S + 1))
    assert store.get(DIGEST) == DATA


def test_a_chunk_that_is_looked_for_while_it_is_swept_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStore(tmp_path, clock=SystemClock())
    store.put(DIGEST, DATA)
    os.utime(chunk_path(tmp_path), (1, 1))
    real = Path.rename

    def looked_for_just_before(path: Path, target: Path) -> Path:
        if path == chunk_path(tmp_path):
            assert store.has(DIGEST)
        return real(path, target)

    monkeypatch.setattr(Path, "rename", looked_for_just_before)
    assert store.sweep((), 60.0).chunks == 0
    assert store.get(DIGEST) == DATA


def test_what_was_put_again_or_looked_for_lately_is_not_swept(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, clock=SystemClock())
    for look in (lambda: store.put(DIGEST, DATA), lambda: store.has(DIGEST)):
        store.put(DIGEST, DATA)
        os.utime(chunk_path(tmp_path), (1, 1))
        look()
        assert store.sweep(frozenset(), 60.0).chunks == 0
    os.utime(chunk_path(tmp_path), (1, 1))
    assert store.sweep(frozenset(), 60.0).chunks == 1
