"""The command line against a server: what cells took, over its restarts; moves and drains."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from live_rig import until
from server_rig import Server, Tab, running_server

from notebookos_ext.live import cli


def sums(server: Server) -> dict[str, float]:
    found: dict[str, float] = server.ask("GET", "notebookos/api/usage")["total"]
    return found


def test_usage_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_server(tmp_path, "--NotebookOSApp.user=ada", mark="usage") as server:
        tab = Tab(server, server.start_kernel())
        tab.run("x = 1")
        tab.run("%%gpu 2\nx")
        tab.close()
        # Released after the reply.
        until(lambda: sums(server)["gpu_seconds_bound"], "the GPU cell is on record")
        before = sums(server)
    assert (before["cells"], before["gpu_cells"]) == (2, 1)
    with running_server(tmp_path, "--NotebookOSApp.user=ada", mark="usage") as server:
        after = sums(server)
        assert (after["cells"], after["gpu_seconds_bound"]) == (2, before["gpu_seconds_bound"])
        # The kernel was stopped with its server, so that a reservation would hold two GPUs so long.
        assert after["gpu_seconds_saved"] > 0
        asked = ["usage", "--by", "user", "--server", server.url, "--token", server.token]
        assert cli.main([*asked, "--since", "1h", "--csv"]) == 0
        (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
        assert (row["name"], row["cells"], row["gpu_cells"]) == ("ada", "2", "1")
        assert cli.main(asked) == 0
        shown = capsys.readouterr().out
        assert "ada" in shown
        assert "(all)" in shown
        assert cli.main([*asked, "--since", "yesterday"]) == 1
        assert "--since is 'yesterday'; give a date" in capsys.readouterr().err


def test_moves_and_drains_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--NotebookOSApp.hosts=2", "--NotebookOSApp.max_hosts=2")
    with running_server(tmp_path, *few, "--NotebookOSApp.replica_count=1", mark="moves") as server:
        kernel = server.start_kernel()
        server.wait_for_replicas(kernel, 1)
        until(lambda: len(server.ask("GET", "notebookos/api/cluster")["hosts"]) == 2, "two hosts")

        def host() -> str:
            shown = server.shown_cluster_kernel(kernel)
            return str(shown["replicas"][0]["host_id"]) if shown["migration"] is None else ""

        asked = ["--server", server.url, "--token", server.token]
        first = host()
        assert cli.main(["migrate", kernel[:6], *asked]) == 0
        assert f"replica 1 of {kernel} moves to host-" in capsys.readouterr().out
        second = until(lambda: (found := host()) != first and found, "the replica elsewhere")
        assert cli.main(["drain", second, *asked]) == 0
        assert f"{second} takes nothing new" in capsys.readouterr().out
        until(lambda: host() == first, "the replica back again")
        assert cli.main(["drain", second, "--cancel", *asked]) == 0
        # While a member is on its way from host to host it is not known what its log needs.
        until(lambda: cli.main(["sweep", "--dry-run", *asked]) == 0, "a sweep")
        assert "0 chunks (0.0 MB) would go" in capsys.readouterr().out
        assert cli.main(["migrate", kernel, "--to", first, *asked]) == 1
        assert f"{first} has a replica of the kernel already" in capsys.readouterr().err
        assert cli.main(["migrate", "nonsense", *asked]) == 1
        assert "no kernel has an id that begins with nonsense" in capsys.readouterr().err
