"""nbclient and the like outside a server: a cluster of their own, and nothing left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from live_rig import MARK, started_by, until

RUNS_A_NOTEBOOK = """
import sys, nbformat
from nbclient import NotebookClient
from notebookos_ext.live import cluster_runtime

{before}
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, kernel_name="notebookos", timeout=120).execute()
nbformat.write(notebook, sys.argv[1])
print("folder", cluster_runtime._registry.private.folder.path, flush=True)
{after}
"""


def write_notebook(folder: Path) -> Path:
    cells = ["a = [1]", "a.append(2)", "print(a)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    path = folder / "n.ipynb"
    nbformat.write(notebook, path)
    return path


@contextmanager
def start(
    folder: Path, mark: str, *, before: str = "", after: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """The script at work; killed when a test leaves it running, also by a failed assertion."""
    script = folder / "run.py"
    script.write_text(RUNS_A_NOTEBOOK.format(before=before, after=after))
    with subprocess.Popen(
        [sys.executable, str(script), str(write_notebook(folder))],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, MARK: mark, "PYTHONWARNINGS": "ignore"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def mark() -> str:
    """Tells this test's processes from those of another run on the same machine."""
    return uuid.uuid4().hex


def folder_of(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().removeprefix("folder ").strip())


def test_nothing_is_left_when_the_process_ends(tmp_path: Path, mark: str) -> None:
    with start(tmp_path, mark) as process:
        folder = folder_of(process)
        assert process.wait() == 0
    until(lambda: not started_by(mark), "no process left")
    assert not folder.exists()
    notebook = nbformat.read(tmp_path / "n.ipynb", as_version=4)
    assert notebook.cells[-1].outputs[0].text == "[1, 2]\n"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_running_when_the_process_is_killed(
    tmp_path: Path, mark: str, how: int
) -> None:
    with start(
        tmp_path,
        mark,
        before="cluster_runtime.PRIVATE_LEASE_S = 3.0; cluster_runtime.LINGER_S = 600.0",
        after="__import__('time').sleep(600)",
    ) as process:
        assert folder_of(process).exists()
        assert len(started_by(mark)) > 3
        process.send_signal(how)
        process.wait()
    until(lambda: not started_by(mark), "the leases ran out")


def test_it_ends_by_itself_some_time_after_its_last_kernel(tmp_path: Path, mark: str) -> None:
    with start(
        tmp_path,
        mark,
        before="cluster_runtime.LINGER_S = 0.1",
        after="__import__('time').sleep(600)",
    ) as process:
        folder = folder_of(process)
        until(lambda: started_by(mark) == [process.pid], "the agents have ended")
        until(lambda: not folder.exists(), "the folder is gone")


def test_a_notebook_runs_under_papermill(tmp_path: Path) -> None:
    import papermill

    from notebookos_ext.live import cluster_runtime

    path = write_notebook(tmp_path)
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata["kernelspec"] = {"name": "notebookos", "language": "python"}
    nbformat.write(notebook, path)
    out = tmp_path / "out.ipynb"
    try:
        papermill.execute_notebook(
            path, out, kernel_name="notebookos", progress_bar=False, parameters={"a": [0]}
        )
    finally:
        cluster_runtime.stop_private()
    texts = [o.text for c in nbformat.read(out, as_version=4).cells for o in c.get("outputs", [])]
    assert texts == ["[1, 2]\n"]
