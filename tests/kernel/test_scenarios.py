"""The executor changes with every cell, and no cell can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "testdata" / "namespace" / "scenarios.txt"


def read_scenarios() -> dict[str, list[str]]:
    """The cells of each scenario of the file."""
    scenarios = {}
    for part in FILE.read_text().split("\n=== ")[1:]:
        name, _, cells = part.partition("\n")
        scenarios[name] = [cell.strip("\n") for cell in cells.split("\n----\n")]
    return scenarios


SCENARIOS = read_scenarios()


@pytest.mark.parametrize("name", SCENARIOS)
def test_executor_changes_with_every_cell(name, replicas):
    cells = SCENARIOS[name]
    plain = replicas(1).handles[0]
    expected = ["".join(plain.run(cell)) for cell in cells]
    group = replicas(2)
    seen = [group.cell(cell, on=number % 2) for number, cell in enumerate(cells)]
    assert seen == expected
    assert group.problems == []
    # Looking again finds nothing new, on either side.
    group.sync((len(cells) - 1) % 2)
    assert group.sent == []
    group.sync(len(cells) % 2)
    assert group.sent == []
