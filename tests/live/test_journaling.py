"""What a live cluster did is decided the same way when its journal is replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_rig import notebook, private_cluster

from notebookos_ext.cluster.events import Ticked
from notebookos_ext.cluster.options import Options
from notebookos_ext.errors import StorageError
from notebookos_ext.live.journaling import Journaling
from notebookos_ext.simulation.replay import replay
from notebookos_ext.storage.journal import VERSION, JournalHead, JournalWriter


def test_a_live_run_replays(tmp_path: Path) -> None:
    journal = tmp_path / "run.journal"
    with (
        private_cluster(hosts=3, max_hosts=3, journal_file=str(journal)) as cluster,
        notebook(cluster) as kernel,
    ):
        kernel.wait_for_replicas()
        assert kernel.run("x = 1").status == "ok"
        assert kernel.run("%%gpu 1\nx").status == "ok"
        kernel.kill_executor()
        assert kernel.run("print(x)").text == "1\n"
    (life,) = replay(journal, check_all=True)
    assert life.differing == []
    assert life.figures().cells == 3


def test_a_full_journal_is_told_once_and_keeps_nothing_from_running(tmp_path: Path) -> None:
    head = JournalHead(VERSION, "replicated", 8, Options(), 0.0)
    said: list[str] = []
    writer = JournalWriter(tmp_path / "small", head, max_bytes=250)
    journaling = Journaling(writer, warn=said.append)
    for number in range(50):
        journaling.observe(Ticked(float(number)), [])
    journaling.close()
    (sentence,) = said
    assert "is full; it ends here" in sentence


def test_a_journal_that_cannot_be_written_keeps_the_cluster_from_starting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(StorageError, match="cannot write the journal"),
        private_cluster(hosts=1, journal_file=str(tmp_path / "file" / "journal")),
    ):
        pass
