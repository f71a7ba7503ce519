"""A kernel that nobody uses rests in the checkpoint store; its user finds it as it was."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

from live_rig import until
from server_rig import Server, Tab, running_server

MARK = "stored"
SHORT = (
    "--NotebookOSApp.hosts=3",
    "--NotebookOSApp.max_hosts=3",
    "--NotebookOSApp.idle_minutes=0.05",
)


def state(server: Server, kernel: str) -> str:
    return str(server.shown_cluster_kernel(kernel)["state"])


def open_notebook(server: Server, folder: Path) -> dict[str, Any]:
    notebook = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (folder / "work.ipynb").write_text(json.dumps(notebook))
    asked = {
        "path": "work.ipynb",
        "name": "work.ipynb",
        "type": "notebook",
        "kernel": {"name": "notebookos"},
    }
    session: dict[str, Any] = server.ask("POST", "api/sessions", asked)
    return session


def test_it_is_stored_seen_as_alive_and_comes_back_also_with_the_next_server(
    tmp_path: Path,
) -> None:
    with running_server(tmp_path, *SHORT, mark=MARK) as server:
        session = open_notebook(server, tmp_path)
        kernel = session["kernel"]["id"]
        with closing(Tab(server, kernel)) as tab:
            tab.run("class Net: pass\nnet = Net(); net.weights = list(range(1000)); alias = net")
            until(lambda: state(server, kernel) == "stored", "a stored kernel")
            assert server.replicas(kernel) == []
            # The page is reloaded: nothing wakes, nothing is dead.
            with closing(Tab(server, kernel)) as reloaded:
                info = reloaded.reply(reloaded.ask("kernel_info_request", {}))
                assert info["language_info"]["name"] == "python"
            assert server.shown(kernel)["execution_state"] == "idle"
            assert state(server, kernel) == "stored"
            assert tab.run("print(len(alias.weights), alias is net)") == "1000 True\n"
            tab.run("net.weights[0] = 'changed'")
        until(lambda: state(server, kernel) == "stored", "it is stored again")
        server.process.kill()
        server.process.wait()
    with running_server(tmp_path, *SHORT, mark=MARK) as server:
        (found,) = server.ask("GET", "api/sessions")
        assert (found["id"], found["kernel"]["id"]) == (session["id"], kernel)
        shown = server.shown_cluster_kernel(kernel)
        assert (shown["state"], shown["replicas"]) == ("stored", [])
        assert shown["stored"]["size_bytes"] > 0
        with closing(Tab(server, kernel)) as tab:
            assert tab.run("print(net.weights[0], alias is net)") == "changed True\n"
        until(lambda: state(server, kernel) == "stored", "it is stored once more")
        server.ask("POST", f"api/kernels/{kernel}/restart")
        with closing(Tab(server, kernel)) as tab:
            assert tab.run("print('net' in globals())") == "False\n"
            tab.run("net = 'new'")
        until(lambda: state(server, kernel) == "stored", "it is stored for the last time")
        server.ask("DELETE", f"api/sessions/{session['id']}")
        until(lambda: not server.ask("GET", "api/kernels"), "the kernel is gone")
    with running_server(tmp_path, *SHORT, mark=MARK) as server:
        assert server.ask("GET", "api/sessions") == []
        assert server.ask("GET", "notebookos/api/cluster")["kernels"] == []
    folder = tmp_path / "data" / "notebookos"
    assert list(folder.glob("hosts/*/kernels/*")) == []
    assert list(folder.glob("kernels/*")) == []
    assert [path for path in (folder / "store").rglob("*") if path.is_file()] == []


def test_a_server_that_is_killed_while_it_brings_a_kernel_back_leaves_it_whole(
    tmp_path: Path,
) -> None:
    never = (*SHORT[:2], "--NotebookOSApp.idle_minutes=0.02")
    with running_server(tmp_path, *never, mark=MARK) as server:
        kernel = server.start_kernel()
        with closing(Tab(server, kernel)) as tab:
            tab.run("numbers = list(range(300_000)); count = 0")
    for count in range(2):
        with running_server(tmp_path, *never, mark=MARK) as server:
            server.ask("GET", "api/kernels")
            until(lambda server=server: state(server, kernel) == "stored", "a stored kernel")
            with closing(Tab(server, kernel)) as tab:
                tab.execute("begun = True")
                until(
                    lambda server=server: state(server, kernel) != "stored",
                    "the way out of the store",
                )
                server.process.kill()
                server.process.wait()
        with running_server(tmp_path, *never, mark=MARK) as server:
            server.ask("GET", "api/kernels")
            with closing(Tab(server, kernel)) as tab:
                assert tab.run("print(len(numbers), count)") == f"300000 {count}\n"
                tab.run("count += 1")
