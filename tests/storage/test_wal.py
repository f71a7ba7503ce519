"""The member's file: killed at every byte, damaged at every byte, full, shared, foreign."""

from __future__ import annotations

import errno
import itertools
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from notebookos_ext.cluster.consensus.messages import Entry, HardState
from notebookos_ext.errors import CorruptRecord, StorageError, StorageFull
from notebookos_ext.storage import records, wal
from notebookos_ext.storage.wal import FILE_NAME, Identity, WriteAheadLog

ME = Identity("kernel-1", "host-1", ("host-1", "host-2", "host-3"))
Save = tuple[HardState | None, list[Entry]]


def entry(term: int, index: int, payload: bytes = b"payload") -> Entry:
    return Entry(term, index, f"id-{term}-{index}", payload)


SAVES: list[Save] = [
    (HardState(1, "host-1"), []),
    (None, [entry(1, 1, b""), entry(1, 2)]),
    (None, [entry(1, 3, bytes(700)), entry(1, 4)]),
    (HardState(3, ""), [entry(3, 3, b"replaces 3 and 4")]),
    (HardState(3, "host-2"), [entry(3, 4, bytes(1500))]),
]


def replay(saves: list[Save]) -> tuple[HardState, list[Entry]]:
    hard_state, entries = HardState(), []
    for new, added in saves:
        hard_state = new or hard_state
        if added:
            entries = [e for e in entries if e.index < added[0].index] + added
    return hard_state, entries


def content_of(log: WriteAheadLog) -> tuple[HardState, list[Entry]]:
    return log.hard_state, log.entries


def written(folder: Path) -> tuple[bytes, list[int]]:
    """A file with all SAVES, and its length after the creation and after each of them."""
    log = WriteAheadLog.open(folder, ME)
    lengths = [log.size_bytes]
    for hard_state, entries in SAVES:
        log.save(hard_state, entries)
        lengths.append(log.size_bytes)
    log.close()
    return (folder / FILE_NAME).read_bytes(), lengths


