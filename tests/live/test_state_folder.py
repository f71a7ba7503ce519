"""State folders: one cluster each, private, short socket paths, one sentence for each trouble."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest

from notebookos_ext.errors import StorageError, StorageFull
from notebookos_ext.live.state_folder import open_private, open_shared


def test_a_folder_keeps_its_token_seed_and_sockets(tmp_path: Path) -> None:
    first = open_shared(tmp_path / "state")
    first.close(delete=False)
    second = open_shared(tmp_path / "state")
    assert (second.token, second.hash_seed, second.sockets) == (
        first.token,
        first.hash_seed,
        first.sockets,
    )
    second.close(delete=True)
    assert not (tmp_path / "state").exists()
    assert not second.sockets.exists()


def test_a_second_server_gets_a_folder_of_its_own_with_the_same_seed(tmp_path: Path) -> None:
    first, second = open_shared(tmp_path), open_shared(tmp_path)
    third = open_shared(tmp_path)
    assert second.path == tmp_path / "servers" / "2"
    assert third.path == tmp_path / "servers" / "3"
    assert second.hash_seed == first.hash_seed
    assert second.token != first.token
    assert len({first.sockets, second.sockets, third.sockets}) == 3
    second.close(delete=False)
    again = open_shared(tmp_path)
    assert again.path == second.path
    for folder in (first, third, again):
        folder.close(delete=False)


def test_nothing_in_it_is_for_others(tmp_path: Path) -> None:
    folder = open_shared(tmp_path / "state")
    assert stat.S_IMODE(folder.token_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.sockets.stat().st_mode) == 0o700
    folder.close(delete=True)


def test_socket_paths_are_short_however_long_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(deep))
    folder = open_shared(tmp_path / "state")
    longest = folder.sockets / ("x" * 32 + "-control")
    assert len(os.fsencode(longest)) <= 107
    folder.close(delete=True)


def test_a_chosen_seed_is_taken(tmp_path: Path) -> None:
    folder = open_shared(tmp_path, hash_seed=7)
    assert folder.hash_seed == 7
    folder.close(delete=False)


def test_a_damaged_token_is_named(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("not hexadecimal")
    with pytest.raises(StorageError, match="does not hold a token"):
        open_shared(tmp_path)


def test_a_damaged_seed_is_named(tmp_path: Path) -> None:
    (tmp_path / "hash_seed").write_text("-3")
    with pytest.raises(StorageError, match="hash_seed does not hold"):
        open_shared(tmp_path)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"state folder .*file/state cannot be used"):
        open_shared(tmp_path / "file" / "state")


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageFull, match="no space is left for the state folder"):
        open_shared(tmp_path)
    assert [p.name for p in tmp_path.iterdir() if p.name != "lock"] == []


def test_a_relative_path_and_a_home_are_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for asked, made in (("state", tmp_path / "state"), ("~/state", tmp_path / "home" / "state")):
        folder = open_shared(Path(asked))
        assert folder.path == made
        folder.close(delete=True)


def test_private_folders_vanish_and_what_killed_processes_left_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    dead = tmp_path / "notebookos-private-dead"
    dead.mkdir()
    (dead / "lock").write_text("")
    stranger = tmp_path / "notebookos-private-stranger"
    stranger.mkdir()
    shared = tmp_path / "notebookos-of-mine"
    open_shared(shared).close(delete=False)
    link = tmp_path / "notebookos-private-link"
    link.symlink_to(shared)
    living = open_private()
    other = open_private()
    assert not dead.exists()
    assert stranger.exists()
    assert (link / "lock").exists()
    assert living.path.exists()
    living.close(delete=True)
    other.close(delete=True)
    assert not living.path.exists()


def test_the_lock_is_deleted_last_so_that_a_killed_deletion_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    folder = open_private()
    deleted: list[str] = []
    unlink = os.unlink

    def watched(path: str | Path, **options: int) -> None:
        deleted.append(Path(path).name)
        unlink(path, **options)

    monkeypatch.setattr("os.unlink", watched)
    folder.close(delete=True)
    assert set(deleted) >= {"token", "hash_seed", "lock"}
    assert deleted[-1] == "lock"
    assert not folder.path.exists()


def test_a_foreign_socket_folder_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="nb") as short:
        monkeypatch.setattr("tempfile.gettempdir", lambda: short)
        Path(short, f"nbos-{os.getuid()}").symlink_to(tmp_path)
        with pytest.raises(StorageError, match="belongs to somebody else"):
            open_shared(tmp_path / "state")
    monkeypatch.undo()
    # The lock was given back: the folder is free for whoever comes next.
    folder = open_shared(tmp_path / "state")
    assert folder.path == tmp_path / "state"
    folder.close(delete=True)
