"""What a notebook file and the environment ask for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from notebookos_ext.errors import InvalidRequest, InvalidSettings
from notebookos_ext.live.notebook_file import overridden, preference, read_settings
from notebookos_ext.notebook_settings import NotebookSettings


def notebook(folder: Path, metadata: object) -> Path:
    path = folder / "train.ipynb"
    path.write_text(json.dumps({"cells": [{"source": "x"}], "metadata": metadata, "nbformat": 4}))
    return path


def test_the_metadata_is_read(tmp_path: Path) -> None:
    path = notebook(tmp_path, {"notebookos": {"replica_count": 1, "gpus_per_cell": 2}, "x": 1})
    assert read_settings(path) == NotebookSettings(1, 2)


def test_a_file_without_a_word_about_it(tmp_path: Path) -> None:
    assert read_settings(notebook(tmp_path, {})) == NotebookSettings()


@pytest.mark.parametrize("name", ["missing.ipynb", "folder", "broken.ipynb", "console-1"])
def test_what_is_no_notebook_asks_for_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken.ipynb").write_text('{"metadata": {')
    assert read_settings(tmp_path / name) == NotebookSettings()


def test_a_wrong_value_names_the_notebook(tmp_path: Path) -> None:
    path = notebook(tmp_path, {"notebookos": {"replica_count": 2}})
    with pytest.raises(InvalidSettings, match=r"train\.ipynb asks for 2 replicas"):
        read_settings(path)


def test_the_environment_of_a_headless_run_wins() -> None:
    env = {"NOTEBOOKOS_REPLICAS": "5", "NOTEBOOKOS_GPUS_PER_CELL": "1"}
    assert overridden(NotebookSettings(1, 0), env) == NotebookSettings(5, 1)
    assert overridden(NotebookSettings(1, 0), {}) == NotebookSettings(1, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NOTEBOOKOS_REPLICAS", "two"),
        ("NOTEBOOKOS_REPLICAS", "2"),
        ("NOTEBOOKOS_GPUS_PER_CELL", "-1"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(InvalidSettings, match=name):
        overridden(NotebookSettings(), {name: value})


def test_the_preferred_executor() -> None:
    assert preference({}, "last") == "last"
    assert preference({"NOTEBOOKOS_EXECUTOR": "rotate"}, "last") == "rotate"
    with pytest.raises(InvalidRequest, match="must be last or rotate"):
        preference({"NOTEBOOKOS_EXECUTOR": "first"}, "last")
