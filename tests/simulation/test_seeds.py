"""2,000 short lives full of faults; a failing seed says what repeats it. More: `make sim-soak`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from notebookos_ext.cluster.gpus import GpuPool
from notebookos_ext.cluster.model import DeviceId
from notebookos_ext.cluster.policies import POLICIES
from notebookos_ext.errors import Defect
from notebookos_ext.simulation.soak import command, soak

SEEDS, AT_A_TIME = 2_000, 100


@pytest.mark.parametrize("first", range(0, SEEDS, AT_A_TIME))
def test_lives_full_of_faults(first: int) -> None:
    for seed in range(first, first + AT_A_TIME):
        run = soak(seed)
        assert not run.problems, command(seed)
        assert run.unfinished_cells == 0, command(seed)


def test_the_lives_are_eventful() -> None:
    """Each kind of fault happens, and cells end in every way: else the seeds prove nothing."""
    seen: dict[str, int] = {}
    for seed in range(200):
        for what, count in soak(seed).recorder.counts.items():
            seen[what] = seen.get(what, 0) + count
    for what in ("hosts lost", "replicas lost", "refused", "lost", "aborted", "done"):
        assert seen[what] > 10, seen


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_life_repeats_itself(policy: str) -> None:
    first, again = soak(3, policy), soak(3, policy)
    assert first.recorder.cells == again.recorder.cells
    assert first.events == again.events


def test_a_broken_rule_is_caught_and_says_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that forgets half of what is bound lets devices be bound twice."""
    mark = GpuPool._mark

    def forgetful(self: GpuPool, devices: Iterable[DeviceId], *, free: bool) -> None:
        for device in devices:
            mark(self, [device], free=free or device.endswith("1"))

    monkeypatch.setattr(GpuPool, "_mark", forgetful)

    def twenty_lives() -> None:
        for seed in range(20):
            soak(seed)

    with pytest.raises(Defect, match=r"python -m notebookos_ext.simulation soak \d+"):
        twenty_lives()
