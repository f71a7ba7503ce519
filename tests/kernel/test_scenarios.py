"""The executor changes with every cell, and no cell can tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from namespace_pairs import Replicas

FILE = Path(__file__).parents[1] / "testdata" / "namespace" / "scenarios.txt"


def read_scenarios(file: Path) -> dict[str, list[str]]:
    """The cells of each scenario of a file."""
    scenarios = {}
    for part in file.read_text().split("\n=== ")[1:]:
        name, _, cells = part.partition("\n")
        scenarios[name] = [cell.strip("\n") for cell in cells.split("\n----\n")]
    return scenarios


SCENARIOS = read_scenarios(FILE)
KINDS = read_scenarios(FILE.with_name("kinds.txt"))


def run_on_changing_executors(cells: list[str], replicas: Callable[..., Replicas]) -> None:
    """Run the cells in one process, and with the executor changing; compare what they print."""
    plain = replicas(1).handles[0]
    expected = ["".join(plain.run(cell)) for cell in cells]
    group = replicas(2)
    seen = [group.cell(cell, on=number % 2) for number, cell in enumerate(cells)]
    assert seen == expected
    assert group.problems == []
    assert group.handles[0].held() == []
    # Looking again finds nothing new, on either side.
    for on in (0, 1):
        group.sync(on)
        assert group.sent == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_ways_to_change_the_namespace(name, replicas):
    run_on_changing_executors(SCENARIOS[name], replicas)


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_objects(name, replicas):
    run_on_changing_executors(KINDS[name], replicas)
