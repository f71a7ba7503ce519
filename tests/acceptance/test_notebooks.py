"""Every acceptance notebook gives the outputs of plain ipykernel, a new executor for every cell."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager
from kernel_under_test import kernel_view, wait_until
from notebook_runs import outputs, run_and_answer, run_with_nbclient

from notebookos_ext.handlers.models import KernelView
from notebookos_ext.live import cluster_runtime

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "tests/notebooks").glob("*.ipynb"))
DEMO = ROOT / "examples/train_digits.ipynb"
ANSWERS = {"asks_for_input.ipynb": ["Ada", "red", "open sesame"]}
"""What the client answers to a notebook's `input()` calls, in order."""
HOLDS = {"widgets.ipynb": {"slider", "out"}}
"""Names that must hold the kernel to its executor, because they cannot travel."""


class WatchedManager(KernelManager):
    """Remembers what the cluster knew of the kernel just before it was shut down."""

    last_view: KernelView | None = None

    def start_kernel(self, **options: Any) -> None:  # type: ignore[override]
        """Start, and wait for every replica: a short notebook could be over before them."""
        super().start_kernel(**options)
        if self.kernel_name == "notebookos":
            wait_until(
                lambda: [r.state for r in kernel_view(self).replicas] == ["idle"] * 3,
                "the kernel has all its replicas",
            )

    def shutdown_kernel(self, now: bool = False, restart: bool = False) -> None:  # type: ignore[override]
        """Look, then shut down."""
        if self.kernel_name == "notebookos" and self.has_kernel:
            self.last_view = kernel_view(self)
        super().shutdown_kernel(now=now, restart=restart)


@pytest.fixture(autouse=True)
def one_seed_and_rotating_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kernels hash alike, and ours never runs two cells in a row on one replica."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setenv("NOTEBOOKOS_EXECUTOR", "rotate")
    # One that lingers from an earlier test in this process hashes as that test did.
    cluster_runtime.stop_private()


def taken_notes(cell: dict[str, Any]) -> list[str]:
    """Take our own words to the user out of a cell's outputs; plain ipykernel says nothing."""
    notes = [o for o in cell["outputs"] if o.get("text", "").startswith("NotebookOS: ")]
    cell["outputs"] = [output for output in cell["outputs"] if output not in notes]
    return [note["text"] for note in notes]


@pytest.mark.parametrize("path", [*NOTEBOOKS, DEMO], ids=lambda path: path.stem)
def test_outputs_are_those_of_plain_ipykernel(path: Path) -> None:
    """Run on both and compare, cell by cell."""

    def run(kernel_name: str) -> tuple[list[dict[str, Any]], KernelView | None]:
        manager = WatchedManager(kernel_name=kernel_name)
        if path.name in ANSWERS:
            notebook = run_and_answer(path, manager, ANSWERS[path.name])
        else:
            notebook = run_with_nbclient(path, manager)
        return outputs(notebook), manager.last_view

    expected, _ = run("python3")
    got, view = run("notebookos")
    assert len(got) == len(expected)
    notes = [note for ours in got for note in taken_notes(ours)]
    for ours, plain in zip(got, expected, strict=True):
        assert ours == plain
    assert view is not None
    held = {name.name for name in view.held}
    assert held == HOLDS.get(path.name, set())
    executors = [cell.replica_id for cell in reversed(view.cells)]
    assert all(any(name in note for note in notes) for name in held), "a held name was not told"
    assert bool(notes) == bool(held)
    if not held:
        repeated = [pair for pair in itertools.pairwise(executors) if len(set(pair)) < 2]
        assert not repeated, f"two cells in a row on one replica: {executors}"
        assert len(set(executors)) > 1
