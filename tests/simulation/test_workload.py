"""Workloads in their three forms, and what can be known of one without scheduling it."""

from __future__ import annotations

from pathlib import Path

import pytest

from notebookos_ext.errors import InvalidRequest
from notebookos_ext.simulation.csv_form import read_csv, write_csv
from notebookos_ext.simulation.delays import Delays
from notebookos_ext.simulation.faults import Faults
from notebookos_ext.simulation.templates import (
    RemoteStorage,
    read_store,
    read_template,
    with_store,
    with_store_failures,
)
from notebookos_ext.simulation.workload import (
    PlannedCell,
    PlannedSession,
    Workload,
    bounds,
    check_workload,
    close_loop,
    whole_hosts_gpu_h,
)

DATA = Path(__file__).parent.parent / "testdata" / "simulation"
TWO = Workload(
    "two",
    7200.0,
    (
        PlannedSession("a", 0.0, 7200.0, 4, (PlannedCell(600.0, 1800.0, 4),)),
        PlannedSession("b", 3600.0, 7200.0, 8, (PlannedCell(5400.0, 3600.0, 8),)),
    ),
)


def write(folder: Path, sessions: str, tasks: str) -> Path:
    (folder / "w_sessions.csv").write_text(sessions)
    (folder / "w_tasks.csv").write_text(tasks)
    return folder / "w_sessions.csv"


def test_bounds_are_sums_and_stop_at_the_horizon() -> None:
    found = bounds(TWO)
    assert found.reservation_gpu_h == 4 * 2 + 8 * 1
    # b's cell runs for an hour, half of it after the horizon.
    assert found.oracle_gpu_h == 4 * 0.5 + 8 * 0.5
    assert found.possible_saving_gpu_h == 10


def test_whole_hosts_are_rounded_up_at_every_moment() -> None:
    found = whole_hosts_gpu_h(TWO, 8, least_hosts=0)
    assert found.reservation_gpu_h == 8 * 1 + 16 * 1
    assert found.oracle_gpu_h == 8 * 0.5 + 8 * 0.5
    assert whole_hosts_gpu_h(TWO, 8, least_hosts=1).oracle_gpu_h == 8 * 2


def test_think_time_is_what_lies_between_cells_and_never_negative() -> None:
    cells = close_loop([(0.0, 60.0, 1), (100.0, 60.0, 1), (120.0, 5.0, 1)])
    assert [cell.think_after_s for cell in cells] == [40.0, 0.0, 0.0]


def test_csv_is_read_as_it_was_written(tmp_path: Path) -> None:
    path, _ = write_csv(TWO, tmp_path)
    again = read_csv(path)
    assert again.sessions == TWO.sessions
    assert again.horizon_s == TWO.horizon_s


def test_csv_without_think_times_closes_the_loop_itself(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "session,start_s,end_s,gpus,tasks\n7,0,900,2,2\n",
        "session,submit_s,duration_s,gpus,truncated\n7,60,30,2,0\n7,200,30,1,0\n",
    )
    (session,) = read_csv(path).sessions
    assert [cell.think_after_s for cell in session.cells] == [110.0, 0.0]
    assert [cell.gpus for cell in session.cells] == [2, 1]


@pytest.mark.parametrize(
    ("sessions", "tasks", "says"),
    [
        ("session,start_s,end_s,gpus\n", "session,submit_s,duration_s,gpus\n", "lists no session"),
        ("session,start_s,end_s,gpus\n1,zero,9,1\n", "session,submit_s\n", "line 2: 'zero'"),
        ("session,start_s,end_s\n1,0,9\n", "session,submit_s\n", "nothing in column 'gpus'"),
        (
            "session,start_s,end_s,gpus\n1,0,9,1\n",
            "session,submit_s,duration_s,gpus\n2,0,1,1\n",
            "tasks of session 2",
        ),
        (
            "session,start_s,end_s,gpus\n1,0,9,1\n",
            "session,submit_s,duration_s,gpus\n1,5,1,1\n1,2,1,1\n",
            "not in the order",
        ),
        (
            "session,start_s,end_s,gpus\n1,9,0,1\n2,0,9,1\n",
            "session,submit_s\n",
            "before its start",
        ),
        ("session,start_s,end_s,gpus\n1,0,9,1\n1,0,9,1\n", "session,submit_s\n", "two sessions"),
    ],
)
def test_a_bad_csv_is_named(tmp_path: Path, sessions: str, tasks: str, says: str) -> None:
    path = write(tmp_path, sessions, tasks)
    with pytest.raises(InvalidRequest, match=says):
        read_csv(path)


@pytest.mark.parametrize(
    ("sessions", "tasks", "says"),
    [
        ("1,nan,9,1\n", "", "'nan' in column 'start_s' is not a number"),
        ("1,0,inf,1\n", "", "'inf' in column 'end_s' is not a number"),
        ("1,0,9,nan\n", "", "not a number"),
        ("1,0,9,1.5\n", "", "must be a whole number"),
        ("1,0,9,-1\n", "", "none may be below 0"),
        ("1,-5,9,1\n", "", "times must be from 0"),
        ("1,0,1e300,1\n", "", "a length above 0 and up to"),
        ("1,0,9,1\n", "1,-1,2,1\n", "submitted at -1 s"),
        ("1,0,9,1\n", "1,1,inf,1\n", "not a number"),
        ("1,0,9,1\n", "1,1,2,1.5\n", "must be a whole number"),
        ("1,0,9,1\n", "1,1,1e300,1\n", "durations must be above 0"),
    ],
)
def test_numbers_that_nobody_could_mean_are_refused(
    tmp_path: Path, sessions: str, tasks: str, says: str
) -> None:
    path = write(
        tmp_path,
        "session,start_s,end_s,gpus\n" + sessions,
        "session,submit_s,duration_s,gpus\n" + tasks,
    )
    with pytest.raises(InvalidRequest, match=says):
        read_csv(path)


