"""docs/consensus.md names a test for every defect that was found elsewhere; each must exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "consensus.md").read_text(encoding="utf-8")
DEFECTS = {
    *(f"S{number}" for number in range(1, 23)),
    *(f"L{number}" for number in range(1, 9)),
    *(f"P{number}" for number in range(1, 8)),
    "figure 8",
}


def rows() -> list[tuple[set[str], list[tuple[str, str]]]]:
    """Of the table of defects: their names, and the tests as file and function."""
    section = PAGE.split("## The defects as tests")[1].split("\n\n## ")[0]
    found = []
    for line in section.splitlines():
        if line.startswith("| ") and "`tests/" in line:
            names = {name.strip() for name in line.split("|")[1].split(",")}
            found.append((names, re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", line)))
    return found


def test_every_defect_has_a_test_that_exists() -> None:
    assert set[str]().union(*(names for names, _ in rows())) == DEFECTS
    for names, tests in rows():
        assert tests, names
        for file, function in tests:
            text = (ROOT / file).read_text(encoding="utf-8")
            assert re.search(rf"^def {function}\(", text, re.MULTILINE), f"{file}::{function}"


def test_what_the_page_names_exists() -> None:
    paths = set(re.findall(r"`((?:tests|scripts|docs)/[\w./]+)`", PAGE))
    assert len(paths) > 8
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
