"""Measure what keeping a namespace replicated costs, beside saving the whole session.

    python -m benchmarks.state [--only WORDS] [--repeats 5] [--large]

For each namespace and change: the time that looking for changes adds to a cell; the time until the
log entry and all chunks are on disk; the bytes that went there; the time a standby in a process of
its own takes to have it, and what it fetched. In the same run cloudpickle and dill write the whole
session to disk. Each case runs in processes of its own; figures are medians.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import msgspec
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from notebookos_ext.clock import SystemClock
from notebookos_ext.cluster.entries import Delta
from notebookos_ext.kernel.synchronizer import Synchronizer, SyncOptions
from notebookos_ext.storage.disk import DiskStore

WARM_UPS = 4
"""Cells before the first that counts: large buffers are watched from their third look on."""

MODEL = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(1500, 1500) for _ in range(20)])
optimizer = torch.optim.Adam(model.parameters())
data = torch.randn(8, 1500)
def step():
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
step()
"""
SMALL = "for n in range({}): globals()[f'v{{n}}'] = [n, str(n)] if n % 2 else n\ndel n"
FRAME = """
import numpy as np, pandas as pd
df = pd.DataFrame(np.random.default_rng(0).random((1_000_000, 8)), columns=list('abcdefgh'))
"""
ARRAY = "import numpy as np; a = np.random.default_rng(0).random({})"
ROWS = "rows = [{'n': n, 'text': str(n)} for n in range(200_000)]"


class Case(NamedTuple):
    """A namespace and what each cell does to it; `STEP` counts up."""

    setup: str
    change: str
    repeats: int = 0
    """At most so many; 0 for as many as asked for."""
    is_large: bool = False


CASES = {
    "50 names, unchanged": Case(SMALL.format(50), "pass"),
    "50 names, one changed": Case(SMALL.format(50), "v1.append(STEP)"),
    "1,000 names, unchanged": Case(SMALL.format(1_000), "pass"),
    "1,000 names, one changed": Case(SMALL.format(1_000), "v1.append(STEP)"),
    "DataFrame 64 MB, unchanged": Case(FRAME, "pass"),
    "DataFrame 64 MB, one column": Case(FRAME, "df['a'] = df['b'] + STEP"),
    "array 100 MB, unchanged": Case(ARRAY.format(12_500_000), "pass"),
    "array 100 MB and 1,000 names, unchanged": Case(
        ARRAY.format(12_500_000) + "\n" + SMALL.format(1_000), "pass"
    ),
    "array 100 MB, one element": Case(ARRAY.format(12_500_000), "a[STEP] = STEP"),
    "array 100 MB, all": Case(ARRAY.format(12_500_000), "a += 1"),
    "200,000 dicts, unchanged": Case(ROWS, "pass"),
    "model and Adam 45 M, unchanged": Case(MODEL, "pass"),
    "model and Adam 45 M, one step": Case(MODEL, "step()", repeats=2),
    "array 1 GB, one element": Case(ARRAY.format(125_000_000), "a[STEP] = STEP", is_large=True),
}


class Figures(msgspec.Struct):
    """Medians of one case; times in milliseconds."""

    added_ms: float
    committed_ms: float
    sent_bytes: int
    applied_ms: float
    fetched_bytes: int
    cloudpickle_ms: float
    cloudpickle_bytes: int
    dill_ms: float | None
    dill_bytes: int | None


class Store:
    """The checkpoint store of a case, and how much went there or came back."""

    def __init__(self, folder: Path) -> None:
        self._store = DiskStore(folder, clock=SystemClock())
        self._writer = ThreadPoolExecutor(1)
        self._writing: list[Future[None]] = []
        self.put_bytes = self.fetched_bytes = 0

    def put(self, digest: str, data: bytes) -> None:
        """Begin to write a chunk, as a host agent does."""
        self.put_bytes += len(data)
        self._writing.append(self._writer.submit(self._store.put, digest, data))

    def settle(self) -> None:
        """Wait until all chunks are on disk."""
        for each in self._writing:
            each.result()
        self._writing.clear()

    def fetch(self, digests: Iterable[str]) -> Iterator[bytes]:
        """Get chunks."""
        for digest in digests:
            data = self._store.get(digest)
            self.fetched_bytes += len(data)
            yield data


