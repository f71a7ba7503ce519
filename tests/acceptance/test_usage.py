"""What cells took is on record over the restarts of a server, by REST and on the command line."""

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
