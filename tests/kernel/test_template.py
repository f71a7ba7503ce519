"""The process that forks replicas: what a fork looks like, whose child it is, and when all end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from replica_agent import TIMEOUT_S, Agent, notebook, running_agent, short_folder

from notebookos_ext.cluster.messages.control import LaunchReplica
from notebookos_ext.cluster.model import KernelId, ReplicaId
from notebookos_ext.errors import InvalidSettings, LaunchFailed
from notebookos_ext.kernel.app import MAX_IPC_PATH_BYTES, private_folder, sync_options
from notebookos_ext.kernel.template import is_installed, preload, search_path


@pytest.fixture
def agent() -> Iterator[Agent]:
    with running_agent() as agent:
        yield agent


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


def launch(number: int = 1, count: int = 1) -> LaunchReplica:
    return LaunchReplica(
        kernel=KernelId("k"),
        replica=ReplicaId(f"k:{number}"),
        epoch=1,
        launch=count,
        python=sys.executable,
        env={},
        cwd="/",
        session_key=b"key",
        options={},
    )


@pytest.mark.parametrize(
    ("current", "old", "new", "expected"),
    [
        (["/lib", "/site"], "", "", ["/lib", "/site"]),
        (["/lib", "/site"], "", "/mine:/more", ["/mine", "/more", "/lib", "/site"]),
        (["/pkg", "/lib"], "/pkg", "", ["/lib", "/pkg"]),
        (["/pkg", "/lib"], "/pkg", "/mine", ["/mine", "/lib", "/pkg"]),
        (["/pkg", "/lib"], "/pkg:/gone", "/pkg:", ["/pkg", "/lib"]),
    ],
)
def test_search_path(current: list[str], old: str, new: str, expected: list[str]) -> None:
    assert search_path(current, old, new) == expected


def test_a_module_that_cannot_be_imported_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "module_that_raises.py").write_text("raise ValueError('odd')\n")
    (tmp_path / "module_that_works.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    preload(["module_not_there", "module_that_raises", "module_that_works"])
    said = capsys.readouterr().err
    assert "does without module_not_there: No module named" in said
    assert "ValueError: odd" in said
    assert sys.modules.pop("module_that_works").value == 1


def test_a_module_that_starts_threads_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "module_with_a_thread.py").write_text(
        "import threading\n"
        "go = threading.Event()\n"
        "thread = threading.Thread(target=go.wait, name='watcher')\n"
        "thread.start()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    preload(["module_with_a_thread"])
    module = sys.modules.pop("module_with_a_thread")
    module.go.set()
    module.thread.join()
    said = capsys.readouterr().err
    assert "watcher" in said
    assert "replicas may hang" in said


def test_options_of_the_synchronizer_are_taken_from_the_launch() -> None:
    assert sync_options({"sync": "after-reply", "inline_bytes": 5}).inline_bytes == 5
    with pytest.raises(InvalidSettings, match="inline_bytes"):
        sync_options({"inline_bytes": "many"})


@pytest.mark.parametrize(
    ("name", "expected"), [("os", True), ("no_such", False), ("no_such.part", False)]
)
def test_is_installed(name: str, expected: bool) -> None:
    assert is_installed(name) is expected


def test_socket_folders_are_private_and_follow_each_other(folder: Path) -> None:
    first = private_folder(str(folder), launch())
    other = private_folder(str(folder), launch(2))
    second = private_folder(str(folder), launch(count=2))
    assert second.stat().st_mode & 0o777 == 0o700
    assert {first.exists(), other.exists(), second.exists()} == {False, True}
    assert not first.exists()


def test_a_socket_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    long = tmp_path / ("x" * MAX_IPC_PATH_BYTES)
    with pytest.raises(LaunchFailed, match="shorter folder"):
        private_folder(str(long), launch())
    assert not long.exists()


def test_a_replica_is_a_child_and_a_session_of_its_own(agent: Agent) -> None:
    replica = agent.launch()
    process = psutil.Process(replica.pid)
    assert process.ppid() == os.getpid()
    assert os.getsid(replica.pid) == replica.pid
    assert os.getpgid(replica.pid) == replica.pid
    assert agent.template.pid not in {process.ppid(), replica.pid}


def test_replicas_have_the_environment_of_their_launch(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "module_of_the_user.py").write_text("place = 'user'\n")
    folder = tmp_path / "notebooks"
    folder.mkdir()
    replica = agent.launch(
        env={"GREETING": "hello", "PYTHONPATH": str(tmp_path), "JPY_PARENT_PID": "1"},
        cwd=str(folder),
    )
    with notebook(replica) as book:
        code = (
            "import os, sys, module_of_the_user\n"
            "names = ('GREETING', 'CUDA_VISIBLE_DEVICES', 'NOTEBOOKOS_REPLICA', 'PYTHONHASHSEED')\n"
            "print([os.environ[n] for n in names], 'JPY_PARENT_PID' in os.environ)\n"
            "print(os.getcwd(), module_of_the_user.place, sys.stdin.read() == '')\n"
            "print(sys.path[0], hash('x'))\n"
        )
        _, said = book.run(code)
    expected = hash_of_x(seed="1234")
    assert said.splitlines() == [
        f"['hello', '', '{replica.launch.replica}', '1234'] False",
        f"{folder} user True",
        f"{tmp_path} {expected}",
    ]


def hash_of_x(seed: str) -> str:
    return subprocess.check_output(
        [sys.executable, "-c", "print(hash('x'))"], env={"PYTHONHASHSEED": seed}, text=True
    ).strip()


def test_a_folder_that_cannot_be_entered_is_told_and_home_taken(
    agent: Agent, tmp_path: Path
) -> None:
    replica = agent.launch(cwd=str(tmp_path / "gone"), env={"HOME": str(tmp_path)})
    with notebook(replica) as book:
        assert book.run("import os; print(os.getcwd())")[1] == f"{tmp_path}\n"
    assert "cannot be entered (No such file or directory)" in agent.log.read_text()


def test_forks_do_not_share_random_states(agent: Agent) -> None:
    numbers = set()
    for number in (1, 2):
        with notebook(agent.launch(number)) as book:
            numbers.add(book.run("import random; print(random.random())")[1])
    assert len(numbers) == 2


def test_preloaded_numpy_is_reseeded_and_matplotlib_draws_inline() -> None:
    pytest.importorskip("numpy")
    pytest.importorskip("matplotlib")
    with running_agent("numpy", "matplotlib") as agent:
        numbers = set()
        for number in (1, 2):
            with notebook(agent.launch(number)) as book:
                _, said = book.run(
                    "import sys\n"
                    "loaded = 'numpy' in sys.modules\n"
                    "import numpy, matplotlib\n"
                    "print(loaded, matplotlib.get_backend(), numpy.random.rand())"
                )
            loaded, backend, draw = said.split()
            assert loaded == "True"
            assert "inline" in backend
            numbers.add(draw)
        assert len(numbers) == 2


def test_a_replica_dies_with_its_agent(folder: Path) -> None:
    # The agent of this test is a process of its own, which is killed.
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from replica_agent import Agent, set_subreaper\n"
        "set_subreaper(True)\n"
        "replica = Agent(Path(sys.argv[1])).launch()\n"
        "print(replica.pid, flush=True)\n"
        "replica.ended.wait()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    with subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as agent:
        assert agent.stdout is not None
        replica = psutil.Process(int(agent.stdout.readline()))
        agent.kill()
    psutil.wait_procs([replica], timeout=TIMEOUT_S)
    assert not replica.is_running() or replica.status() == psutil.STATUS_ZOMBIE


def test_the_template_goes_on_after_a_replica_was_killed(agent: Agent) -> None:
    first = agent.launch()
    first.kill()
    assert os.WTERMSIG(first.wait()) == signal.SIGKILL
    assert first.ended.wait(TIMEOUT_S)
    with notebook(agent.launch()) as book:
        assert book.run("print(1)")[1] == "1\n"


def test_without_our_package_the_template_says_what_is_missing() -> None:
    hide = (
        "import sys, runpy\n"
        "sys.modules['cloudpickle'] = None\n"
        "sys.argv = ['template', '0']\n"
        "runpy.run_module('notebookos_ext.kernel.template', run_name='__main__')\n"
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        result = subprocess.run(
            [sys.executable, "-c", hide],
            check=False,
            stdin=theirs.fileno(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    assert result.returncode == 1
    assert "ModuleNotFoundError" in result.stderr
    assert "cloudpickle" in result.stderr