def new_replica(store: Store) -> tuple[InteractiveShell, Synchronizer]:
    """A shell and its synchronizer, as a replica has them."""
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    synchronizer = Synchronizer(
        shell, options=SyncOptions(), put_chunk=store.put, fetch_chunks=store.fetch
    )
    return shell, synchronizer


def be_standby(deltas: Connection, other_end: Connection, folder: Path) -> None:
    """Apply what comes and say how long it took, until the other end is closed."""
    other_end.close()
    store = Store(folder)
    _, synchronizer = new_replica(store)
    while True:
        try:
            encoded = deltas.recv_bytes()
        except EOFError:
            return
        begun = time.perf_counter()
        problems = synchronizer.apply(msgspec.msgpack.decode(encoded, type=Delta))
        took_ms = (time.perf_counter() - begun) * 1000
        fetched, store.fetched_bytes = store.fetched_bytes, 0
        deltas.send((took_ms, fetched, problems))


class Executor:
    """Runs cells and brings what they change to disk and to the standby."""

    def __init__(self, folder: Path, standby: Connection) -> None:
        self._store = Store(folder)
        self._standby = standby
        self._log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.shell, self._synchronizer = new_replica(self._store)

    def cell(self, code: str) -> tuple[float, float, int, float, int]:
        """Added and committed in ms, bytes sent, applied in ms, bytes fetched."""
        result = self.shell.run_cell(code, store_history=True)
        result.raise_error()
        self._store.put_bytes = 0
        begun = time.perf_counter()
        collected = self._synchronizer.collect()
        added = time.perf_counter() - begun
        deltas = []
        if collected is not None:
            deltas.append(self._append(collected.delta))
            if collected.late is not None:
                deltas.append(self._append(self._synchronizer.ship_late(collected.late)))
        committed = time.perf_counter() - begun
        applied, fetched = self._apply(deltas)
        sent = self._store.put_bytes + sum(map(len, deltas))
        return added * 1000, committed * 1000, sent, applied, fetched

    def _append(self, delta: Delta) -> bytes:
        self._store.settle()
        encoded = msgspec.msgpack.encode(delta)
        os.write(self._log, encoded)
        os.fdatasync(self._log)
        return encoded

    def _apply(self, deltas: list[bytes]) -> tuple[float, int]:
        applied, fetched = 0.0, 0
        for encoded in deltas:
            self._standby.send_bytes(encoded)
            took_ms, size, problems = self._standby.recv()
            if problems:
                raise RuntimeError(f"the standby could not load: {problems}")
            applied, fetched = applied + took_ms, fetched + size
        return applied, fetched


def whole_session(
    shell: InteractiveShell, dumps: Callable[[Any], bytes], path: Path
) -> tuple[float, int]:
    """Milliseconds and bytes of writing all that the user has, twice and the faster."""
    hidden = shell.user_ns_hidden
    session = {k: v for k, v in shell.user_ns.items() if k not in hidden and k[0] != "_"}
    session.pop("In", None)
    session.pop("Out", None)
    times = []
    for _ in range(2):
        gc.collect()
        begun = time.perf_counter()
        data = dumps(session)
        size = len(data)
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fdatasync(file.fileno())
        del data
        times.append((time.perf_counter() - begun) * 1000)
    return min(times), size


