"""A notebook opened in the browser: its path, its metadata, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tornado.httpclient import HTTPClientError

from notebookos_ext.handlers.models import KernelView


async def open_notebook(jp_fetch: Any, folder: Path, asked: Any) -> Any:
    """What JupyterLab sends when a notebook is opened with our kernel."""
    (folder / "work").mkdir()
    notebook = {"cells": [], "metadata": {"notebookos": asked}, "nbformat": 4, "nbformat_minor": 5}
    (folder / "work" / "train.ipynb").write_text(json.dumps(notebook))
    body = {
        "path": "work/train.ipynb",
        "name": "train.ipynb",
        "type": "notebook",
        "kernel": {"name": "notebookos"},
    }
    return await jp_fetch("api", "sessions", method="POST", body=json.dumps(body))


async def test_the_notebook_says_what_its_kernel_has(jp_fetch: Any, jp_root_dir: Path) -> None:
    answer = await open_notebook(jp_fetch, jp_root_dir, {"replica_count": 3, "gpus_per_cell": 2})
    session = json.loads(answer.body)
    kernel = session["kernel"]["id"]
    found = await jp_fetch("notebookos", "api", "kernels", kernel)
    view = msgspec.json.decode(found.body, type=KernelView)
    assert view.notebook_path == "work/train.ipynb"
    assert (view.replica_count, view.gpus_per_cell) == (3, 2)
    await jp_fetch("api", "sessions", session["id"], method="DELETE")
    with pytest.raises(HTTPClientError) as gone:
        await jp_fetch("notebookos", "api", "kernels", kernel)
    assert gone.value.code == 404


@pytest.mark.parametrize(
    ("asked", "status", "sentence"),
    [
        ({"replica_count": 2}, 400, "train.ipynb asks for 2 replicas; a kernel can have 1, 3 or 5"),
        ({"replica_count": 5}, 409, "5 replicas need as many hosts"),
        ({"gpus_per_cell": "all"}, 400, "train.ipynb asks for 'all' GPUs per cell"),
    ],
)
async def test_a_notebook_that_asks_for_the_impossible_is_told(
    jp_fetch: Any, jp_root_dir: Path, asked: Any, status: int, sentence: str
) -> None:
    with pytest.raises(HTTPClientError) as refused:
        await open_notebook(jp_fetch, jp_root_dir, asked)
    assert refused.value.code == status
    assert sentence in json.loads(refused.value.response.body)["message"]
    assert json.loads((await jp_fetch("api", "kernels")).body) == []
    assert json.loads((await jp_fetch("api", "sessions")).body) == []


async def test_a_renamed_notebook_is_shown_by_its_new_name(
    jp_fetch: Any, jp_root_dir: Path
) -> None:
    session = json.loads((await open_notebook(jp_fetch, jp_root_dir, {})).body)
    kernel = session["kernel"]["id"]

    async def shown() -> str:
        found = await jp_fetch("notebookos", "api", "kernels", kernel)
        return msgspec.json.decode(found.body, type=KernelView).notebook_path

    renamed = json.dumps({"path": "work/fit.ipynb", "name": "fit.ipynb"})
    await jp_fetch("api", "sessions", session["id"], method="PATCH", body=renamed)
    assert await shown() == "work/fit.ipynb"
    # A console for the notebook is another session of the same kernel.
    console = {"path": "console-1", "name": "", "type": "console", "kernel": {"id": kernel}}
    await jp_fetch("api", "sessions", method="POST", body=json.dumps(console))
    assert await shown() == "work/fit.ipynb"
    await jp_fetch("api", "kernels", kernel, method="DELETE")
