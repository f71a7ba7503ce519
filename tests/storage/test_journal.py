"""A journal gives back what was noted, however it ended, and says so when it was damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import host_spec

from notebookos_ext.cluster.events import HostJoined, Ticked
from notebookos_ext.cluster.options import Options
from notebookos_ext.errors import CorruptRecord, InvalidRequest, StorageError
from notebookos_ext.storage.journal import (
    VERSION,
    JournalEntry,
    JournalHead,
    JournalWriter,
    actions_crc,
    read_journal,
)

HEAD = JournalHead(VERSION, "replicated", 8, Options(), 100.0)
EVENTS = [HostJoined(host_spec("host-1"), 101.0), Ticked(102.0), Ticked(103.0)]


def written(path: Path) -> bytes:
    with JournalWriter(path, HEAD) as journal:
        for event in EVENTS:
            journal.append(event, [])
    return path.read_bytes()


def test_events_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "j"
    written(path)
    head, *entries = read_journal(path)
    assert head == HEAD
    assert entries == [JournalEntry(event, actions_crc([])) for event in EVENTS]


def test_a_second_life_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "j"
    written(path)
    written(path)
    heads = [record for record in read_journal(path) if isinstance(record, JournalHead)]
    assert len(heads) == 2


def test_every_cut_leaves_a_prefix_and_can_be_continued(tmp_path: Path) -> None:
    whole = written(tmp_path / "j")
    records = list(read_journal(tmp_path / "j"))
    path = tmp_path / "cut"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        kept = list(read_journal(path))
        assert kept == records[: len(kept)]
        with JournalWriter(path, HEAD) as journal:
            journal.append(Ticked(9.0), [])
        again = list(read_journal(path))
        assert again == [*kept, HEAD, JournalEntry(Ticked(9.0), actions_crc([]))]


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    """Never a record that was not written: an end that looks unfinished, or a clear error."""
    whole = written(tmp_path / "j")
    records = list(read_journal(tmp_path / "j"))
    path = tmp_path / "damaged"
    complaints = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        try:
            found = list(read_journal(path))
        except CorruptRecord:
            complaints += 1
        else:
            assert found == records[: len(found)]
            assert len(found) < len(records)
    assert complaints > len(whole) // 2


def test_another_version_is_refused(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "j", JournalHead(99, "replicated", 8, Options(), 0.0)):
        pass
    with pytest.raises(InvalidRequest, match="version 99"):
        list(read_journal(tmp_path / "j"))


def test_a_full_journal_keeps_what_it_has(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "j", HEAD, max_bytes=2000) as journal:
        for number in range(200):
            journal.append(Ticked(float(number)), [])
        assert journal.full
    *_, last = read_journal(tmp_path / "j")
    assert isinstance(last, JournalEntry)
    assert (tmp_path / "j").stat().st_size <= 2000


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot read the journal"):
        list(read_journal(tmp_path / "none"))
