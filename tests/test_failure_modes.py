"""docs/failure-modes.md: each row has tests that exist, or says that it has none."""

from __future__ import annotations

import re
from pathlib import Path

from chaos.faults import FAULTS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "failure-modes.md"
SHOWN_BY = 3
"""The column of the tests."""


def rows() -> list[list[str]]:
    """The cells of each row of the tables with six columns."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    found = [[c.strip() for c in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    return [row for row in found if len(row) == 6 and row[0] != "part" and set(row[0]) != {"-"}]


def missing(name: str) -> bool:
    """Whether there is no such file or no such test in it."""
    path, _, test = name.partition("::")
    file = ROOT / path
    return not file.is_file() or (bool(test) and f"def {test}(" not in file.read_text("utf-8"))


def test_each_row_has_tests_that_exist_or_says_not_tried() -> None:
    assert len(rows()) > 30
    for row in rows():
        named = re.findall(r"`(tests/[\w/.:]+)`", row[SHOWN_BY])
        assert named or "*not tried*" in row[SHOWN_BY], row
        assert [name for name in named if missing(name)] == [], row


def test_each_fault_that_is_injected_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## Measured")[2]
    assert [fault for fault in FAULTS if f"| {fault} |" not in text] == []
