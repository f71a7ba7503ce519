"""Sums over usage records: windows, groups, reservations, and files that are not ours."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from notebookos_ext.cluster.accounting import CellUsage, KernelUsage
from notebookos_ext.cluster.model import CellId, KernelId, Outcome
from notebookos_ext.cluster.occupancy import GpuStretch
from notebookos_ext.errors import StorageError
from notebookos_ext.storage.usage import By, GpuPoint, UsageLedger, UsageSum


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[UsageLedger]:
    made = UsageLedger(tmp_path / "usage.sqlite3")
    yield made
    made.close()


def cell(attempt: int = 1, kernel: str = "k", gpus: int = 2, **times: float | None) -> CellUsage:
    values: dict[str, Any] = {
        "submitted_at": 90.0,
        "bound_at": 100.0,
        "started_at": 100.0,
        "ended_at": 200.0,
        "released_at": 200.0,
        **times,
    }
    return CellUsage(
        kernel=KernelId(kernel),
        attempt=attempt,
        cell=CellId(f"c{attempt}"),
        gpus=gpus,
        outcome=Outcome.DONE,
        **values,
    )


def life(
    kernel: str = "k", gpus: int = 2, since: float = 0.0, until: float = 1000.0
) -> KernelUsage:
    return KernelUsage(KernelId(kernel), f"{kernel}.ipynb", gpus, since, until)


def total(ledger: UsageLedger, since: float = 0.0, until: float = 1e9) -> UsageSum:
    return ledger.sums(since=since, until=until, by="kernel")[0]


def test_records_that_say_whose_they_are_count_for_that_user(ledger: UsageLedger) -> None:
    ada = msgspec.structs.replace(cell(1), user="ada")
    ledger.put([msgspec.structs.replace(life(), user="ada"), ada], user="the server's")
    (_, only) = ledger.sums(since=0.0, until=1000.0, by="user")
    assert (only.name, only.cells) == ("ada", 1)


def test_nothing_is_nothing(ledger: UsageLedger) -> None:
    (found,) = ledger.sums(since=0.0, until=1.0, by="user")
    assert (found.cells, found.gpu_seconds_saved, found.wait_ms_p50) == (0, 0.0, None)


def test_waits_are_counted_between_bounds(ledger: UsageLedger) -> None:
    waits_s = (0.05, 0.1, 0.5, 30.0, 3600.0)
    cells = [cell(n, submitted_at=100.0 - wait) for n, wait in enumerate(waits_s)]
    ledger.put([*cells, cell(9, gpus=0)], user="ada")
    assert total(ledger).wait_counts == (2, 1, 0, 1, 0, 1)


def test_saved_is_what_a_reservation_holds_less_what_was_bound(ledger: UsageLedger) -> None:
    ledger.put([life(), cell(ended_at=190.0)], user="ada")
    found = total(ledger)
    assert (found.gpu_seconds_reserved, found.gpu_seconds_bound) == (2000.0, 200.0)
    assert (found.gpu_seconds_used, found.gpu_seconds_saved) == (180.0, 1800.0)


def test_a_reservation_holds_what_the_largest_cell_ever_asked_for(ledger: UsageLedger) -> None:
    ledger.put([life(gpus=0), cell(gpus=4)], user="ada")
    assert total(ledger).gpu_seconds_reserved == 4000.0


@pytest.mark.parametrize(
    ("since", "until", "bound", "reserved"),
    [(0.0, 150.0, 100.0, 300.0), (150.0, 1e9, 100.0, 1700.0), (300.0, 400.0, 0.0, 200.0)],
)
def test_a_window_counts_the_part_that_lies_in_it(
    ledger: UsageLedger, since: float, until: float, bound: float, reserved: float
) -> None:
    ledger.put([life(), cell()], user="ada")
    found = total(ledger, since, until)
    assert (found.gpu_seconds_bound, found.gpu_seconds_reserved) == (bound, reserved)


def test_a_record_that_is_put_again_takes_the_place_of_the_first(ledger: UsageLedger) -> None:
    ledger.put([life(until=500.0), cell(released_at=None)], user="ada")
    ledger.put([life(), cell(released_at=300.0)], user="ada")
    found = total(ledger)
    assert (found.cells, found.gpu_seconds_bound) == (1, 400.0)
    assert found.gpu_seconds_reserved == 2000.0


def test_waits_are_those_of_gpu_cells(ledger: UsageLedger) -> None:
    waits = [0.5, 1.0, 1.5, 4.0]
    cells = [cell(n, submitted_at=100.0 - wait) for n, wait in enumerate(waits)]
    ledger.put([*cells, cell(9, gpus=0, submitted_at=0.0)], user="ada")
    found = total(ledger)
    assert (found.cells, found.gpu_cells, found.at_once) == (5, 4, 2)
    assert (found.wait_ms_p50, found.wait_ms_p99) == (1000.0, 4000.0)
    assert found.wait_ms_mean == pytest.approx(1750.0)


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("user", ["bob", "ada"]),
        ("notebook", ["l.ipynb", "k.ipynb"]),
        ("kernel", ["l", "k"]),
    ],
)
def test_groups_come_largest_first(ledger: UsageLedger, by: By, names: list[str]) -> None:
    ledger.put([life("k"), cell(kernel="k", gpus=1)], user="ada")
    ledger.put([life("l"), cell(kernel="l", gpus=8)], user="bob")
    whole, *groups = ledger.sums(since=0.0, until=1e9, by=by)
    assert [group.name for group in groups] == names
    assert whole.gpu_seconds_bound == sum(group.gpu_seconds_bound for group in groups) == 900.0


def test_it_is_there_after_a_restart(tmp_path: Path) -> None:
    for number in range(2):
        ledger = UsageLedger(tmp_path / "usage.sqlite3")
        ledger.put([cell(number)], user="ada")
        assert total(ledger).cells == number + 1
        ledger.close()


def test_a_file_of_another_format_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite3"
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version=99")
    other.close()
    with pytest.raises(StorageError, match="format 99 of another version"):
        UsageLedger(path)


def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite3"
    path.write_bytes(b"my diary, and not a word of SQL in it" * 100)
    with pytest.raises(StorageError, match="cannot be opened"):
        UsageLedger(path)
    assert path.read_bytes().startswith(b"my diary")


def test_gpus_over_time_are_means_over_what_is_on_record(ledger: UsageLedger) -> None:
    stretches = [
        GpuStretch(100.0, 110.0, 8, 0),
        GpuStretch(110.0, 130.0, 8, 4),
        # No server ran from 130 to 140.
        GpuStretch(140.0, 160.0, 4, 1),
    ]
    ledger.put(stretches, user="ada")
    # The last one goes on, and is written down again.
    ledger.put([GpuStretch(140.0, 180.0, 4, 1)], user="ada")
    assert ledger.timeline(since=0.0, until=180.0, points=4) == [
        GpuPoint(100.0, 8.0, 2.0, 4),
        GpuPoint(120.0, 8.0, 4.0, 4),
        GpuPoint(140.0, 4.0, 1.0, 1),
        GpuPoint(160.0, 4.0, 1.0, 1),
    ]
    (gap,) = ledger.timeline(since=129.0, until=139.0, points=1)
    assert (gap.provisioned, gap.bound) == (8.0, 4.0)
    assert ledger.timeline(since=131.0, until=139.0, points=3) == []
    assert ledger.timeline(since=120.0, until=120.0, points=3) == []
    assert ledger.timeline(since=120.0, until=150.0, points=3)[1] == GpuPoint(130.0, *[None] * 3)
