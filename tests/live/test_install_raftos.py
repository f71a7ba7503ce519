"""`jupyter notebookos install-raftos`, with a stand-in for the interpreter that would run pip."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from notebookos_ext.live.cli import main


def stand_in(folder: Path, status: int) -> Path:
    """An interpreter that writes down what it is asked and ends with `status`."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\necho "$@" > {folder}/asked\nexit {status}\n')
    path.chmod(0o755)
    return path


def test_it_is_installed_without_its_pins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", str(stand_in(tmp_path, 0)))
    assert main(["install-raftos"]) == 0
    asked = (tmp_path / "asked").read_text()
    assert asked == "-m pip install --no-deps raftos==0.2.6 msgpack\n"
    assert "it is not durable" in capsys.readouterr().out


def test_what_went_wrong_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", str(stand_in(tmp_path, 3)))
    assert main(["install-raftos"]) == 1
    said = capsys.readouterr().err
    assert "pip ended with status 3" in said
    assert "Install raftos==0.2.6 and msgpack into" in said
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    assert main(["install-raftos"]) == 1
    assert "cannot be started: No such file" in capsys.readouterr().err
