"""Hosts of a real cluster come when cells need them, and go when nothing has for long enough."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_rig import (
    MovedClock,
    Notebook,
    clocked_cluster,
    gone,
    notebook,
    private_cluster,
    snapshot,
    until,
)

from notebookos_ext.live.backends import local
from notebookos_ext.live.cluster_runtime import ClusterRuntime

KEEP_S = 600.0
SCALED = {"autoscaler": {"least_hosts": 1, "keep_s": KEEP_S, "spread": 0, "active_s": 60}}


def hosts(cluster: ClusterRuntime) -> dict[str, int]:
    """Hosts and the processes of their agents."""
    return {host.id: host.pid for host in snapshot(cluster).hosts if host.state == "ready"}


def rest(cluster: ClusterRuntime, clock: MovedClock, wanted: int) -> None:
    """Nothing happens for long enough that only `wanted` hosts are left."""

    def later() -> bool:
        clock.ahead_s += KEEP_S / 4
        return len(hosts(cluster)) == wanted

    until(later, f"{wanted} hosts are left")


def hold(kernel: Notebook, flag: Path) -> None:
    """A cell with a GPU that ends when the file is there."""
    kernel.submit(
        f"%%gpu 1\nimport pathlib, time\nwhile not pathlib.Path({str(flag)!r}).exists():\n"
        "    time.sleep(0.02)"
    )
    until(lambda: any(cell.state == "running" for cell in kernel.view().cells), "it runs")


def test_a_host_comes_for_a_cell_and_goes_when_it_is_quiet(tmp_path: Path) -> None:
    with (
        clocked_cluster(
            hosts=1, max_hosts=3, replica_count=1, gpus="simulated",
            simulated_gpus_per_host=1, scheduling=SCALED,
        ) as (cluster, clock),
        notebook(cluster) as first,
        notebook(cluster) as second,
    ):  # fmt: skip
        assert len(hosts(cluster)) == 1
        second.run("x = 7")
        flag = tmp_path / "go on"
        hold(first, flag)
        assert second.run("%%gpu 1\nprint(x)").text == "7\n"
        two = hosts(cluster)
        assert len(two) == 2, "the second cell did not wait for the first one"
        flag.touch()
        assert first.reply()["status"] == "ok"
        rest(cluster, clock, 1)
        (kept,) = hosts(cluster)
        (other,) = set(two) - {kept}
        until(lambda: gone(two[other]), "the agent of the other host has ended")
        assert not cluster.folder.host(other).exists()
        assert second.run("%%gpu 1\nprint(x + 1)").text == "8\n"
        assert first.run("%%gpu 1\nprint('still here')").text == "still here\n"
        assert list(hosts(cluster)) == [kept], "what one host can do needs no second one"
        # The same again: its folder and its name are free.
        flag.unlink()
        hold(first, flag)
        assert second.run("%%gpu 1\nprint(x + 2)").text == "9\n"
        assert len(hosts(cluster)) == 2
        flag.touch()
        assert first.reply()["status"] == "ok"


def test_hosts_that_cannot_be_had_are_told_to_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        private_cluster(
            hosts=1, max_hosts=2, replica_count=1, gpus="simulated",
            simulated_gpus_per_host=1, scheduling=SCALED,
        ) as cluster,
        notebook(cluster) as first,
        notebook(cluster) as second,
    ):  # fmt: skip
        broken = tmp_path / "no-interpreter"
        monkeypatch.setattr(local.sys, "executable", str(broken))
        flag = tmp_path / "go on"
        hold(first, flag)
        second.submit("%%gpu 1\nprint('ran')")

        def told() -> bool:
            waiting = snapshot(cluster).waiting
            return bool(waiting) and "no more hosts can be had: host-2" in waiting[0].reason

        until(told, "the reason")
        flag.touch()
        assert first.reply()["status"] == "ok"
        assert second.reply()["status"] == "ok"
