"""Jupyter's own command-line clients, outside a server: nothing of ours is configured for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pexpect
from live_rig import HANG_S, MARK, started_by, until

NO_WARNINGS = {"PYTHONWARNINGS": "ignore"}


def test_a_console_runs_cells_asks_for_input_and_leaves_nothing() -> None:
    console = pexpect.spawn(
        sys.executable,
        ["-m", "jupyter_console", "--kernel", "notebookos", "--simple-prompt"],
        encoding="utf-8",
        timeout=HANG_S,
        # select() cannot watch the descriptors of a process that has opened many.
        use_poll=True,
        env={**os.environ, **NO_WARNINGS, MARK: "console"},
    )
    for line, expected in [
        ("x = 41", r"In \[2\]:"),
        ("x + 1", r"Out\[2\]: 42"),
        ("input('name? ')", r"name\? "),
        ("Ada", r"'Ada'"),
    ]:
        console.sendline(line)
        console.expect(expected)
    console.sendline("exit()")
    console.expect(pexpect.EOF)
    console.close()
    assert console.exitstatus == 0
    until(lambda: not started_by("console"), "no process left")


def test_nbconvert_executes_a_notebook(tmp_path: Path) -> None:
    cells = ["squares = [n * n for n in range(4)]", "%env WHO=me", "squares.pop(); squares"]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
        metadata={"kernelspec": {"name": "notebookos", "display_name": "x"}},
    )
    nbformat.write(notebook, tmp_path / "n.ipynb")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "nbconvert",
            "--execute",
            "--to",
            "notebook",
            "--inplace",
            "n.ipynb",
        ],
        cwd=tmp_path,
        env={**os.environ, **NO_WARNINGS, MARK: "nbconvert"},
        check=True,
        capture_output=True,
    )
    ran = nbformat.read(tmp_path / "n.ipynb", as_version=4)
    assert ran.cells[-1].outputs[0].data["text/plain"] == "[0, 1, 4]"
    until(lambda: not started_by("nbconvert"), "no process left")
