"""A cluster whose logs the published raftos keeps: it works, and says that it is not durable."""

from __future__ import annotations

import importlib.metadata

import pytest
from live_rig import notebook, private_cluster, snapshot, until

from notebookos_ext.agent.raftos_members import require_raftos
from notebookos_ext.errors import InvalidSettings


def test_cells_run_and_the_user_is_warned() -> None:
    with private_cluster(consensus_engine="raftos") as runtime, notebook(runtime) as kernel:
        assert kernel.run("x = [1]; y = x").status == "ok"
        kernel.wait_for_replicas()
        kernel.kill_executor()
        assert kernel.run("y.append(2); print(x)").text == "[1, 2]\n"
        assert not snapshot(runtime).durable
        warning = until(
            lambda: next((w for w in snapshot(runtime).warnings if "raftos" in w.message), None),
            "a warning about raftos",
        )
        assert "may lose what it has acknowledged" in warning.message


@pytest.mark.parametrize(
    ("installed", "reason"),
    [
        (
            {"msgpack": "1.1"},
            "raftos is not installed in .*; run jupyter notebookos install-raftos",
        ),
        ({"raftos": "0.2.6"}, "msgpack is not installed"),
        ({"raftos": "0.3.0", "msgpack": "1.1"}, r"version 0\.3\.0 of it is installed, not 0\.2\.6"),
    ],
)
def test_an_engine_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], reason: str
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(InvalidSettings, match=reason):
        require_raftos()
