"""Arrays, tensors and frames that share memory go on sharing it, whoever runs the next cell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import hypothesis
from hypothesis import strategies as st

from notebookos_ext.kernel.synchronizer import Synchronizer, SyncOptions

NAMES = ("t", "u", "n", "m", "w")
FRAMES = ("df", "s", "part")
SETUP = """
import numpy as np, torch, pandas as pd
t = torch.arange(6.0); u = t[2:]; n = t.numpy(); m = np.zeros(6)
w = torch.nn.Parameter(torch.ones(6))
df = pd.DataFrame({'a': [1.0, 2, 3, 4], 'b': [5.0, 6, 7, 8]}); s = df['a']; part = df[1:]
"""

name = st.sampled_from(NAMES)
frame = st.sampled_from(FRAMES)
place = st.integers(0, 2)
cells = st.one_of(
    st.builds("{} = {}".format, name, name),
    st.builds("x = {1}\n{0} = x.numpy() if type(x) is torch.Tensor else x".format, name, name),
    st.builds(
        "x = {1}\n{0} = torch.from_numpy(x) if type(x) is np.ndarray else x".format, name, name
    ),
    st.builds(
        "x = {1}\n{0} = x[1:] if len(x) > 3 and type(x) is not type(w) else x".format, name, name
    ),
    st.builds(
        "x = {1}\n{0} = x[::2] if len(x) > 3 and type(x) is np.ndarray else x".format, name, name
    ),
    st.builds("x = {1}\n{0} = x.data if isinstance(x, torch.Tensor) else x".format, name, name),
    st.builds("{} = torch.zeros(5)".format, name),
    st.builds("{} = np.ones(5)".format, name),
    st.builds("with torch.no_grad(): {}[{}] += 1".format, name, place),
    st.builds("with torch.no_grad(): {}[:2] = 7".format, name),
    st.just("w = torch.nn.Parameter(torch.ones(4)); (w * 2).sum().backward(); t = w.grad"),
    st.just(
        "o = torch.optim.SGD([w], lr=0.1, momentum=0.9); w.grad = torch.ones_like(w); o.step()"
    ),
    st.just("x = o = None"),
    st.builds("{} = {}".format, frame, frame),
    st.builds("{}.iloc[{}] = 9.0".format, frame, place),
    st.builds("{} = {}.iloc[:3]".format, frame, frame),
    st.builds("df = pd.DataFrame({{'a': [1.0] * 4, 'b': range({}, {} + 4)}})".format, place, place),
    st.just("s = df['b'] if isinstance(df, pd.DataFrame) else df"),
    st.just("df.index.name = 'i'; s = pd.Series(df.index)"),
)


class Plain:
    """A namespace without a shell, with a synchronizer if it has a store."""

    def __init__(self, store: dict[str, bytes] | None = None) -> None:
        self.names: dict[str, Any] = {
            "__name__": "__main__",
            "__builtins__": __builtins__,
            "o": None,
        }
        self.synchronizer = store is not None and Synchronizer(
            SimpleNamespace(user_ns=self.names),
            options=SyncOptions(inline_bytes=100, block_bytes=16, early_bytes=1_000_000),
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
        """Values and types, who shares memory with whom and at which distance, who is who."""
        values = [self.names[name] for name in NAMES]
        starts = [
            each.data_ptr() if hasattr(each, "data_ptr") else each.__array_interface__["data"][0]
            for each in values
        ]
        bytes_of = [
            getattr(each, "nbytes", 0) if each.__class__.__module__ == "numpy" else 8 * len(each)
            for each in values
        ]
        near = [
            (i, j, starts[i] - starts[j])
            for i in range(len(values))
            for j in range(i)
            if starts[i] < starts[j] + bytes_of[j] and starts[j] < starts[i] + bytes_of[i]
        ]
        same = [(i, j) for i in range(len(values)) for j in range(i) if values[i] is values[j]]
        shown = [
            (type(each).__name__, each.tolist(), getattr(each, "grad", None)) for each in values
        ]
        optimizer = self.names["o"]
        steps = optimizer and [group["params"][0].tolist() for group in optimizer.param_groups]
        frames = [(type(self.names[each]).__name__, self.names[each].to_dict()) for each in FRAMES]
        return repr((shown, near, same, frames, steps))


@hypothesis.given(st.lists(st.tuples(cells, st.booleans()), min_size=1, max_size=20))
@hypothesis.settings(
    suppress_health_check=[hypothesis.HealthCheck.too_slow], max_examples=60, deadline=None
)
def test_shared_memory_stays_shared(steps):
    plain = Plain()
    store: dict[str, bytes] = {}
    replicas = [Plain(store), Plain(store)]
    for number, (code, on) in enumerate([(SETUP, False), *steps]):
        executor, standby = replicas[on], replicas[not on]
        assert executor.run(code) == plain.run(code), (number, code)
        collected = executor.synchronizer.collect()
        if collected is not None:
            assert standby.synchronizer.apply(collected.delta) == ()
        assert executor.look() == plain.look(), (number, code)
        assert standby.look() == plain.look(), (number, code)
