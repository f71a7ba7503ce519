"""A log that forgets: dead at every step, without power, full, damaged, of an older format."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lossy_disk import Died, LossyDisk

from notebookos_ext.cluster.consensus.membership import Membership
from notebookos_ext.cluster.consensus.messages import Entry, HardState
from notebookos_ext.cluster.consensus.snapshot import Snapshot, SnapshotMeta
from notebookos_ext.errors import CorruptRecord, NotFound, StorageError, StorageFull
from notebookos_ext.storage.records import framed
from notebookos_ext.storage.wal import (
    DAMAGED_NAME,
    FILE_NAME,
    Identity,
    WriteAheadLog,
    identity_in,
    set_aside,
)

ME = Identity("kernel-1", "host-1", ("host-1", "host-2", "host-3"))
VOTERS = Membership(ME.members)


def entry(index: int, term: int = 1) -> Entry:
    return Entry(term, index, f"id-{index}", b"payload %d" % index)


def snapshot(index: int, state: bytes = b"state") -> Snapshot:
    identities = tuple((f"id-{n}", n) for n in range(1, index + 1))
    return Snapshot(SnapshotMeta(index, 1, VOTERS, 0, 0, identities), state)


def holds(folder: Path) -> tuple[int, bytes, tuple[int, ...], HardState]:
    """Where the log begins, the state there, what follows, and the hard state."""
    log = WriteAheadLog.open(folder, ME)
    kept = log.read_snapshot()
    log.close()
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [FILE_NAME, *([log.snapshot.file_name] if log.snapshot else [])]
    ), "litter is gone"
    index, state = (kept.meta.index, kept.state) if kept else (0, b"")
    return index, state, tuple(each.index for each in log.entries), log.hard_state


def filled(folder: Path) -> WriteAheadLog:
    log = WriteAheadLog.open(folder, ME)
    log.save(HardState(1, "host-1"), [entry(n) for n in range(1, 11)])
    return log


def test_a_snapshot_from_the_leader_leaves_term_and_vote_as_they_are(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.save(None, [entry(31)], snapshot(30))
    log.close()
    assert holds(tmp_path) == (30, b"state", (31,), HardState(1, "host-1"))
    log = WriteAheadLog.open(tmp_path, ME)
    log.save(HardState(2, "host-2"), [], snapshot(40))
    log.close()
    assert holds(tmp_path) == (40, b"state", (), HardState(2, "host-2"))


def test_what_a_snapshot_stands_for_is_gone_and_the_rest_is_there(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.save(None, [Entry(1, n, f"id-{n}", bytes(100_000)) for n in range(11, 21)])
    before = log.size_bytes
    ref = log.keep(snapshot(18))
    log.save(None, [entry(21)])
    log.compact(ref)
    assert log.size_bytes < before / 4
    log.save(HardState(2, ""), [entry(22, 2)])
    log.close()
    assert holds(tmp_path) == (18, b"state", (19, 20, 21, 22), HardState(2, ""))
    log = WriteAheadLog.open(tmp_path, ME)
    log.compact(log.keep(snapshot(22, b"later")))
    log.close()
    assert holds(tmp_path) == (22, b"later", (), HardState(2, ""))


def test_a_leaders_snapshot_takes_the_place_of_everything(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.save(HardState(3, ""), [entry(31, 3)], snapshot(30))
    log.close()
    assert holds(tmp_path) == (30, b"state", (31,), HardState(3, ""))


def test_a_gap_after_the_snapshot_is_refused(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.compact(log.keep(snapshot(8)))
    for index in (12, 8):
        with pytest.raises(CorruptRecord, match=f"9 to 10, so entry {index} cannot follow them"):
            log.save(None, [entry(index)])
    log.close()
    assert holds(tmp_path)[2] == (9, 10)


def _compacts(log: WriteAheadLog) -> None:
    log.compact(log.keep(snapshot(7, b"new")))


def _installs(log: WriteAheadLog) -> None:
    log.save(HardState(5, "host-2"), [entry(31, 5)], snapshot(30, b"new"))


def _saves(log: WriteAheadLog) -> None:
    log.save(HardState(5, "host-2"), [entry(9, 5)])


AFTER = {
    _compacts: (7, b"new", (8, 9, 10), HardState(1, "host-1")),
    _installs: (30, b"new", (31,), HardState(5, "host-2")),
    _saves: (4, b"old", (5, 6, 7, 8, 9), HardState(5, "host-2")),
}
BEFORE = (4, b"old", (5, 6, 7, 8, 9, 10), HardState(1, "host-1"))


@pytest.mark.parametrize("changes", AFTER)
def test_dead_between_any_two_steps_one_of_the_two_logs_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Callable[[WriteAheadLog], None]
) -> None:
    seen = set()
    for dies_at in range(1, 1000):
        folder = tmp_path / f"dies-{dies_at}"
        log = filled(folder)
        log.compact(log.keep(snapshot(4, b"old")))
        finished = False
        with monkeypatch.context() as patch:
            disk = LossyDisk(folder, patch, dies_at)
            try:
                changes(log)
                finished = True
            except Died:
                pass
        for newest_names in (False, True):
            cut = disk.after_power_cut(tmp_path / "cut", newest_names=newest_names)
            found = holds(cut)
            assert found in (BEFORE, AFTER[changes]), (dies_at, newest_names)
            assert found == AFTER[changes] or not finished
            seen.add(found)
        log.close()
        assert holds(folder) in (BEFORE, AFTER[changes]), dies_at
        if finished:
            break
    assert finished
    assert seen == {BEFORE, AFTER[changes]}
    assert dies_at >= (3 if changes is _saves else 8), disk.steps


@pytest.mark.parametrize("changes", AFTER)
def test_what_a_killed_process_left_survives_the_machine_once_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Callable[[WriteAheadLog], None]
) -> None:
    """It may have died between a write and its flush; whoever reads it acknowledges it."""
    for dies_at in range(1, 1000):
        folder = tmp_path / f"dies-{dies_at}"
        log = filled(folder)
        log.compact(log.keep(snapshot(4, b"old")))
        finished = False
        with monkeypatch.context() as patch:
            disk = LossyDisk(folder, patch, dies_at)
            with contextlib.suppress(Died):
                changes(log)
                finished = True
            log.close()
            disk.restart()
            believed = holds(folder)
            assert holds(disk.after_power_cut(tmp_path / "cut", newest_names=False)) == believed
        if finished:
            return
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize("group", ["", "group"])
def test_a_new_log_that_was_found_survives_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    """Also the folders in which a killed process made it."""
    for dies_at in range(1, 1000):
        root = tmp_path / f"dies-{dies_at}"
        root.mkdir()
        folder = root / "kernels" / "kernel-1" / group
        finished = False
        with monkeypatch.context() as patch:
            disk = LossyDisk(root, patch, dies_at)
            with contextlib.suppress(Died):
                WriteAheadLog.open(folder, ME).close()
                finished = True
            disk.restart()
            log = WriteAheadLog.open(folder, ME)
            log.save(HardState(1, "host-1"), [entry(1)])
            log.close()
            cut = disk.after_power_cut(tmp_path / "cut", newest_names=False)
            assert holds(cut / "kernels" / "kernel-1" / group)[2:] == ((1,), HardState(1, "host-1"))
        if finished:
            return
    raise AssertionError("it never came to an end")


def test_a_new_log_is_there_wholly_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for dies_at in range(1, 1000):
        root = tmp_path / f"dies-{dies_at}"
        root.mkdir()
        log = None
        with monkeypatch.context() as patch:
            disk = LossyDisk(root, patch, dies_at)
            with contextlib.suppress(Died):
                log = WriteAheadLog.open(root / "kernels" / "kernel-1", ME)
        cut = disk.after_power_cut(tmp_path / "cut", newest_names=False)
        if log is not None:
            log.close()
            assert identity_in(cut / "kernels" / "kernel-1") == ME
            return
        assert identity_in(cut / "kernels" / "kernel-1") in (None, ME)
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize("changes", [_compacts, _installs])
def test_on_a_full_disk_the_log_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Callable[[WriteAheadLog], None]
) -> None:
    for room in range(3):
        folder = tmp_path / f"room-{room}"
        log = filled(folder)
        log.compact(log.keep(snapshot(4, b"old")))
        real, left = os.pwrite, [room]

        def pwrite(descriptor: int, data: bytes, offset: int, real=real, left=left) -> int:
            left[0] -= 1
            if left[0] < 0:
                real(descriptor, data[: len(data) // 2], offset)
                raise OSError(errno.ENOSPC, "no space left on device")
            return real(descriptor, data, offset)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", pwrite)
            if room < 2:
                with pytest.raises(StorageFull, match="no space is left"):
                    changes(log)
                assert log.entries[-1].index == 10
                left[0] = 1
                log.save(None, [entry(10)])
                left[0] = 99
            changes(log)
        log.close()
        assert holds(folder) == AFTER[changes]


def test_a_snapshot_that_is_replaced_while_it_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path)
    log.compact(log.keep(snapshot(4, b"old")))
    assert log.snapshot is not None
    path = tmp_path / log.snapshot.file_name
    read = Path.read_bytes

    def late(self: Path) -> bytes:
        if self == path and path.exists():
            log.compact(log.keep(snapshot(8, b"new")))
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", late)
    found = log.read_snapshot()
    assert found is not None
    assert found.state == b"new"
    log.close()


def test_a_snapshot_that_is_damaged_or_gone_is_refused(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.compact(log.keep(snapshot(4)))
    log.close()
    assert log.snapshot is not None
    path = tmp_path / log.snapshot.file_name
    content = path.read_bytes()
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(CorruptRecord, match=r"snapshot.* is damaged; this member must not"):
            WriteAheadLog.open(tmp_path, ME)
    path.unlink()
    with pytest.raises(CorruptRecord, match=r"snapshot.* is gone; this member must not vote"):
        WriteAheadLog.open(tmp_path, ME)


def test_a_compacted_log_cut_in_its_beginning_is_refused(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.compact(log.keep(snapshot(4)))
    log.close()
    file = tmp_path / FILE_NAME
    content = file.read_bytes()
    for size in range(1, len(content)):
        file.write_bytes(content[:size])
        with pytest.raises(CorruptRecord, match="damaged at byte"):
            WriteAheadLog.open(tmp_path, ME)
    file.write_bytes(content)
    assert holds(tmp_path)[0] == 4


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_damage_is_ever_taken_for_less(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Cut anywhere after what was flushed last, or with any bit flipped."""
    folder = tmp_path_factory.mktemp("log")
    log = filled(folder)
    if data.draw(st.booleans(), label="compacted"):
        log.compact(log.keep(snapshot(4)))
    saves = data.draw(st.integers(1, 3), label="saves")
    for n in range(saves):
        log.save(HardState(2 + n, ""), [entry(11 + n, 2 + n)])
    log.close()
    whole = holds(folder)
    file = folder / FILE_NAME
    content = bytearray(file.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(content) - 1), label="bit")
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)
    with pytest.raises(CorruptRecord):
        WriteAheadLog.open(folder, ME)
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content + b"nbos"[: data.draw(st.integers(0, 3), label="torn")])
    assert holds(folder) == whole


