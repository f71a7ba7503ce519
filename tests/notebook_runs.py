"""Run a notebook and say what came out of it, so that two kernels can be compared."""

from __future__ import annotations

import copy
import queue
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

CELL_TIMEOUT_S = 120
"""Ends a hang; no test measures time with it."""

NORMALISED = (
    (re.compile(r"0x[0-9a-f]{6,}"), "0x…"),  # memory addresses
    (re.compile(r"\.\.\.x[0-9a-f]{6,}"), "...x…"),  # the same, cut short by scikit-learn's displays
    (re.compile(r"ipykernel_\d+[/\\]\d+\.py"), "ipykernel_…/….py"),  # process and cell file names
    (re.compile(r'"?\b[0-9a-f]{32}\b"?'), "…id…"),  # model ids of widgets
    (re.compile(r"\x1b\[[0-9;]*m"), ""),  # colours
)
"""The whole list of what may differ between two runs of the same notebook."""


def read(path: Path) -> nbformat.NotebookNode:
    """A notebook as it is in the tree: no outputs."""
    return nbformat.read(path, as_version=4)


def run_with_nbclient(path: Path, manager: KernelManager) -> nbformat.NotebookNode:
    """Execute all cells as nbclient does, expected errors included."""
    notebook = copy.deepcopy(read(path))
    client = NotebookClient(
        notebook,
        km=manager,
        timeout=CELL_TIMEOUT_S,
        allow_errors=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        return client.execute(cwd=str(path.parent))
    finally:
        # A manager that was handed to nbclient, and the client made from it, are ours to end.
        if client.kc is not None:
            client.kc.stop_channels()
        if manager.has_kernel:
            manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def run_and_answer(path: Path, manager: KernelManager, answers: list[str]) -> nbformat.NotebookNode:
    """Execute all cells with a client that answers `input()`, one answer after the other."""
    notebook = copy.deepcopy(read(path))
    left = iter(answers)
    manager.start_kernel(cwd=str(path.parent))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=CELL_TIMEOUT_S)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                _run_cell(client, cell, left)
        return notebook
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _run_cell(client: Any, cell: nbformat.NotebookNode, answers: Iterator[str]) -> None:
    def on_output(message: dict[str, Any]) -> None:
        if message["msg_type"] in {"stream", "display_data", "execute_result", "error"}:
            cell.outputs.append(nbformat.v4.output_from_msg(message))

    def on_input(message: dict[str, Any]) -> None:
        prompt, hidden = message["content"]["prompt"], message["content"]["password"]
        cell.outputs.append(
            nbformat.v4.new_output("stream", name="stdout", text=f"[{prompt!r} hidden={hidden}]\n")
        )
        client.input(next(answers))

    try:
        reply = client.execute_interactive(
            cell.source,
            allow_stdin=True,
            timeout=CELL_TIMEOUT_S,
            output_hook=on_output,
            stdin_hook=on_input,
        )
    except queue.Empty as error:
        raise AssertionError(f"no reply to {cell.source!r}") from error
    cell.execution_count = reply["content"]["execution_count"]


def outputs(notebook: nbformat.NotebookNode) -> list[dict[str, Any]]:
    """Per code cell: its source, execution count and outputs, made comparable."""
    return [
        {
            "source": cell.source,
            "execution_count": cell.execution_count,
            "outputs": _comparable(_joined(cell.outputs)),
        }
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def _joined(cell_outputs: list[Any]) -> list[Any]:
    """Join neighbouring pieces of one stream: where they are cut is a matter of timing."""
    joined: list[Any] = []
    for output in cell_outputs:
        last = joined[-1] if joined else None
        if (
            last is not None
            and output["output_type"] == last["output_type"] == "stream"
            and output["name"] == last["name"]
        ):
            last["text"] += output["text"]
        else:
            joined.append(copy.deepcopy(dict(output)))
    return joined


def _comparable(value: Any) -> Any:
    if isinstance(value, str):
        for pattern, replacement in NORMALISED:
            value = pattern.sub(replacement, value)
        return value
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(item) for item in value]
    return value
