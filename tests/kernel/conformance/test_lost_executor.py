"""The executor dies between the end of its cell and the commit: whole versions, old or new."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from namespace_pairs import Replicas

from notebookos_ext.cluster.entries import Delta

BEFORE = "import numpy as np; big = np.zeros(200_000); view = big[:3]; small = [1]; same = small"
CELL = "big += 1; small.append(2); extra = 'x'; del same"
LOOK = "print(small, 'same' in globals(), 'extra' in globals(), big.sum(), view.base is big)"
OLD = "[1] True False 0.0 True\n"
NEW = "[1, 2] False True 200000.0 True\n"
EARLY = "[1, 2] False True 0.0 True\n"
"""What is small is there; what is large has its last committed value, with its views."""


def end_at(step: str, group: Replicas) -> tuple[str, ...]:
    """Run the cell on the first replica, which ends at that step; returns what it named pending."""
    executor, others = group.handles[0], group.handles[1:]
    executor.run(CELL)
    pending: tuple[str, ...] = ()
    if step != "before it looked":
        # Chunks are put while it looks; what it keeps is shipped after the reply.
        delta, _, _ = executor.collect_and_change("")
        pending = msgspec.msgpack.decode(delta, type=Delta).pending
        if step != "before the commit":
            for each in others:
                assert each.apply(delta) == ()
        if step == "after all":
            late = executor.ship_kept()
            for each in others:
                assert each.apply(late) == ()
    executor.close()
    return pending


@pytest.mark.parametrize(
    ("step", "seen"),
    [
        ("before it looked", OLD),
        ("before the commit", OLD),
        ("before the late part", EARLY),
        ("after all", NEW),
    ],
)
def test_what_is_left_is_one_version_and_the_kernel_goes_on(
    replicas: Callable[..., Replicas], step: str, seen: str
) -> None:
    group = replicas(3, early_bytes=100_000)
    group.cell(BEFORE)
    pending = end_at(step, group)
    assert pending == (() if step == "before it looked" else ("big", "view"))
    rest = Replicas(group.handles[1:])
    assert rest.cell(LOOK, on=0) == seen
    assert rest.cell(LOOK, on=1) == seen
    # The next cells go on from there, wherever they run.
    rest.cell("view[0] = 7; small.append('next')", on=0)
    assert rest.cell("print(big[0], small[-1], view.base is big)", on=1) == "7.0 next True\n"
    assert rest.problems == []
