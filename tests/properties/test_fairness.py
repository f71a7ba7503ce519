"""Users who want more than there is: each gets its share, and nobody is passed without end."""

from __future__ import annotations

from collections import Counter

from builders import Cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from notebookos_ext.cluster import actions as a
from notebookos_ext.cluster.options import Options
from notebookos_ext.cluster.queueing import BYPASS_LIMIT, OUTRANK_LIMIT


def compete(
    kernels: dict[str, tuple[str, int, int]], rounds: int, options: Options | None = None
) -> tuple[Counter[str], int]:
    """Kernels, each of a user with a cell size and priority, that always have a cell waiting.

    Returns the GPUs that each kernel was given, and the most that a waiting cell was overtaken.
    """
    cluster = Cluster(hosts=1, gpus=4, options=options)
    given_to: Counter[str] = Counter()
    running: list[a.StartAttempt] = []
    passed = 0

    def take(actions: list[a.Action]) -> None:
        for action in actions:
            if isinstance(action, a.StartAttempt):
                cluster.started(action.cell, kernel=action.kernel)
                given_to[action.kernel] += len(action.devices)
                running.append(action)

    for kernel, (user, _, priority) in kernels.items():
        cluster.start_all(cluster.request(kernel, 1, user=user, priority=priority))
    for kernel, (_, gpus, _) in kernels.items():
        take(cluster.submit(f"{kernel}-0", gpus, kernel=kernel))
    for number in range(1, rounds + 1):
        done = running.pop(0)
        take(cluster.closed(done.cell, kernel=done.kernel))
        take(cluster.submit(f"{done.kernel}-{number}", kernels[done.kernel][1], kernel=done.kernel))
        cluster.now += 2.0
        take(cluster.released(done.cell, kernel=done.kernel, attempt=done.attempt))
        take(cluster.tick(2.0))
        for waiting in cluster.scheduler.view.waiting:
            passed = max(passed, waiting.bypassed + waiting.outranked)
    return given_to, passed


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(min_value=1, max_value=4), min_size=5, max_size=8))
def test_nobody_is_passed_without_end(sizes: list[int]) -> None:
    kernels = {f"k{n}": (f"user-{n}", gpus, 0) for n, gpus in enumerate(sizes)}
    given_to, passed = compete(kernels, rounds=150)
    assert set(given_to) == set(kernels)
    # Overtakings are counted until it is protected; those that are protected too pass no more.
    assert passed <= BYPASS_LIMIT + OUTRANK_LIMIT + len(kernels)


def test_a_user_with_many_kernels_gets_no_more_than_one_with_few() -> None:
    kernels = {f"a{n}": ("ann", 1, 0) for n in range(9)}
    kernels |= {f"b{n}": ("bob", 1, 0) for n in range(3)}
    given_to, _ = compete(kernels, rounds=300)
    ann = sum(gpus for kernel, gpus in given_to.items() if kernel.startswith("a"))
    bob = sum(gpus for kernel, gpus in given_to.items() if kernel.startswith("b"))
    assert 0.7 < ann / bob < 1.5, (ann, bob)


def test_the_cells_of_a_user_of_higher_priority_come_first() -> None:
    kernels = {f"h{n}": ("boss", 1, 0) for n in range(6)} | {"low": ("clerk", 1, 0)}
    given_to, _ = compete(kernels, rounds=400, options=Options(priorities={"boss": 5}))
    assert 2 <= given_to["low"] < given_to["h0"]


def test_priority_comes_first_but_does_not_starve_the_others() -> None:
    kernels = {f"h{n}": ("boss", 1, 5) for n in range(6)} | {"low": ("clerk", 1, 0)}
    given_to, _ = compete(kernels, rounds=400)
    assert given_to["low"] >= 2, "after so many overtakings by rights its turn comes"
    assert given_to["low"] < given_to["h0"]
