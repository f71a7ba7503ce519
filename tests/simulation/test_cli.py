"""`python -m notebookos_ext.simulation` as people type it."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec
import pytest

from notebookos_ext.simulation.__main__ import main
from notebookos_ext.simulation.csv_form import write_csv
from notebookos_ext.simulation.plans import Plan, changed_options, usual_options
from notebookos_ext.simulation.soak import small_workload

DATA = Path(__file__).parent.parent / "testdata" / "simulation"


def test_run_reports_writes_and_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    write_csv(small_workload(5), tmp_path)
    out = tmp_path / "out"
    words = ["run", str(tmp_path / "soak-5_sessions.csv"), "--hosts", "3:4", "--gpus-per-host", "4"]
    journal = tmp_path / "run.journal"
    assert main([*words, "--out", str(out), "--plots", "svg", "--journal", str(journal)]) == 0
    printed = capsys.readouterr().out
    assert "share of the possible saving" in printed
    assert "provider pays" in printed
    with (out / "figures.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["run"] == "replicated"
    assert float(row["cells_unfinished"]) == 0
    names = {path.name for path in out.iterdir()}
    assert names == {
        "cells-replicated.csv",
        "completions.svg",
        "figures.csv",
        "provisioned.svg",
        "report.md",
        "subscription.svg",
        "waits.svg",
    }
    assert main(["replay", str(journal), "--check", "--to-csv", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "run_tasks.csv").is_file()


def test_a_template_runs(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(DATA / "newer_dialect.json")
    assert main(["compare", path, "--policies", "replicated", "--hosts", "3:3"]) == 0
    assert "2 sessions, 3 cells" in capsys.readouterr().out


def test_options_are_replaced_one_by_one() -> None:
    usual = usual_options(Plan())
    changed = changed_options(
        usual, '{"idle_s": 60, "autoscaler": {"keep_s": 30}, "prewarm": null}'
    )
    assert changed.idle_s == 60
    assert changed.prewarm is None
    assert changed.autoscaler is not None
    assert usual.autoscaler is not None
    assert changed.autoscaler == msgspec.structs.replace(usual.autoscaler, keep_s=30)


def test_a_profile_is_written_as_csv(tmp_path: Path) -> None:
    assert main(["generate", "idlt17h5", "--seed", "4", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "idlt17h5-4_sessions.csv").is_file()


def test_soak_lives_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "17"]) == 0
    assert "no rule broken" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "nowhere"], "there is no workload 'nowhere'"),
        (["run", "nowhere.csv"], "side by side"),
        (["run", "idlt17h5", "--hosts", "few"], "MIN:MAX"),
        (["run", "idlt17h5", "--hosts", "9:3"], "9 to 3 hosts"),
        (["run", "idlt17h5", "--gpus-per-host", "4"], "use larger hosts"),
        (["run", "idlt17h5", "--faults", "{}}"], "gives no faults"),
        (["run", "idlt17h5", "--faults", '{"store_slow_share": -1}'], "must be 0 or more"),
        (["run", "idlt17h5", "--prices", "[]"], "gives no prices"),
        (["run", "idlt17h5", "--plots", "png"], "add --out"),
        (["run", "idlt17h5", "--options", '{"autoscale": 1}'], "there is no option autoscale"),
        (
            ["run", "idlt17h5", "--options", '{"autoscaler": {"keep": 1}}'],
            "there is no option autoscaler.keep",
        ),
        (["run", "idlt17h5", "--options", '{"idle_s": "x"}'], "do not fit"),
        (["compare", "idlt17h5", "--policies", "best"], "there is no policy 'best'"),
        (["run", ""], "there is no workload ''"),
        (["run", "."], "there is no workload '.'"),
        (["run", "idlt17h5", "--hosts", "²:4"], "MIN:MAX"),
        (["run", "idlt17h5", "--hosts", "1:" + "9" * 5000], "MIN:MAX"),
        (["run", "idlt17h5", "--faults", '{"refusal_share": 1.5}'], "a share is at most 1"),
        (["soak", "x"], "write 17 or 0:2000"),
        (["soak", "²"], "write 17 or 0:2000"),
        (["soak", "5:2"], "there are no seeds in 5:2"),
        (["replay", "nowhere.journal"], "cannot read the journal"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    assert says in capsys.readouterr().err


def test_a_file_where_a_folder_should_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    assert main(["generate", "idlt17h5", "--out", str(taken)]) == 1
    assert f"cannot write {taken}: File exists" in capsys.readouterr().err


def test_an_empty_journal_is_nothing_to_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "empty.journal"
    path.write_bytes(b"")
    for command in ("replay", "run"):
        assert main([command, str(path)]) == 1
        assert "is empty" in capsys.readouterr().err


def test_delays_come_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "delays.json"
    path.write_text('{"host_boot_s": 0}')
    assert main(["run", "idlt17h5", "--delays", str(path)]) == 1
    assert "nothing takes no time" in capsys.readouterr().err
    path.write_text('{"host_boots": 1}')
    assert main(["run", "idlt17h5", "--delays", str(path)]) == 1
    assert "does not give delays" in capsys.readouterr().err
