"""Random programs, split over three replicas, leave the object graph that one process has."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import hypothesis
from hypothesis import strategies as st
from namespace_graph import describe

from notebookos_ext.kernel.synchronizer import Synchronizer, SyncOptions

NAMES = ("a", "b", "c", "d", "e", "f")
REPLICAS = 3
SETUP = """
import enum, weakref, numpy as np, torch
class Node:
    made = 0
    def __init__(self, *items): self.items = list(items); Node.made += 1
class Slotted:
    __slots__ = ('left', 'right', '__weakref__')
    def __init__(self, left): self.left = left
class Side(enum.Enum):
    LEFT = 1
    ALSO = 1
    def __init__(self, n): self.double = 2 * n
def counter(kept):
    n = 0
    def up(step=[1]):
        nonlocal n
        n += step[0]
        return kept
    def look(): return n, kept
    return up, look
def inside(x):
    if isinstance(x, (list, tuple)): return list(x)
    if isinstance(x, dict): return list(x.values())
    if isinstance(x, Node): return x.items
    if isinstance(x, Slotted): return [x.left, getattr(x, 'right', None)]
    return [x]
def grow(x, y):
    if isinstance(x, Node): x = x.items
    if isinstance(x, list): x.append(y)
    elif isinstance(x, dict): x[len(x)] = y
    elif isinstance(x, Slotted): x.right = y
    elif isinstance(x, (np.ndarray, torch.Tensor)): x[:1] += 1
    elif isinstance(x, tuple) and callable(x[0]): x[0]()
    elif callable(x): x.note = y
a, b, c, d, e, f = [], {}, Node(), counter([]), np.arange(6.0), torch.zeros(5)
"""

name = st.sampled_from(NAMES)
number = st.integers(0, 3)


def one(template: str, *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    return st.builds(template.format, *parts)


cells = st.one_of(
    one("{0} = {1}", name, name),
    one("del {0}", name),
    one("{0} = [{1}, {2}, {1}]", name, name, number),
    one("{0} = {{'k': {1}, 'n': {2}}}", name, name, number),
    one("{0} = ({1}, {2})", name, name, name),
    one("{0} = Node({1}, {2})", name, name, name),
    one("{0} = Slotted({1})", name, name),
    one("{0} = counter({1})", name, name),
    one("{0} = np.arange({1} + 3.0)", name, number),
    one("{0} = torch.arange({1} + 3.0)", name, number),
    one("{0} = {1}[1:]", name, name),
    one("{0} = {1}.numpy()", name, name),
    one("{0} = torch.from_numpy({1})", name, name),
    one("{0} = weakref.ref({1})", name, name),
    one("{0} = {1}.items.append", name, name),
    one("{0} = Side.ALSO, Side['ALSO'].double", name),
    one("{0} = inside({1})[-1]", name, name),
    one("grow({0}, {1})", name, name),
    one("grow(inside({0})[0], {1})", name, name),
    one("Node.made += {0}; Node.last = {1}", number, name),
    one("class Node(Node):\n    step = {0}", number),
    one("def more(x, kept=[{1}]):\n    kept.append(x); return kept\n{0} = more({2})", *[name] * 3),
    one("{0} = type({1})", name, name),
)


class Process:
    """One process: a namespace, and a synchronizer where there are others."""

    def __init__(self, store: dict[str, bytes] | None = None) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
        self._initial = dict(self.names)
        self.synchronizer = None
        if store is not None:
            self.synchronizer = Synchronizer(
                SimpleNamespace(user_ns=self.names),
                options=SyncOptions(inline_bytes=200, block_bytes=16, early_bytes=1_000_000),
                put_chunk=store.__setitem__,
                fetch_chunks=lambda digests: map(store.__getitem__, digests),
            )

    def run(self, code: str) -> str:
        try:
            exec(code, self.names)
        except Exception as error:  # noqa: BLE001 - compared with what the others raise
            return type(error).__name__
        return ""

    def graph(self) -> dict[str, str]:
        return describe(self.names, self._initial, set())


def run_split(steps: list[tuple[str, int]]) -> None:
    """Run the cells on one process and on the replicas; compare after every one."""
    plain, store = Process(), {}
    replicas = [Process(store) for _ in range(REPLICAS)]
    for place, (code, on) in enumerate([(SETUP, 0), *steps]):
        executor = replicas[on]
        assert executor.run(code) == plain.run(code), (place, code)
        collected = executor.synchronizer.collect()
        for each in replicas:
            if collected is not None and each is not executor:
                assert each.synchronizer.apply(collected.delta) == (), (place, code)
        wanted = plain.graph()
        for each in replicas:
            assert each.graph() == wanted, (place, code)


@hypothesis.given(st.lists(st.tuples(cells, st.integers(0, REPLICAS - 1)), max_size=15))
@hypothesis.settings(
    suppress_health_check=[hypothesis.HealthCheck.too_slow], max_examples=40, deadline=None
)
def test_random_programs_split_over_replicas_leave_one_graph(steps) -> None:
    run_split(steps)


def test_what_is_compared_tells_programs_apart() -> None:
    one, other = Process(), Process()
    assert {one.run(SETUP), other.run(SETUP)} == {""}
    assert one.graph() == other.graph()
    one.run("b['k'] = a")
    other.run("b['k'] = list(a)")
    assert one.graph() != other.graph()
    assert "torch" in sys.modules
