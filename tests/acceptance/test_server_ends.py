"""A server ends, orderly or not, and the next one has its kernels, sessions and variables."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from live_rig import until
from server_rig import Server, Tab, running_server

MARK = "ends"
FEW = ("--NotebookOSApp.hosts=3", "--NotebookOSApp.max_hosts=3")


def open_notebook(server: Server, folder: Path, name: str = "work.ipynb") -> dict[str, Any]:
    notebook = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (folder / name).write_text(json.dumps(notebook))
    asked = {"path": name, "name": name, "type": "notebook", "kernel": {"name": "notebookos"}}
    session: dict[str, Any] = server.ask("POST", "api/sessions", asked)
    return session


@pytest.mark.parametrize("how", ["killed", "orderly"])
def test_the_next_server_has_the_notebook_with_its_variables(tmp_path: Path, how: str) -> None:
    with running_server(tmp_path, *FEW, mark=MARK) as server:
        session = open_notebook(server, tmp_path)
        kernel = session["kernel"]["id"]
        with closing(Tab(server, kernel)) as tab:
            tab.run("class Net: pass\nnet = Net(); net.weights = list(range(1000)); alias = net")
            tab.run("net.weights[0] = 'changed'")
        server.ask("PATCH", f"api/sessions/{session['id']}", {"path": "renamed.ipynb"})
        if how == "killed":
            server.process.kill()
            server.process.wait()
    with running_server(tmp_path, *FEW, mark=MARK) as server:
        (found,) = server.ask("GET", "api/sessions")
        assert (found["id"], found["kernel"]["id"]) == (session["id"], kernel)
        assert found["path"] == "renamed.ipynb"
        assert [each["id"] for each in server.ask("GET", "api/kernels")] == [kernel]
        with closing(Tab(server, kernel)) as tab:
            look = "print(net.weights[0], len(alias.weights), alias is net)"
            assert tab.run(look) == "changed 1000 True\n"
            tab.run("more = 1")
        cluster = server.ask("GET", "notebookos/api/cluster")
        assert "restored from its log" in cluster["warnings"][0]["message"]
        server.process.kill()
        server.process.wait()
    # Once more: attempts of the third life come after those of the second.
    with running_server(tmp_path, *FEW, mark=MARK) as server:
        server.ask("GET", "api/sessions")
        with closing(Tab(server, kernel)) as tab:
            assert tab.run("print(more, net.weights[0])") == "1 changed\n"
        server.ask("DELETE", f"api/sessions/{session['id']}")
        until(lambda: not server.ask("GET", "api/kernels"), "the kernel is gone")
    with running_server(tmp_path, *FEW, mark=MARK) as server:
        assert server.ask("GET", "api/sessions") == []
        assert server.ask("GET", "notebookos/api/cluster")["kernels"] == []
    state = tmp_path / "data" / "notebookos"
    assert list(state.glob("hosts/*/kernels/*")) == []
    assert list(state.glob("kernels/*")) == []


def test_a_cell_that_ran_when_the_server_was_killed_is_lost_and_nothing_else(
    tmp_path: Path,
) -> None:
    with running_server(tmp_path, *FEW, mark=MARK) as server:
        kernel = server.start_kernel()
        with closing(Tab(server, kernel)) as tab:
            tab.run("done = 1")
            code = "import time\nhalf = 1\nprint('runs', flush=True)\ntime.sleep(600)"
            tab.output(tab.execute(code), "runs")
        server.process.kill()
        server.process.wait()
    with running_server(tmp_path, *FEW, mark=MARK) as server:
        server.ask("GET", "api/kernels")
        with closing(Tab(server, kernel)) as tab:
            assert tab.run("print(done, 'half' in globals())") == "1 False\n"


def test_kernels_are_not_kept_when_the_settings_say_so(tmp_path: Path) -> None:
    never = (*FEW, "--NotebookOSApp.keep_kernels_days=0")
    with (
        running_server(tmp_path, *never, mark=MARK) as server,
        closing(Tab(server, server.start_kernel())) as tab,
    ):
        tab.run("x = 1")
    state = tmp_path / "data" / "notebookos"
    assert list(state.glob("hosts/*/kernels/*")) == []
    assert list((state / "store").glob("chunks/*/*")) == []
    with running_server(tmp_path, *never, mark=MARK) as server:
        assert server.ask("GET", "api/kernels") == []
