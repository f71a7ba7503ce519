"""The executor changes with every cell, and no cell can tell; what cannot travel says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from namespace_cases import Case, read_cases
from namespace_pairs import Replicas, Template

CASES = read_cases()
REPLICAS = 3


@pytest.fixture(scope="session")
def bare() -> Iterator[Template]:
    """Forks replicas that have loaded nothing but what a replica needs."""
    made = Template(())
    yield made
    made.close()


@pytest.fixture
def group_of(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[Case, int], Replicas]]:
    made: list[Replicas] = []

    def make(case: Case, count: int) -> Replicas:
        template = request.getfixturevalue("template" if case.uses_libraries else "bare")
        folder = tmp_path / str(len(made))
        folder.mkdir()
        group = Replicas([template.fork(tmp_path, {}) for _ in range(count)])
        made.append(group)
        for each in group.handles:
            each.enter(str(folder))
        return group

    yield make
    for each in made:
        each.close()


def parameters() -> Iterator[object]:
    for case in CASES:
        marks = [pytest.mark.xfail(reason=case.broken)] if case.broken else []
        marks += [
            pytest.mark.skip(reason=f"{each} is not installed")
            for each in case.needs
            if find_spec(each) is None
        ]
        yield pytest.param(case, marks=marks, id=f"{case.topic}-{case.name.replace(' ', '-')}")


@pytest.mark.parametrize("case", list(parameters()))
def test_no_cell_can_tell_where_it_runs(
    case: Case, group_of: Callable[[Case, int], Replicas]
) -> None:
    plain, group = group_of(case, 1).handles[0], group_of(case, REPLICAS)
    executor, held = -1, []
    seen, expected, met = [], [], {}
    for cell in case.cells:
        expected.append("".join(plain.run(cell)))
        # A held kernel stays where it is.
        executor = executor if held else (executor + 1) % REPLICAS
        seen.append(group.cell(cell, on=executor))
        held = group.handles[executor].held()
        met |= dict.fromkeys(held)
    assert sorted(met) == sorted((each.name, each.type_name, each.reason) for each in case.holds)
    assert group.problems == []
    assert {each.notice for each in case.holds} <= set(group.notes)
    if case.differs:
        assert seen[-1] == case.shows != expected[-1]
        return
    assert seen == expected
    # Looking again finds nothing new, on any side.
    for on in (executor,) if held else range(REPLICAS):
        group.sync(on)
        assert group.sent == []
    names = {name.partition(".")[0] for name, _, _ in held}
    check_graphs(case, plain, group, executor, names)
    if held:
        check_release(group, executor, names)


def check_graphs(case: Case, plain, group: Replicas, executor: int, held: set[str]) -> None:
    """What the names lead to is the same everywhere; standbys have what the executor let go."""
    assert group.handles[executor].graph(case.apart) == plain.graph(case.apart)
    wanted = plain.graph(case.apart | held)
    for number, each in enumerate(group.handles):
        if number != executor:
            assert each.graph(case.apart | held) == wanted
            assert all("Tombstone" in each.graph(set())[name] for name in held - case.apart)


def check_release(group: Replicas, executor: int, held: set[str]) -> None:
    """Without those names the kernel is free."""
    group.cell(f"del {', '.join(sorted(held))}", on=executor)
    assert group.handles[executor].held() == []
    after = (executor + 1) % REPLICAS
    look = f"print([name for name in {sorted(held)} if name in globals()])"
    assert group.cell(look, on=after) == "[]\n"
    assert group.problems == []
