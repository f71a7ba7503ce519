"""Commands write their tables into the page, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate import page
from gate.__main__ import COMMAND, HEAD, merged
from gate.mutants import __main__ as mutants
from gate.mutants.faults import Fault

PAGE = f"before\n<!-- begin: {COMMAND} -->\nold\n<!-- end: {COMMAND} -->\nafter\n"


def test_only_what_is_between_the_marks_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(PAGE, encoding="utf-8")
    page.write(COMMAND, "new", path)
    assert page.read(COMMAND, path).strip() == "new"
    assert path.read_text(encoding="utf-8") == PAGE.replace("old\n", "\nnew\n")


def test_a_page_without_the_marks_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("nothing", encoding="utf-8")
    with pytest.raises(ValueError, match="no single place"):
        page.write(COMMAND, "new", path)
    assert path.read_text(encoding="utf-8") == "nothing"


def test_rows_that_were_searched_again_take_the_place_of_older_ones() -> None:
    older = f"{HEAD}| elections | old |\n| one member | kept |\n| gone | scope |\n"
    table = merged(older, {"elections": "| elections | new |", "reads": "| reads | first |"})
    assert table == f"{HEAD}| one member | kept |\n| elections | new |\n| reads | first |"


def test_a_fault_that_was_judged_again_has_its_newest_verdict() -> None:
    faults = [Fault(name, "f.py", "Rule.", (), blind=name == "b") for name in "abc"]
    older = "| a | Rule. | **nobody** | no | 9 |\n| c | Rule. | search: t | no | 1 |\n"
    table = mutants.merged(older, [mutants.Verdict(faults[1], "", "", 2.0)], faults)
    assert table.splitlines()[0].startswith("3 faults, 1 of them by somebody")
    assert table.splitlines()[0].endswith("1 caught, 2 survived.")
    assert [line[2] for line in table.splitlines()[4:]] == ["c", "a", "b"]
    table = mutants.merged(table, [mutants.Verdict(faults[0], "search", "t", 2.0)], faults)
    assert [line[2] for line in table.splitlines()[4:]] == ["a", "c", "b"]