@pytest.mark.parametrize("content", [b"session\n\xff\n", b"session\n" + b"x" * 140_000 + b"\n"])
def test_what_is_no_csv_is_refused(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path, "session,start_s,end_s,gpus\n1,0,9,1\n", "")
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match="not a CSV file in UTF-8"):
        read_csv(path)


def test_csv_from_a_spreadsheet_begins_with_a_mark(tmp_path: Path) -> None:
    path = write(
        tmp_path, "\ufeffsession,start_s,end_s,gpus\n1,0,9,1\n", "\ufeffsession,submit_s\n"
    )
    assert read_csv(path).sessions[0].session == "1"


def test_a_missing_csv_says_what_belongs_together(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="side by side"):
        read_csv(tmp_path / "none_sessions.csv")


def test_a_cell_that_takes_no_time_is_refused() -> None:
    session = PlannedSession("a", 0.0, 9.0, 1, (PlannedCell(0.0, 0.0, 1),))
    with pytest.raises(InvalidRequest, match="above 0"):
        check_workload(Workload("w", 9.0, (session,)))


def test_the_newer_dialect_of_templates() -> None:
    found = read_template(DATA / "newer_dialect.json")
    early, late = found.sessions
    assert (early.session, early.start_s, early.end_s) == ("early", 60.0, 600.0)
    assert [cell.submit_s for cell in early.cells] == [120.0, 360.0]
    assert early.cells[0].think_after_s == 180.0
    # The list of utilizations counts, not the key `gpus`.
    assert late.gpus == late.cells[0].gpus == 2
    assert (late.cpus, late.memory_bytes) == (4.0, 2_000_000_000)
    store = read_store(DATA / "newer_dialect.json")
    assert store is not None
    assert store.upload_rate == 125e6


def test_the_store_of_a_template_takes_the_place_of_ours() -> None:
    store = RemoteStorage("S3", 2.5e9, 1.25e9, 4.0, 5.0, 1.0, 2.0)
    found = with_store(Delays(), store)
    rates = (found.store_download_bytes_per_s, found.store_upload_bytes_per_s)
    assert rates == (2.5e9, 1.25e9)
    assert found.store_rate_spread == 0.05
    assert with_store_failures(Faults(), store).store_failure_share == 0.02
    assert with_store(Delays(), RemoteStorage("says nothing")) == Delays()


@pytest.mark.parametrize(
    "store",
    [
        RemoteStorage("S3", -1.0),
        RemoteStorage("S3", download_rate_variance_percentage=100.0),
        RemoteStorage("S3", upload_rate_variance_percentage=-1.0),
    ],
)
def test_rates_that_cannot_be_are_refused(store: RemoteStorage) -> None:
    with pytest.raises(InvalidRequest, match="the template's store 'S3'"):
        with_store(Delays(), store)


@pytest.mark.parametrize(
    "store",
    [
        RemoteStorage("S3", write_failure_chance_percentage=100.0),
        RemoteStorage("S3", read_failure_chance_percentage=-1.0),
    ],
)
def test_a_store_that_never_works_is_refused(store: RemoteStorage) -> None:
    with pytest.raises(InvalidRequest, match="the template's store 'S3'"):
        with_store_failures(Faults(), store)


def test_the_older_dialect_of_templates() -> None:
    (session,) = read_template(DATA / "older_dialect.json").sessions
    assert session.gpus == session.cells[0].gpus == 4
    assert (session.cpus, session.memory_bytes) == (1.5, 300_000_000)
    store = read_store(DATA / "older_dialect.json")
    assert store is not None
    assert store.name == "disk"


def test_templates_from_traces_are_in_cores_and_gigabytes() -> None:
    (session,) = read_template(DATA / "from_trace.json").sessions
    assert (session.cpus, session.memory_bytes) == (69.0, 477_000_000_000)
    assert session.gpus == 8
    assert session.cells[0].gpus == 1


def test_small_whole_numbers_of_a_template_made_by_hand_are_millicpus(tmp_path: Path) -> None:
    path = tmp_path / "by_hand.json"
    path.write_text(
        '{"sessions": [{"id": "s", "start_tick": 1, "stop_tick": 12, "trainings": '
        '[{"start_tick": 2, "duration_in_ticks": 2, "cpus": 100, "memory": 250, '
        '"gpu_utilizations": [{}]}]}]}'
    )
    (session,) = read_template(path).sessions
    assert (session.cpus, session.memory_bytes) == (0.1, 250_000_000)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not a workload template"),
        ('{"sessions": []}', "no sessions"),
        (
            (
                '{"sessions": [{"id": "s", "start_tick": 0, "stop_tick": 1, "trainings": '
                '[{"start_tick": 0, "duration_in_ticks": 0}]}]}'
            ),
            "lasts 0.0 ticks",
        ),
    ],
)
def test_a_bad_template_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=says):
        read_template(path)
