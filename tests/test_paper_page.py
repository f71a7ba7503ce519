"""docs/paper.md names modules and tests; each must exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "paper.md"
FOLDERS = ("cluster", "storage", "kernel", "agent", "live", "simulation", "handlers")


def named() -> list[str]:
    """Paths in backticks, relative to the repository."""
    found = []
    for name in re.findall(r"`([\w./]+)`", PAGE.read_text(encoding="utf-8")):
        if name.startswith(("tests/", "src/")):
            found.append(name)
        elif "/" in name and name.split("/")[0] in FOLDERS:
            found.append(f"notebookos_ext/{name}")
    return found


def test_what_the_page_names_exists() -> None:
    paths = named()
    assert len(paths) > 80
    assert [path for path in paths if not (ROOT / path).exists()] == []
