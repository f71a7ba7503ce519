"""A kernel whose hosts are lost goes on by the command line, and over the end of its server."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from live_rig import until
from server_rig import Server, Tab, running_server

from notebookos_ext.live import cli

MARK = "unprotected"
FEW = (
    "--NotebookOSApp.hosts=3",
    "--NotebookOSApp.max_hosts=3",
    "--NotebookOSApp.scheduling=majority_grace_s=0.5",
)


def hosts(server: Server) -> dict[str, Any]:
    return {h["id"]: h for h in server.ask("GET", "notebookos/api/cluster")["hosts"]}


def logs(folder: Path, kernel: str) -> set[str]:
    """The groups of the kernel of which the host in this folder has a log."""
    return {path.parent.name for path in folder.glob(f"kernels/{kernel}/*/member.wal")}


def test_what_went_on_alone_is_what_the_next_server_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "data" / "notebookos" / "hosts"
    with running_server(tmp_path, *FEW, mark=MARK) as server:
        asked = ["--server", server.url, "--token", server.token]
        kernel = server.start_kernel()
        server.wait_for_replicas(kernel)
        with closing(Tab(server, kernel)) as tab:
            tab.run("x = [1]")
            assert cli.main(["continue", kernel[:6], *asked]) == 1
            assert "enough of its members are there" in capsys.readouterr().err
            shown = server.shown_cluster_kernel(kernel)["replicas"]
            survivor = next(r["host_id"] for r in shown if r["executor"])
            old = logs(state / survivor, kernel)
            lost = [host for host in hosts(server) if host != survivor]
            for host in lost:
                pid = hosts(server)[host]["pid"]
                (state / host).rename(tmp_path / host)
                (state / host).touch()
                os.kill(pid, signal.SIGKILL)
            until(
                lambda: (
                    server.shown_cluster_kernel(kernel)["can_continue"]
                    and server.shown_cluster_kernel(kernel)["majority_lost"]
                ),
                "a kernel that says that it can go on",
            )
            assert cli.main(["continue", kernel[:6], *asked]) == 0
            assert "goes on with what is left" in capsys.readouterr().out
            told = tab.run("x.append(2); print(x)")
            assert told.startswith("NotebookOS: the kernel goes on unprotected")
            assert told.endswith("[1, 2]\n")
        server.process.kill()
        server.process.wait()
    # The next server finds the old logs, too, and which group it was that went on.
    for host in lost:
        (state / host).unlink()
        (tmp_path / host).rename(state / host)
        assert logs(state / host, kernel) == old
    with running_server(tmp_path, *FEW, mark=MARK) as server:
        server.ask("GET", "api/sessions")
        with closing(Tab(server, kernel)) as tab:
            assert tab.run("x.append(3); print(x)").endswith("[1, 2, 3]\n")
            # It goes on getting its replicas back.
            server.wait_for_replicas(kernel)
            (now,) = {frozenset(logs(state / host, kernel)) for host in hosts(server)}
            assert len(now) == 1
            assert not now & old
            assert tab.run("print(x)") == "[1, 2, 3]\n"
        server.ask("DELETE", f"api/kernels/{kernel}")
