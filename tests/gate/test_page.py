"""Commands write their tables into the page, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate import page
from gate.__main__ import COMMAND, HEAD, merged

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
