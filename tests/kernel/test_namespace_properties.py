"""Random cells on changing executors leave what the same cells leave in one plain namespace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import hypothesis
from hypothesis import strategies as st

from notebookos_ext.cluster.folding import FoldedDelta, fold
from notebookos_ext.kernel.synchronizer import Synchronizer, SyncOptions

NAMES = ("a", "b", "c", "d", "e")

SETUP = """
class Node:
    made = 0
    def __init__(self, *items): self.items = list(items); Node.made += 1
    def add(self, item): self.items.append(item); return self
def counter():
    n = 0
    def up():
        nonlocal n
        n += 1
        return n
    def get(): return n
    return up, get
def put(target, value):
    target = getattr(target, 'items', target)
    if isinstance(target, list): target.append(value)
    elif isinstance(target, dict): target[len(target)] = value
    elif isinstance(target, tuple) and callable(target[0]): target[0]()
def parts(value):
    value = getattr(value, 'items', value)
    if isinstance(value, dict): return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else []
import numpy as np
a, b, c, d, e = [], {}, Node(), counter(), np.arange(4)
"""

name = st.sampled_from(NAMES)
number = st.integers(0, 3)
cells = st.one_of(
    st.builds("{} = {}".format, name, name),
    st.builds("{} = [{}, {}]".format, name, name, number),
    st.builds("{} = {{'k': {}}}".format, name, name),
    st.builds("{} = Node({}, {})".format, name, name, name),
    st.builds("{} = counter()".format, name),
    st.builds("{} = np.arange({} + 2)".format, name, number),
    st.builds("{} = {}[1:] if isinstance({}, np.ndarray) else 'x'".format, name, name, name),
    st.builds("put({}, {})".format, name, name),
    st.builds("put({}, {})".format, name, number),
    st.builds("if isinstance({0}, np.ndarray): {0} += {1}".format, name, number),
    st.builds("p = parts({})\nif p: {} = p[-1]".format, name, name),
    st.builds("p = parts({})\nif p: put(p[0], {})".format, name, name),
    st.builds("Node.made += {}".format, number),
    st.builds(
        "def extra(x, kept=[{}]):\n    kept.append(x); return kept\n{} = extra({})".format,
        name,
        name,
        number,
    ),
    st.builds("class Node(Node):\n    step = {}".format, number),
    st.builds(
        "Node.add = lambda self, item, more={}: self.items.extend([item, more])".format, number
    ),
    st.builds("if isinstance({0}, Node): {0}.add({1})".format, name, name),
    st.just("globals().pop('p', None)"),
)

# A walk that tells values, types and who is who; numbers objects as it meets them.
LOOK = """
def _look(value, seen, depth=0):
    if isinstance(value, (int, str, float, type(None))): return value
    if id(value) in seen: return ('seen', seen[id(value)])
    if depth > 30: return 'deep'
    seen[id(value)] = len(seen)
    kind = type(value).__name__
    if isinstance(value, list): return [kind] + [_look(v, seen, depth + 1) for v in value]
    if isinstance(value, tuple): return (kind, *(_look(v, seen, depth + 1) for v in value))
    if isinstance(value, dict): return {k: _look(v, seen, depth + 1) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        base = None if value.base is None else _look(value.base, seen, depth + 1)
        return (kind, value.tolist(), base)
    if isinstance(value, type): return (value.__name__, value.made, value.__mro__[1].__name__)
    if callable(value):
        cells = [_look(c.cell_contents, seen, depth + 1) for c in value.__closure__ or ()]
        return (value.__name__, _look(value.__defaults__, seen, depth + 1), cells)
    return (kind, type(value) is Node, type(value).made, _look(value.items, seen, depth + 1))
"""


class Plain:
    """A namespace without a shell."""

    def __init__(self, store: dict[str, bytes] | None = None) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
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
            return f"{type(error).__name__}: {error}"
        return ""

    def look(self) -> str:
        around = dict(self.names)
        exec(LOOK, around)
        seen: dict[int, int] = {}
        return repr([around["_look"](around.get(name), seen) for name in (*NAMES, "Node", "extra")])


@hypothesis.given(
    st.lists(st.tuples(cells, st.integers(0, 2)), min_size=1, max_size=25), st.booleans()
)
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.too_slow])
def test_swapping_the_executor_changes_nothing(steps, use_three):
    plain = Plain()
    store: dict[str, bytes] = {}
    replicas = [Plain(store) for _ in range(3 if use_three else 2)]
    for number, (code, on) in enumerate([(SETUP, 0), *steps]):
        executor = replicas[on % len(replicas)]
        assert executor.run(code) == plain.run(code), (number, code)
        collected = executor.synchronizer.collect()
        if collected is not None:
            for other in replicas:
                if other is not executor:
                    assert other.synchronizer.apply(collected.delta) == ()
        expected = plain.look()
        for each in replicas:
            assert each.look() == expected, (number, code)


@hypothesis.given(
    st.lists(st.tuples(cells, st.booleans()), min_size=1, max_size=25), st.integers(0, 25)
)
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.too_slow])
def test_a_replica_that_begins_with_a_folded_log_has_the_same(steps, begins_at):
    plain = Plain()
    store: dict[str, bytes] = {}
    executor, late = Plain(store), None
    log: tuple[FoldedDelta, ...] = ()
    for number, (code, fold_now) in enumerate([(SETUP, False), *steps], start=1):
        assert executor.run(code) == plain.run(code), (number, code)
        collected = executor.synchronizer.collect()
        if collected is not None:
            log = (*log, FoldedDelta(number, collected.delta))
            if late is not None:
                assert late.synchronizer.apply(collected.delta) == ()
        if fold_now:
            log = fold(log)
        if number == min(begins_at, len(steps)):
            late = Plain(store)
            for folded in fold(log):
                assert late.synchronizer.apply(folded.delta) == ()
        if late is not None:
            assert late.look() == plain.look(), (number, code)


def test_what_the_property_compares_sees_a_difference():
    one, other = Plain(), Plain()
    for each in (one, other):
        each.run(SETUP)
    assert one.look() == other.look()
    one.run("b['k'] = a")
    other.run("b['k'] = list(a)")
    assert one.look() != other.look()
