"""One kernel to the outside, three replicas inside: real agents, replicas and clients."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_rig import HANG_S, Notebook, gone, notebook, private_cluster, snapshot, until

from notebookos_ext.live.cluster_runtime import ClusterRuntime


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterRuntime]:
    with private_cluster(hosts=3, max_hosts=3) as runtime:
        yield runtime


@pytest.fixture
def kernel(cluster: ClusterRuntime) -> Iterator[Notebook]:
    with notebook(cluster) as opened:
        yield opened


def test_cells_run_and_are_shown(kernel: Notebook) -> None:
    assert kernel.run("a = [1, 2]; print('hello')").text == "hello\n"
    assert kernel.run("a").text == "[1, 2]"
    view = kernel.wait_for_replicas()
    assert {r.host_id for r in view.replicas} == {"host-1", "host-2", "host-3"}
    newest = view.cells[0]
    assert (newest.code, newest.state, newest.gpus) == ("a", "done", 0)
    assert newest.replica_id == kernel.executor().id


def test_every_cell_may_run_on_another_replica(cluster: ClusterRuntime) -> None:
    with notebook(cluster, NOTEBOOKOS_EXECUTOR="rotate") as kernel:
        kernel.wait_for_replicas()
        assert kernel.run("a = [0]; b = a").status == "ok"
        ran_on = {kernel.executor().id}
        for number in range(1, 5):
            kernel.wait_for_replicas()
            assert kernel.run(f"b.append({number}); print(a, a is b)").text == (
                f"{list(range(number + 1))} True\n"
            )
            ran_on.add(kernel.executor().id)
        assert len(ran_on) > 1


def test_an_executor_killed_between_cells_takes_nothing_along(kernel: Notebook) -> None:
    kernel.wait_for_replicas()
    assert kernel.run("value = {'x': 1}").status == "ok"
    killed = kernel.executor().id
    kernel.kill_executor()
    assert kernel.run("print(value)").text == "{'x': 1}\n"
    assert kernel.executor().id != killed
    kernel.wait_for_replicas()


def test_an_executor_killed_right_after_its_reply_takes_nothing_along(kernel: Notebook) -> None:
    kernel.wait_for_replicas()
    assert kernel.run("import os, signal; pid = os.getpid()").status == "ok"
    pid = kernel.executor().pid
    assert pid is not None
    kernel.submit("other = 'kept'", silent=False)
    reply = kernel.reply()
    os.kill(pid, signal.SIGKILL)
    assert reply["status"] == "ok"
    assert kernel.run("print(other)").text == "kept\n"
    kernel.wait_for_replicas()


def test_an_executor_killed_in_its_cell_ends_it_with_an_error(kernel: Notebook) -> None:
    kernel.wait_for_replicas()
    assert kernel.run("before = 1").status == "ok"
    ran = kernel.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert ran.status == "error"
    assert ran.error.startswith("ExecutorLost: ")
    assert "signal 9" in ran.error
    assert kernel.run("print(before)").text == "1\n"
    assert kernel.view().cells[1].state == "lost"
    kernel.wait_for_replicas()


def test_a_replica_that_exits_is_brought_back(kernel: Notebook) -> None:
    kernel.wait_for_replicas()
    ran = kernel.run("import os; os._exit(3)")
    assert ran.error.startswith("ExecutorLost: ")
    kernel.wait_for_replicas()
    assert kernel.run("print('on')").text == "on\n"


def test_a_lost_host_comes_back_with_its_replicas(
    cluster: ClusterRuntime, kernel: Notebook
) -> None:
    kernel.wait_for_replicas()
    assert kernel.run("x = 5").status == "ok"
    host = kernel.executor().host_id
    agent = next(h.pid for h in snapshot(cluster).hosts if h.id == host)
    os.kill(agent, signal.SIGKILL)
    assert kernel.run("print(x)").text == "5\n"
    until(
        lambda: all(h.state == "ready" for h in snapshot(cluster).hosts),
        "all hosts are ready again",
    )
    kernel.wait_for_replicas()
    assert kernel.run("print(x)").text == "5\n"


def test_interrupt_ends_the_cell_and_nothing_else(kernel: Notebook) -> None:
    kernel.run("x = 1")
    kernel.submit("import time\nprint('in')\nwhile True: time.sleep(0.01)")
    until_text(kernel, "in\n")
    kernel.manager.interrupt_kernel()
    reply = kernel.reply()
    assert reply["ename"] == "KeyboardInterrupt"
    assert kernel.run("print(x)").text == "1\n"


def test_restart_empties_the_namespace_and_keeps_the_ports(kernel: Notebook) -> None:
    kernel.run("x = 1")
    ports = kernel.manager.get_connection_info()
    kernel.manager.restart_kernel()
    assert kernel.manager.get_connection_info() == ports
    kernel.client.wait_for_ready(timeout=HANG_S)
    assert kernel.run("x").error.startswith("NameError")
    assert kernel.run("1 + 1").text == "2"
    assert kernel.view().epoch == 1
    kernel.wait_for_replicas()
    assert kernel.run("y = 2").status == "ok"
    kernel.kill_executor()
    assert kernel.run("print(y, 'x' in dir())").text == "2 False\n"


def test_a_restart_in_mid_cell_aborts_it(kernel: Notebook) -> None:
    kernel.submit("import time\nprint('in')\ntime.sleep(600)")
    until_text(kernel, "in\n")
    kernel.manager.restart_kernel(now=True)
    kernel.client.wait_for_ready(timeout=HANG_S)
    assert kernel.run("1 + 1").text == "2"


def test_input_is_answered_by_the_client(kernel: Notebook) -> None:
    kernel.submit("print('got', input('name? '))", allow_stdin=True)
    asked = kernel.client.get_stdin_msg(timeout=HANG_S)
    assert asked["content"]["prompt"] == "name? "
    kernel.client.input("Ada")
    assert until_text(kernel, "got Ada\n")
    assert kernel.reply()["status"] == "ok"


def test_shutdown_leaves_no_replica(cluster: ClusterRuntime) -> None:
    with notebook(cluster) as kernel:
        pids = [r.pid for r in kernel.wait_for_replicas().replicas]
    assert all(pid is None or until(lambda pid=pid: gone(pid), "its end") for pid in pids)
    assert snapshot(cluster).kernels == ()


def test_a_client_that_asks_for_shutdown_gets_it(cluster: ClusterRuntime) -> None:
    with notebook(cluster) as kernel:
        pids = [r.pid for r in kernel.wait_for_replicas().replicas]
        kernel.client.shutdown()
        assert until(lambda: not kernel.manager.is_alive(), "the manager sees it ended")
        assert all(pid is None or until(lambda pid=pid: gone(pid), "its end") for pid in pids)


def test_what_a_notebook_asks_for_is_read_at_the_start(
    cluster: ClusterRuntime, tmp_path: Path
) -> None:
    path = tmp_path / "one.ipynb"
    path.write_text(json.dumps({"metadata": {"notebookos": {"replica_count": 1}}, "cells": []}))
    with notebook(cluster, JPY_SESSION_NAME=str(path)) as kernel:
        assert kernel.run("print(1)").text == "1\n"
        assert len(kernel.view().replicas) == 1
        assert kernel.view().notebook_path == str(path)


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"NOTEBOOKOS_REPLICAS": "2"}, "NOTEBOOKOS_REPLICAS asks for 2 replicas"),
        ({"NOTEBOOKOS_REPLICAS": "5"}, "5"),
        ({"NOTEBOOKOS_EXECUTOR": "best"}, "must be last or rotate"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_leaves_nothing(
    cluster: ClusterRuntime, environment: dict[str, str], sentence: str
) -> None:
    from jupyter_client.manager import KernelManager

    from notebookos_ext.errors import InvalidRequest

    manager = KernelManager(kernel_name="notebookos")
    with pytest.raises(InvalidRequest, match=sentence):
        manager.start_kernel(env={**os.environ, **environment})
    assert not manager.has_kernel
    assert not Path(manager.connection_file).exists()
    assert snapshot(cluster).kernels == ()


def until_text(kernel: Notebook, text: str) -> bool:
    """Read outputs until a stream said `text`."""
    while True:
        message = kernel.client.get_iopub_msg(timeout=HANG_S)
        if message["msg_type"] == "stream" and message["content"]["text"] == text:
            return True
