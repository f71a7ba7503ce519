"""A kernel's namespace is written into a file and is another kernel's, here and elsewhere."""

from __future__ import annotations

import io
import json
from contextlib import closing
from pathlib import Path

import pytest
from live_rig import until
from server_rig import Tab, running_server

from notebookos_ext.live import cli

MARK = "state-files"
FEW = ("--NotebookOSApp.hosts=3", "--NotebookOSApp.max_hosts=3")


def test_export_and_import(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kept.state"
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    with running_server(here, *FEW, mark=MARK) as server:
        asked = ["--server", server.url, "--token", server.token]
        kernel = server.start_kernel()
        with closing(Tab(server, kernel)) as tab:
            tab.run("class Net: pass\nnet = Net(); net.weights = list(range(1000)); alias = net")
            tab.run("import socket, numpy as np; s = socket.socket(); big = np.arange(10**6)")
            cell = tab.execute("import time\nprint('runs', flush=True)\ntime.sleep(600)")
            tab.output(cell, "runs")
            assert cli.main(["export-state", kernel[:6], str(file), *asked]) == 1
            assert "has not ended" in capsys.readouterr().err
            assert not file.exists()
            server.ask("POST", f"api/kernels/{kernel}/interrupt")
            tab.reply(cell)

            def exported() -> bool:
                return cli.main(["export-state", kernel[:6], str(file), *asked]) == 0

            until(exported, "the file, once the interrupted cell is committed")
            said = capsys.readouterr().out
            assert "variables: Net, alias, big, net, np, socket, time" in said
            assert "left out, because it cannot travel: s" in said
            assert cli.main(["export-state", kernel, str(file), *asked]) == 1
            assert "is there already" in capsys.readouterr().err
            # The kernel goes on as it was.
            assert tab.run("print(s.fileno() > 0, len(alias.weights))") == "True 1000\n"

        monkeypatch.setattr("sys.stdin", io.StringIO("no\n"))
        assert cli.main(["import-state", str(file), *asked]) == 1
        told = capsys.readouterr()
        assert "This installation made it" in told.out
        assert "Loading it runs code" in told.out
        assert "nothing was loaded" in told.err
        assert len(server.ask("GET", "api/kernels")) == 1

    with running_server(there, *FEW, mark=MARK) as server:
        asked = ["--server", server.url, "--token", server.token]
        notebook = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        (there / "new.ipynb").write_text(json.dumps(notebook))
        with_notebook = ["--notebook", "new.ipynb"]
        damaged = tmp_path / "damaged.state"
        content = file.read_bytes()
        damaged.write_bytes(content[:-200] + b"x" + content[-199:])
        for arguments, sentence in (
            ([str(damaged), "--trust"], "is damaged"),
            ([str(tmp_path / "none"), "--trust"], "is not there"),
            ([str(file), "--trust", "--kernel-name", "python3"], "is not replicated"),
            ([str(file), "--trust", "--notebook", "other.ipynb"], "there is no notebook"),
        ):
            assert cli.main(["import-state", *arguments, *asked]) == 1
            assert sentence in capsys.readouterr().err
        assert server.ask("GET", "notebookos/api/cluster")["kernels"] == []
        assert cli.main(["import-state", str(file), "--trust", *with_notebook, *asked]) == 0
        assert "It was not made by this installation." in capsys.readouterr().out
        (session,) = server.ask("GET", "api/sessions")
        assert session["path"] == "new.ipynb"
        kernel = session["kernel"]["id"]
        assert server.shown_cluster_kernel(kernel)["state"] == "stored"
        assert cli.main(["import-state", str(file), "--trust", *with_notebook, *asked]) == 1
        assert "has a kernel; shut it down first" in capsys.readouterr().err
        with closing(Tab(server, kernel)) as tab:
            look = "print(len(net.weights), alias is net, int(big.sum()), type(net).__name__)"
            assert tab.run(look) == "1000 True 499999500000 Net\n"
            assert "socket" in tab.run("try: s.fileno()\nexcept Exception as e: print(repr(e))")
            tab.run("net.weights = 'changed'")
            assert tab.run("print(alias.weights)") == "changed\n"
        server.wait_for_replicas(kernel)
    with running_server(there, *FEW, mark=MARK) as server:
        server.ask("GET", "api/sessions")
        with closing(Tab(server, kernel)) as tab:
            assert tab.run("print(net.weights)") == "changed\n"
