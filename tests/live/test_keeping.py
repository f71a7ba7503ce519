"""What is kept of kernels between two servers, and what is thrown away."""

from __future__ import annotations

from pathlib import Path

import pytest
from lossy_disk import LossyDisk

from notebookos_ext.cluster.entries import ChunkRef
from notebookos_ext.cluster.model import HostId, KernelId, KernelSpec
from notebookos_ext.cluster.snapshots import StoredState
from notebookos_ext.live.keeping import DAY_S, Keeper
from notebookos_ext.live.kernel_records import KernelRecord, LaunchPlan
from notebookos_ext.live.stored_kernels import named_chunks
from notebookos_ext.storage.kept_kernels import KeptKernels

NOW = 1000 * DAY_S
HOSTS = (HostId("host-1"), HostId("host-2"), HostId("host-3"))


class Disk:
    """The hosts' logs, by kernel, with when they were last written to."""

    def __init__(self, **written_at: float) -> None:
        self.written_at = {KernelId(kernel): at for kernel, at in written_at.items()}

    def logs(self) -> dict[KernelId, float]:
        return dict(self.written_at)

    def delete_logs(self, kernel: KernelId) -> None:
        del self.written_at[kernel]

    def require_space(self) -> None:
        return None


def record(kernel: str) -> KernelRecord:
    plan = LaunchPlan(
        name="notebookos",
        python="python",
        env={"SECRET": "of the user"},
        cwd="/work",
        session_key=b"secret of the session",
    )
    made = KernelRecord(KernelSpec(KernelId(kernel)), plan)
    made.members = HOSTS
    return made


def keep(folder: Path, *kernels: str) -> None:
    keeper = Keeper(KeptKernels(folder), Disk(), keep_days=1)
    for kernel in kernels:
        keeper.keep(record(kernel), lambda message, _: pytest.fail(message))


