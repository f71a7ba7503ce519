"""The account of a cluster, from the scheduler's events to what is asked of it."""

from __future__ import annotations

from pathlib import Path

from builders import Cluster

from notebookos_ext.cluster import actions as a
from notebookos_ext.cluster import events as e
from notebookos_ext.live.accounting import Accounting


def test_gpus_that_were_there_and_bound_are_told_over_time(tmp_path: Path) -> None:
    cluster = Cluster(hosts=0)
    account = Accounting(
        tmp_path / "usage.sqlite3", view=cluster.scheduler.view, user="ada", warn=print
    )
    plain = cluster.do

    def do(event: e.Event) -> list[a.Action]:
        actions = plain(event)
        account.observe(event, actions)
        return actions

    cluster.do = do  # type: ignore[method-assign]
    cluster.join("host-1", 4)
    cluster.kernel("k", 1)
    cluster.now = 10.0
    cluster.run("c", 2)
    cluster.now = 20.0
    cluster.closed("c")
    cluster.now = 30.0
    cluster.released("c")
    cluster.now = 40.0
    cluster.join("host-2", 4)
    cluster.tick(10.0)
    account.close(50.0)

    account = Accounting(
        tmp_path / "usage.sqlite3", view=cluster.scheduler.view, user="ada", warn=print
    )
    points = account.timeline(since=0.0, until=50.0, points=5).result()
    account.close(50.0)
    assert [point.provisioned for point in points] == [4.0, 4.0, 4.0, 4.0, 8.0]
    assert [point.bound for point in points] == [0.0, 2.0, 2.0, 0.0, 0.0]