def test_what_was_saved_is_there_again(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "er"
    written(folder)
    log = WriteAheadLog.open(folder, ME)
    assert content_of(log) == replay(SAVES)
    log.save(None, [entry(4, 5)])
    log.close()
    again = WriteAheadLog.open(folder, ME)
    assert again.entries[-1] == entry(4, 5)
    again.close()


def test_killed_at_every_byte(tmp_path: Path) -> None:
    content, lengths = written(tmp_path)
    file = tmp_path / FILE_NAME
    for size in range(lengths[0], len(content) + 1):
        file.write_bytes(content[:size])
        log = WriteAheadLog.open(tmp_path, ME)
        whole = sum(length <= size for length in lengths) - 1
        assert content_of(log) == replay(SAVES[:whole]), size
        assert file.stat().st_size == lengths[whole]
        if size % 97 == 0:
            log.save(None, [entry(9, len(log.entries) + 1)])
            log.close()
            log = WriteAheadLog.open(tmp_path, ME)
            assert log.entries[-1].term == 9
        log.close()


def test_a_log_is_created_wholly_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    for step in ("fsync", "pwrite"):
        monkeypatch.setattr(wal.os, step, dies)
        with pytest.raises(StorageError, match="cannot be opened"):
            WriteAheadLog.open(tmp_path, ME)
        monkeypatch.undo()
        assert not (tmp_path / FILE_NAME).exists()
    log = WriteAheadLog.open(tmp_path, ME)
    log.close()


def test_damage_at_every_byte_is_refused(tmp_path: Path) -> None:
    content, _ = written(tmp_path)
    file = tmp_path / FILE_NAME
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0x40
        file.write_bytes(damaged)
        with pytest.raises(CorruptRecord, match=r"damaged at byte|has format"):
            WriteAheadLog.open(tmp_path, ME)
        assert file.read_bytes() == damaged, "evidence is left as it is"


def test_s10_s12_no_term_and_no_byte_makes_a_log_unreadable(tmp_path: Path) -> None:
    """In raftos byte 10 separates records, and is also how term 10 is written."""
    log = WriteAheadLog.open(tmp_path, ME)
    bytes_by_term = enumerate((*range(256), 10, 13, 0), 1)
    entries = [entry(term, term, bytes([byte]) * 3) for term, byte in bytes_by_term]
    saves: list[Save] = [(HardState(10, ""), entries), (HardState(0x0A0A, "\n"), [])]
    for hard_state, added in saves:
        log.save(hard_state, added)
    log.close()
    again = WriteAheadLog.open(tmp_path, ME)
    assert content_of(again) == replay(saves)
    again.close()


def test_a_missing_frame_is_refused(tmp_path: Path) -> None:
    content, lengths = written(tmp_path)
    for start, end in itertools.pairwise(lengths[:-1]):
        (tmp_path / FILE_NAME).write_bytes(content[:start] + content[end:])
        with pytest.raises(CorruptRecord, match="damaged at byte"):
            WriteAheadLog.open(tmp_path, ME)


@pytest.mark.parametrize("zeros_from", [0, 700, 1024])
def test_a_last_frame_whose_sectors_never_reached_the_disk_is_cut(
    tmp_path: Path, zeros_from: int
) -> None:
    content, lengths = written(tmp_path)
    start = lengths[-2]
    first_zero = start if zeros_from == 0 else -(-(start + zeros_from) // 512) * 512
    torn = content[:first_zero] + bytes(len(content) - first_zero)
    (tmp_path / FILE_NAME).write_bytes(torn)
    log = WriteAheadLog.open(tmp_path, ME)
    assert content_of(log) == replay(SAVES[:-1])
    log.close()


def test_a_foreign_log_is_not_taken_for_ours(tmp_path: Path) -> None:
    written(tmp_path)
    for other in (
        Identity("kernel-2", "host-1", ME.members),
        Identity("kernel-1", "host-2", ME.members),
        Identity("kernel-1", "host-1", ("host-1",)),
    ):
        with pytest.raises(CorruptRecord, match="belongs to member host-1 of group kernel-1"):
            WriteAheadLog.open(tmp_path, other)


def test_a_later_format_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "FORMAT_VERSION", 3)
    monkeypatch.setattr(wal, "FORMAT_VERSION", 3)
    written(tmp_path)
    monkeypatch.undo()
    with pytest.raises(CorruptRecord, match="has format 3, but this version reads 2"):
        WriteAheadLog.open(tmp_path, ME)


def test_two_processes_cannot_write_one_log(tmp_path: Path) -> None:
    log = WriteAheadLog.open(tmp_path, ME)
    with pytest.raises(StorageError, match="in use by another process"):
        WriteAheadLog.open(tmp_path, ME)
    log.close()
    WriteAheadLog.open(tmp_path, ME).close()


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    """A file-size limit stands for the full disk: both stop a write halfway."""
    log = WriteAheadLog.open(tmp_path, ME)
    log.save(HardState(1, "host-1"), [entry(1, 1)])
    before = log.size_bytes
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before + 5_000, hard))
        with pytest.raises(StorageFull, match="no space is left; free some"):
            log.save(None, [entry(1, 2, bytes(100_000))])
        assert (tmp_path / FILE_NAME).stat().st_size == before
        log.save(None, [entry(1, 2, b"small")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    log.save(None, [entry(1, 3, bytes(100_000))])
    log.close()
    again = WriteAheadLog.open(tmp_path, ME)
    assert [len(e.payload) for e in again.entries] == [7, 5, 100_000]
    again.close()


def test_after_a_failed_flush_the_log_is_out_of_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = WriteAheadLog.open(tmp_path, ME)

    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(wal.os, "fdatasync", fails)
    with pytest.raises(StorageError, match="could not be flushed"):
        log.save(HardState(1, "host-1"), [])
    monkeypatch.undo()
    with pytest.raises(StorageError, match="out of use"):
        log.save(HardState(1, "host-1"), [])
    log.close()


def test_a_save_is_flushed_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = WriteAheadLog.open(tmp_path, ME)
    flushed: list[int] = []
    monkeypatch.setattr(wal.os, "fdatasync", lambda fd: flushed.append(os.fstat(fd).st_size))
    log.save(None, [entry(1, 1)])
    assert flushed == [log.size_bytes]
    log.close()


def test_an_unusable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot be opened: Not a directory"):
        WriteAheadLog.open(tmp_path / "file" / "log", ME)


def test_delete_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "kernel"
    written(folder)
    log = WriteAheadLog.open(folder, ME)
    log.delete()
    assert not folder.exists()
    with pytest.raises(StorageError, match="closed"):
        log.save(None, [])


WRITER = """
import sys
from pathlib import Path
from notebookos_ext.cluster.consensus.messages import Entry
from notebookos_ext.storage.wal import Identity, WriteAheadLog

log = WriteAheadLog.open(Path(sys.argv[1]), Identity("kernel-1", "host-1", ("host-1",)))
index = len(log.entries)
while True:
    index += 1
    log.save(None, [Entry(1, index, f"id-{index}", b"x" * (index % 3000))])
    print(index, flush=True)
"""


def test_a_killed_writer_loses_nothing_it_reported(tmp_path: Path) -> None:
    me = Identity("kernel-1", "host-1", ("host-1",))
    reported = 0
    for kill_after in (1, 7, 40):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            for _ in range(kill_after):
                reported = int(writer.stdout.readline())
            writer.kill()
            rest = re.findall(r"(\d+)\n", writer.stdout.read())
        reported = int(rest[-1]) if rest else reported
        log = WriteAheadLog.open(tmp_path, me)
        assert reported <= len(log.entries) <= reported + 1
        assert [len(e.payload) for e in log.entries] == [e.index % 3000 for e in log.entries]
        log.close()