def test_what_is_kept_is_kept_over_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key opens logs, and the logs of a former key may be deleted as soon as it is written."""
    root = tmp_path / "state"
    root.mkdir()
    disk = LossyDisk(root, monkeypatch)
    kept = KeptKernels(root / "kernels")
    first, second = record("k"), record("k")
    assert first.log_key != second.log_key
    for made in (first, second):
        kept.put(made.kept())
        left = disk.after_power_cut(tmp_path / "left", newest_names=False)
        (found,), problems = KeptKernels(left / "kernels").all()
        assert found.log_key == made.log_key
        assert problems == []


def former(keeper: Keeper) -> list[str]:
    return [kept.spec.kernel for kept in keeper.former]


def test_what_was_kept_is_found_once(tmp_path: Path) -> None:
    keep(tmp_path, "k")
    keeper = Keeper(KeptKernels(tmp_path), Disk(k=NOW - 10), keep_days=1)
    assert keeper.take_stock(NOW) == []
    assert keeper.hosts == set(HOSTS)
    kept = keeper.find(KernelId("k"))
    assert kept is not None
    assert (kept.members, kept.kernel_name, kept.cwd) == (HOSTS, "notebookos", "/work")
    assert keeper.find(KernelId("k")) is None


def test_what_is_kept_holds_no_environment_and_is_private(tmp_path: Path) -> None:
    keep(tmp_path, "k")
    (path,) = tmp_path.iterdir()
    assert "secret of the" not in path.read_text()
    assert "of the user" not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0


def test_each_life_numbers_its_attempts_anew(tmp_path: Path) -> None:
    seen = []
    keep(tmp_path, "k")
    for _ in range(3):
        keeper = Keeper(KeptKernels(tmp_path), Disk(k=NOW), keep_days=1)
        keeper.take_stock(NOW)
        kept = keeper.find(KernelId("k"))
        assert kept is not None
        seen.append(kept.last_attempt)
        later = record("k")
        later.revive(kept)
        keeper.keep(later, lambda message, _: pytest.fail(message))
    assert seen == [1_000_000, 2_000_000, 3_000_000]


@pytest.mark.parametrize(("days", "left"), [(2.0, ["k"]), (0.5, []), (0.0, [])])
def test_what_was_not_used_for_too_long_goes_with_its_logs(
    tmp_path: Path, days: float, left: list[str]
) -> None:
    keep(tmp_path, "k")
    disk = Disk(k=NOW - DAY_S)
    keeper = Keeper(KeptKernels(tmp_path), disk, keep_days=days)
    keeper.take_stock(NOW)
    assert former(keeper) == list(disk.written_at) == left
    assert [path.stem for path in tmp_path.iterdir()] == left


def test_one_half_without_the_other_is_thrown_away(tmp_path: Path) -> None:
    keep(tmp_path, "without-log")
    disk = Disk(without_record=NOW)
    keeper = Keeper(KeptKernels(tmp_path), disk, keep_days=1)
    assert keeper.take_stock(NOW) == []
    assert former(keeper) == []
    assert list(tmp_path.iterdir()) == []
    assert disk.written_at == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "cannot be read"), ('{"format": 2', "cannot be read")],
)
def test_a_record_that_cannot_be_read_is_told_and_its_log_stays(
    tmp_path: Path, text: str, said: str
) -> None:
    keep(tmp_path, "good")
    (tmp_path / "bad.json").write_text(text)
    disk = Disk(good=NOW, bad=NOW)
    keeper = Keeper(KeptKernels(tmp_path), disk, keep_days=1)
    (problem,) = keeper.take_stock(NOW)
    assert "bad.json" in problem
    assert said in problem
    assert former(keeper) == ["good"]
    assert set(disk.written_at) == {"good", "bad"}


def test_a_record_of_another_version_is_told_and_stays(tmp_path: Path) -> None:
    keep(tmp_path, "k")
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text().replace('"format":1', '"format":3'))
    keeper = Keeper(KeptKernels(tmp_path), Disk(k=NOW), keep_days=1)
    (problem,) = keeper.take_stock(NOW)
    assert "format 3 of another version" in problem
    assert former(keeper) == []
    assert path.exists()


def test_a_kernel_that_cannot_be_written_down_is_told_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    keeper = Keeper(KeptKernels(tmp_path / "file" / "kernels"), Disk(), keep_days=1)
    said: list[tuple[str, KernelId]] = []
    keeper.keep(record("k"), lambda message, kernel: said.append((message, kernel)))
    ((message, kernel),) = said
    assert "would be lost with this server" in message
    assert kernel == "k"


def stored(at: float = NOW, epoch: int = 2) -> StoredState:
    return StoredState(
        kernel=KernelId("k"),
        key=b"key",
        epoch=epoch,
        at=at,
        replica_count=3,
        document=(ChunkRef("d" * 64, 100),),
        chunks=("c" * 64, "d" * 64),
        size_bytes=200,
        gpu_names=("model",),
    )


def keep_stored(folder: Path, state: StoredState, *, epoch: int = 2) -> None:
    made = record("k")
    made.stored, made.epoch = state, epoch
    made.description = {"banner": "Python"}
    keeper = Keeper(KeptKernels(folder), Disk(), keep_days=1)
    keeper.keep(made, lambda message, _: pytest.fail(message))


def test_a_stored_kernel_is_kept_without_logs_for_as_long_as_any_other(tmp_path: Path) -> None:
    keep_stored(tmp_path, stored())
    keeper = Keeper(KeptKernels(tmp_path), Disk(), keep_days=1)
    assert keeper.take_stock(NOW + DAY_S / 2) == []
    assert named_chunks(keeper, {}) == {"c" * 64, "d" * 64}
    kept = keeper.find(KernelId("k"))
    assert kept is not None
    assert (kept.stored, kept.description) == (stored(), {"banner": "Python"})
    back = record("k")
    back.revive(kept)
    assert (back.stored, back.members, back.gpu_names) == (stored(), (), {"model"})
    assert named_chunks(keeper, {back.kernel: back}) == {"c" * 64, "d" * 64}
    later = Keeper(KeptKernels(tmp_path), Disk(), keep_days=1)
    later.take_stock(NOW + DAY_S)
    assert former(later) == []
    assert list(tmp_path.iterdir()) == []
    assert named_chunks(later, {}) == frozenset()


def test_what_a_server_began_to_bring_back_counts_for_nothing(tmp_path: Path) -> None:
    keep_stored(tmp_path, stored())
    disk = Disk(k=NOW)
    keeper = Keeper(KeptKernels(tmp_path), disk, keep_days=1)
    keeper.take_stock(NOW)
    assert former(keeper) == ["k"]
    assert disk.written_at == {}
    assert keeper.hosts == frozenset()


def test_a_kernel_that_was_restarted_in_the_store_comes_back_empty(tmp_path: Path) -> None:
    keep_stored(tmp_path, stored(), epoch=3)
    keeper = Keeper(KeptKernels(tmp_path), Disk(), keep_days=1)
    keeper.take_stock(NOW)
    kept = keeper.find(KernelId("k"))
    assert kept is not None
    back = record("k")
    back.revive(kept)
    assert back.stored is not None
    assert (back.stored.is_empty, back.stored.epoch) == (True, 3)


def test_a_version_that_knows_no_stored_kernels_leaves_their_records_be(tmp_path: Path) -> None:
    keep_stored(tmp_path, stored())
    (path,) = tmp_path.iterdir()
    assert '"format":2' in path.read_text()
    keep(tmp_path, "k")
    assert '"format":1' in path.read_text()
