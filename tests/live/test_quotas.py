"""How many GPUs one user's cells may hold at once, in a real cluster."""

from __future__ import annotations

from pathlib import Path

from live_rig import Notebook, notebook, private_cluster, snapshot, until


def hold(kernel: Notebook, flag: Path) -> None:
    """A cell with a GPU that ends when the file is there."""
    kernel.submit(
        f"%%gpu 1\nimport pathlib, time\nwhile not pathlib.Path({str(flag)!r}).exists():\n"
        "    time.sleep(0.02)"
    )
    until(lambda: any(cell.state == "running" for cell in kernel.view().cells), "it runs")


def test_a_user_who_holds_enough_waits_and_is_told_why(tmp_path: Path) -> None:
    with (
        private_cluster(
            hosts=1, max_hosts=1, replica_count=1, gpus="simulated",
            simulated_gpus_per_host=2, user="ada", scheduling={"quotas": {"ada": 1}},
        ) as cluster,
        notebook(cluster) as first,
        notebook(cluster) as second,
    ):  # fmt: skip
        flag = tmp_path / "go on"
        hold(first, flag)
        second.submit("%%gpu 1\nprint('ran')")
        (waiting,) = until(lambda: snapshot(cluster).waiting, "it waits")
        assert waiting.reason == "waits for cells of ada to end, who holds 1 of at most 1 GPU"
        # What needs no GPU waits for nobody.
        assert first.view().id != second.view().id
        flag.touch()
        assert first.reply()["status"] == "ok"
        assert second.reply()["status"] == "ok"
        refused = second.run("%%gpu 2\nprint('never')")
        assert refused.status == "error"
        assert "ada may hold only 1 at once" in refused.error
