"""`jupyter notebookos doctor` sees what is wrong, says what to do, and changes nothing."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from notebookos_ext.clock import SystemClock
from notebookos_ext.live import checkups, cli, leftover_processes
from notebookos_ext.live.checkups import Finding
from notebookos_ext.live.cli import doctor
from notebookos_ext.live.state_folder import open_shared


def only_wrong(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level == "wrong"]


def whole_tree(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_this_installation_is_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests of this machine start and kill processes at this moment.
    monkeypatch.setattr(leftover_processes, "processes", dict)
    folder = open_shared(tmp_path / "state")
    before = whole_tree(tmp_path)
    assert cli.main(["doctor", "--state-folder", str(tmp_path / "state"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {f["subject"] for f in found} >= {
        "python", "package", "packages", "kernelspec", "gpus", "ports", "open files", "sockets",
        "state folder", "disk", "kept kernels", "checkpoint store", "server extension",
    }  # fmt: skip
    assert whole_tree(tmp_path) == before
    folder.close(delete=False)


def test_what_is_wrong_is_said_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    open_shared(state).close(delete=False)
    (state / "token").chmod(0o644)
    (state / "kernels").mkdir(exist_ok=True)
    (state / "kernels" / "k.json").write_text("no record")
    (state / "store").mkdir()
    (state / "store" / "chunks").write_text("no folder")
    assert cli.main(["doctor", "--state-folder", str(state)]) == 1
    said = capsys.readouterr().out
    assert f"others can read {state}/token (mode 644)" in said
    assert f"chmod 600 '{state}/token'" in said
    assert "the kernel record" in said
    assert "checkpoint store" in said
    assert said.rstrip().endswith("wrong")
    assert "WRONG" in said


def test_packages_that_are_missing_or_too_old_are_named() -> None:
    versions = {"old": "1.0", "fine": "2.0"}
    needed = ["old>=2", "fine>=1", "missing", "extra>=9; extra == 'test'"]
    found = only_wrong(checkups.required(needed, versions.get))
    assert [finding.said for finding in found] == [
        "old is 1.0; >=2 is needed",
        "missing is not installed; any is needed",
    ]
    assert "pip install 'old>=2'" in found[0].fix
    assert only_wrong(checkups.required(needed[1:2], versions.get)) == []


def test_an_extension_that_is_off_and_a_front_end_that_is_not_there(tmp_path: Path) -> None:
    found = only_wrong(checkups.extension({"notebookos_ext": False}, [tmp_path]))
    assert [finding.said for finding in found] == [
        "it is disabled",
        "JupyterLab has no extension notebookos-ext",
    ]
    assert only_wrong(checkups.extension({}, []))[0].said == "it is not known to Jupyter here"


def test_kernelspecs_whose_interpreter_is_gone() -> None:
    (none,) = only_wrong(checkups.kernelspecs({"python3": {"argv": ["python"], "metadata": {}}}))
    assert "no kernelspec is replicated" in none.said
    ours = {"kernel_provisioner": {"provisioner_name": "notebookos"}}
    gone = {"nb": {"argv": ["/no/such/python"], "metadata": ours}}
    (lost,) = only_wrong(checkups.kernelspecs(gone))
    assert "/no/such/python, which does not exist" in lost.said


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "print('no JSON')"])
def test_a_driver_that_fails_takes_nothing_with_it(code: str) -> None:
    (finding,) = checkups.gpus([sys.executable, "-c", code])
    assert finding.level == "wrong"
    assert "simulated" in finding.fix


def test_devices_are_listed() -> None:
    told = json.dumps({"devices": [{"index": 0, "name": "H200", "memory_bytes": 141 * 10**9}]})
    (finding,) = checkups.gpus([sys.executable, "-c", f"print({told!r})"])
    assert finding == Finding("gpus", "ok", "0: H200, 141 GB")


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    (finding,) = checkups.state_folder(tmp_path / "deep" / "state")
    assert f"{tmp_path} is not writable" in finding.said


def test_a_store_at_an_address_that_makes_no_sense() -> None:
    (finding,) = checkups.checkpoint_store("ftp://somewhere", clock=SystemClock())
    assert finding.level == "wrong"
    assert "ftp" in finding.said


def running(proc: Path, pid: int, parent: int, *words: str) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_bytes(b"\0".join(word.encode() for word in words) + b"\0")
    (folder / "stat").write_text(f"{pid} (a ) b) S {parent} 1 1")


def test_what_was_left_running_is_found(tmp_path: Path) -> None:
    proc, state, held = tmp_path / "proc", tmp_path / "left", tmp_path / "held"
    for folder in (state, held):
        folder.mkdir()
        (folder / "lock").touch()
    agent = ("python", "-m", "notebookos_ext.agent")
    running(proc, 10, 1, *agent, f"{state}/hosts/host-1/agent.json")
    running(proc, 20, 1, *agent, f"{held}/hosts/host-1/agent.json")
    running(proc, 11, 10, "python", "-m", "notebookos_ext.kernel.template", "5")
    running(proc, 12, 11, "python", "-m", "notebookos_ext.kernel.template", "5")
    running(proc, 30, 1, "python", "-m", "notebookos_ext.kernel.template", "5")
    running(proc, 40, 1, "python", "-m", "something.else")
    private = tmp_path / "notebookos-private-x"
    private.mkdir()
    (private / "lock").touch()
    with (held / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = list(doctor.left_behind(leftover_processes.processes(proc), tmp_path))
    assert [(f.level, f.said) for f in found] == [
        ("note", f"host agent 10 of {state} has no server"),
        ("wrong", "process 30 of a kernel has no host agent"),
        ("note", f"{private} belonged to a process that was killed"),
    ]
    assert "kill 30" in found[1].fix