def measure(case: Case, repeats: int) -> Figures:
    """Run one case in this process and a fork of it."""
    # Imported before the fork, so that the standby does not pay for it.
    for module in ("numpy", "pandas", "torch"):
        if module in case.setup:
            __import__(module)
    with tempfile.TemporaryDirectory(prefix="nbos-state-") as name:
        folder = Path(name)
        ours, theirs = multiprocessing.Pipe()
        standby = multiprocessing.get_context("fork").Process(
            target=be_standby, args=(theirs, ours, folder), daemon=True
        )
        standby.start()
        theirs.close()
        executor = Executor(folder, ours)
        executor.cell(case.setup)
        steps = range(WARM_UPS + (case.repeats or repeats))
        rows = [executor.cell(case.change.replace("STEP", str(step))) for step in steps]
        ours.close()
        added, committed, sent, applied, fetched = (
            statistics.median(column) for column in zip(*rows[WARM_UPS:], strict=True)
        )
        pickled_ms, pickled_bytes = whole_session(
            executor.shell, cloudpickle.dumps, folder / "session"
        )
        dilled: tuple[float | None, int | None] = (None, None)
        # Last: importing dill changes what cloudpickle does.
        dill = __import__("dill")
        try:
            dilled = whole_session(executor.shell, dill.dumps, folder / "session")
        except Exception as error:  # noqa: BLE001 - some sessions it cannot write, which is a result
            sys.stderr.write(f"dill: {type(error).__name__}: {str(error)[:100]}\n")
        standby.join()
    return Figures(
        added, committed, int(sent), applied, int(fetched), pickled_ms, pickled_bytes, *dilled
    )


def line(label: str, figures: Figures) -> str:
    """One row of the table."""
    dilled = "      fails" if figures.dill_ms is None else f"{figures.dill_ms:11.1f}"
    return (
        f"{label:<40}{figures.added_ms:9.2f}{figures.committed_ms:11.2f}"
        f"{figures.sent_bytes:13,}{figures.applied_ms:10.2f}{figures.fetched_bytes:13,}"
        f"{figures.cloudpickle_ms:13.1f}{figures.cloudpickle_bytes:14,}{dilled}"
        f"{'' if figures.dill_bytes is None else f'{figures.dill_bytes:14,}'}\n"
    )


def summary(measured: list[Figures]) -> str:
    """How much less than dill, at the median of those cases that dill can write."""
    pairs = [(each, each.dill_ms, each.dill_bytes) for each in measured]
    times = [ms / each.committed_ms for each, ms, _ in pairs if ms is not None]
    sizes = [size / max(each.sent_bytes, 1) for each, _, size in pairs if size is not None]
    if not times:
        return ""
    return (
        f"against saving the session with dill: {statistics.median(times):.1f} times less time "
        f"until committed, {statistics.median(sizes):.0f} times fewer bytes (medians)\n"
    )


HEAD = (
    f"{'':<40}{'added':>9}{'committed':>11}{'sent':>13}{'standby':>10}{'fetched':>13}"
    f"{'cloudpickle':>13}{'its size':>14}{'dill':>11}{'its size':>14}\n"
    f"{'':<40}{'ms':>9}{'ms':>11}{'bytes':>13}{'ms':>10}{'bytes':>13}"
    f"{'ms':>13}{'bytes':>14}{'ms':>11}{'bytes':>14}\n"
)


def main() -> None:
    """Run the cases that were asked for, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name has these words")
    parser.add_argument("--repeats", type=int, default=5, help="cells per case that count")
    parser.add_argument("--large", action="store_true", help="also the array of 1 GB")
    parser.add_argument("--here", metavar="CASE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        figures = measure(CASES[arguments.here], arguments.repeats)
        sys.stdout.write(json.dumps(msgspec.to_builtins(figures)) + "\n")
        return
    sys.stdout.write(HEAD)
    measured: list[Figures] = []
    for label, case in CASES.items():
        if arguments.only not in label or (case.is_large and not arguments.large):
            continue
        command = [sys.executable, "-m", "benchmarks.state", "--here", label]
        command += ["--repeats", str(arguments.repeats)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        measured.append(msgspec.json.decode(done.stdout.splitlines()[-1], type=Figures))
        sys.stdout.write(line(label, measured[-1]))
        sys.stdout.flush()
    sys.stdout.write(summary(measured))


if __name__ == "__main__":
    main()
