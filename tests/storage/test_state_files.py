"""Files with a kernel's namespace: whole, honest about what they have, or refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from notebookos_ext.cluster.digests import chunk_digest
from notebookos_ext.errors import CorruptRecord, InvalidRequest, NotebookOSError, Refused
from notebookos_ext.storage.state_files import (
    StateFile,
    StateFileHeader,
    inspect_state_file,
    read_state_file,
    write_state_file,
)

KEY = b"k" * 32
CHUNKS = {chunk_digest(data): data for data in (b"first", b"second" * 1000)}
HEADER = StateFileHeader(
    made_at=1.0,
    version="0.1",
    kernel="k",
    kernel_name="notebookos",
    notebook_path="a.ipynb",
    python="3.11.7",
    gpus_per_cell=1,
    names=("x", "y"),
    left_out=("s",),
    snapshot_bytes=8,
    chunks=tuple((digest, len(data)) for digest, data in CHUNKS.items()),
)


def written(path: Path, *, overwrite: bool = False) -> StateFile:
    return write_state_file(
        path, HEADER, b"snapshot", CHUNKS.__getitem__, key=KEY, overwrite=overwrite
    )


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    made = written(path)
    assert path.stat().st_mode & 0o077 == 0
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert inspect_state_file(path, key=KEY) == made
    assert (made.is_own, made.header, made.size_bytes) == (True, HEADER, path.stat().st_size)
    assert not inspect_state_file(path, key=b"of another installation").is_own
    found: dict[str, bytes] = {}
    header, snapshot = read_state_file(path, key=KEY, digest=made.digest, put=found.__setitem__)
    assert (header, snapshot, found) == (HEADER, b"snapshot", CHUNKS)
    # It says itself what it has.
    assert b'"x"' in path.read_bytes()[:2000]


def test_a_file_that_is_there_stays_unless_it_is_to_be_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(Refused, match="is there already"):
        written(path)
    assert path.read_text() == "mine"
    written(path, overwrite=True)
    assert inspect_state_file(path, key=KEY).is_own


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path: Path) -> None:
    def fails(digest: str) -> bytes:
        raise CorruptRecord(f"{digest} is gone")

    with pytest.raises(CorruptRecord, match="is gone"):
        write_state_file(tmp_path / "file", HEADER, b"snapshot", fails, key=KEY, overwrite=False)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidRequest, match="is not there"):
        written(tmp_path / "no" / "file")


def test_any_damage_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    written(path)
    whole = path.read_bytes()
    for place in range(0, len(whole) - 32, 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(NotebookOSError):
            inspect_state_file(path, key=KEY)
    for length in (0, 5, 16, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(NotebookOSError):
            inspect_state_file(path, key=KEY)
    # Whoever changes the signature only says that it is somebody else's.
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert not inspect_state_file(path, key=KEY).is_own


def test_another_format_and_another_kind_of_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    written(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:8] + struct.pack(">I", 2) + whole[12:])
    with pytest.raises(InvalidRequest, match="has format 2, but this version reads 1"):
        inspect_state_file(path, key=KEY)
    path.write_text("a notebook, say")
    with pytest.raises(InvalidRequest, match="no file that export-state has written"):
        inspect_state_file(path, key=KEY)


def test_a_file_that_was_exchanged_after_it_was_looked_at_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    written(path)
    with pytest.raises(Refused, match="has changed since"):
        read_state_file(path, key=KEY, digest="0" * 64, put=lambda *_: pytest.fail("it was used"))
