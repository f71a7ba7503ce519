"""Replicated kernelspecs out of installed ones, and what is said about those that cannot be."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from notebookos_ext.errors import InvalidRequest, NotFound
from notebookos_ext.live import kernelspecs
from notebookos_ext.live.cli import main
from notebookos_ext.live.kernelspecs import check_interpreter, install_replicated, interpreter


@pytest.fixture
def specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own Jupyter data folder; whatever else is installed is not seen."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "path"))
    return tmp_path / "path" / "kernels"


def installed(specs: Path, name: str, **spec: object) -> None:
    folder = specs / name
    folder.mkdir(parents=True)
    (folder / "logo-64x64.png").write_bytes(b"logo")
    (folder / "kernel.json").write_text(
        json.dumps(
            {
                "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                "display_name": "Training",
                "language": "python",
                "env": {"A": "1"},
                "metadata": {"debugger": True},
                **spec,
            }
        )
    )


def test_an_installed_kernelspec_becomes_replicated(specs: Path, tmp_path: Path) -> None:
    installed(specs, "training")
    name, where = install_replicated("training", prefix=str(tmp_path / "prefix"))
    assert name == "training-notebookos"
    made = json.loads((where / "kernel.json").read_text())
    assert made["argv"][:3] == [sys.executable, "-m", "notebookos_ext.kernel"]
    assert made["display_name"] == "Training (NotebookOS)"
    assert made["env"] == {"A": "1"}
    assert made["metadata"] == {
        "debugger": True,
        "kernel_provisioner": {"provisioner_name": "notebookos"},
    }
    assert (where / "logo-64x64.png").read_bytes() == b"logo"


def test_the_command_says_where(
    specs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(specs, "training")
    code = main(["install", "--kernel", "training", "--name", "mine", "--prefix", str(tmp_path)])
    assert code == 0
    assert f"kernelspec mine in {tmp_path}/share/jupyter/kernels/mine" in capsys.readouterr().out


def test_an_unknown_kernelspec_is_one_sentence(
    specs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(specs, "training")
    assert main(["install", "--kernel", "trainning"]) == 1
    said = capsys.readouterr().err
    assert "there is no kernelspec 'trainning'" in said
    assert "training" in said


def test_another_language_is_refused(specs: Path) -> None:
    installed(specs, "r", language="R")
    with pytest.raises(InvalidRequest, match="only Python kernels"):
        install_replicated("r")


def test_one_that_is_replicated_is_refused(specs: Path) -> None:
    metadata = {"kernel_provisioner": {"provisioner_name": "notebookos"}}
    installed(specs, "ours", metadata=metadata)
    with pytest.raises(InvalidRequest, match="replicated already"):
        install_replicated("ours")


def test_an_interpreter_that_is_gone_is_named(specs: Path) -> None:
    installed(specs, "old", argv=["/no/such/python", "-m", "ipykernel_launcher"])
    with pytest.raises(InvalidRequest, match="old starts /no/such/python"):
        install_replicated("old")


def test_what_an_interpreter_lacks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(InvalidRequest, match=r"lacks ipykernel, cloudpickle.* -m pip install"):
        check_interpreter(str(bare))


def test_what_is_no_interpreter_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(InvalidRequest, match="not a Python interpreter that works"):
        check_interpreter(str(broken))


def test_an_old_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernelspecs, "LEAST_PYTHON", (99, 0))
    check_interpreter.cache_clear()
    with pytest.raises(InvalidRequest, match=r"need Python 99\.0 or later"):
        check_interpreter(sys.executable)
    check_interpreter.cache_clear()


def test_python_means_this_one() -> None:
    assert interpreter(["python", "-m", "x"], name="n") == sys.executable
    with pytest.raises(InvalidRequest, match="starts nothing"):
        interpreter([], name="n")


def test_an_unknown_kernelspec_raises_not_found(specs: Path) -> None:
    with pytest.raises(NotFound, match="there is no kernelspec 'anything'; installed are "):
        install_replicated("anything")