def _format_1(folder: Path, saves: list[tuple[HardState | None, list[Entry]]]) -> None:
    folder.mkdir(exist_ok=True)
    head = struct.pack(">8sI", b"nbos-wal", 1)
    content = head + struct.pack(">I", zlib.crc32(head)) + framed(1, msgspec.msgpack.encode(ME))
    for number, save in enumerate(saves, start=2):
        hard_state, entries = save
        plain = [(e.term, e.index, e.proposal_id, e.payload) for e in entries]
        content += framed(number, msgspec.msgpack.encode((hard_state, plain)))
    (folder / FILE_NAME).write_bytes(content)


def test_a_log_of_the_format_before_is_read_and_brought_to_the_present_one(
    tmp_path: Path,
) -> None:
    _format_1(tmp_path, [(HardState(1, "host-1"), [entry(1), entry(2)]), (None, [entry(3)])])
    assert identity_in(tmp_path) == ME
    assert holds(tmp_path) == (0, b"", (1, 2, 3), HardState(1, "host-1"))
    log = WriteAheadLog.open(tmp_path, ME)
    log.compact(log.keep(snapshot(2)))
    log.close()
    assert holds(tmp_path) == (2, b"state", (3,), HardState(1, "host-1"))


def test_a_log_that_was_set_aside_is_not_taken_for_one_that_never_was(tmp_path: Path) -> None:
    assert identity_in(tmp_path) is None
    filled(tmp_path).close()
    assert identity_in(tmp_path) == ME
    set_aside(tmp_path)
    assert (tmp_path / DAMAGED_NAME).exists()
    with pytest.raises(NotFound, match="was damaged and set aside"):
        identity_in(tmp_path)


def test_a_file_that_could_not_be_replaced_is_out_of_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path)
    ref = log.keep(snapshot(4))
    real = os.fsync

    def fails_for_folders(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise OSError(errno.EIO, "input/output error")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fails_for_folders)
    with pytest.raises(StorageError, match="could not be replaced and is out of use"):
        log.compact(ref)
    monkeypatch.undo()
    with pytest.raises(StorageError, match="out of use"):
        log.save(HardState(9, ""), [])
    log.close()
    assert holds(tmp_path)[2][-1] == 10
