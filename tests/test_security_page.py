"""docs/security.md: each threat has tests that exist, or says that it has none."""

from __future__ import annotations

import re
from pathlib import Path

from test_failure_modes import missing

PAGE = Path(__file__).resolve().parent.parent / "docs" / "security.md"


def test_each_threat_has_tests_that_exist_or_says_so() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    threats = [row for row in rows if row[0] != "threat" and set(row[0]) != {"-"}]
    assert len(threats) > 20
    for row in threats:
        assert len(row) == 3, row
        named = re.findall(r"`(tests/[\w/.:]+)`", row[2])
        assert named or "*no test of our own*" in row[2], row
        assert [name for name in named if missing(name)] == [], row
