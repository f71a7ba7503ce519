"""Every wrong setting gives one sentence that names it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from notebookos_ext import settings
from notebookos_ext.cluster import model
from notebookos_ext.cluster.policies import POLICIES
from notebookos_ext.errors import InvalidSettings
from notebookos_ext.notebook_settings import NotebookSettings, asked_by
from notebookos_ext.settings import Settings, reject_unknown


def test_the_defaults_are_valid() -> None:
    assert Settings().validate() == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hosts", 0),
        ("hosts", 65),
        ("hosts", True),
        ("max_hosts", 3),
        ("replica_count", 2),
        ("replica_count", True),
        ("gpus_per_cell", -1),
        ("gpus", "nvidia"),
        ("simulated_gpus_per_host", 65),
        ("policy", "lottery"),
        ("scheduling", ["quota=x", "nonsense"]),
        ("executor_preference", "best"),
        ("consensus_engine", "paxos"),
        ("sync", "never"),
        ("reply_budget_ms", -1),
        ("lease_s", 1.0),
        ("idle_minutes", -1),
        ("poll_s", 0.0),
        ("preload", ("numpy", "not a module")),
    ],
)
def test_a_wrong_value_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidSettings, match=name):
        dataclasses.replace(Settings(), **{name: value}).validate()


def test_a_misspelt_name_is_answered_with_the_right_one() -> None:
    with pytest.raises(InvalidSettings, match="did you mean replica_count"):
        reject_unknown(["replica_cuont"], settings.names(), where="NotebookOSApp")


def test_a_name_like_no_other_is_answered_with_all() -> None:
    with pytest.raises(
        InvalidSettings, match="there are checkpoint_store, compact_bytes, compact_entries"
    ):
        reject_unknown(["zzz"], settings.names(), where="NotebookOSApp")


def test_known_names_pass() -> None:
    reject_unknown(settings.names(), settings.names(), where="NotebookOSApp")


def test_the_choices_are_those_of_the_cluster() -> None:
    assert settings.REPLICA_COUNTS == model.REPLICA_COUNTS
    assert {choice.value for choice in model.ExecutorPreference} == set(settings.PREFERENCES)
    assert set(settings.POLICIES) == set(POLICIES)


def test_a_notebook_that_asks_for_nothing() -> None:
    assert asked_by({}, where="a.ipynb") == NotebookSettings()


def test_what_a_notebook_asks_for() -> None:
    metadata = {"notebookos": {"replica_count": 5, "gpus_per_cell": 2}}
    assert asked_by(metadata, where="a.ipynb") == NotebookSettings(5, 2)


def test_all_that_a_notebook_can_ask_for() -> None:
    asked = {
        "replica_count": 3,
        "gpus_per_cell": 0,
        "gpu_type": " H200 ",
        "gpu_memory_gib": 80,
        "memory_gib": 0.5,
        "sync": "after-reply",
        "gpu_wait_s": 30,
        "ran": "what others keep there is left alone",
    }
    found = asked_by({"notebookos": asked}, where="a.ipynb")
    assert found == NotebookSettings(3, 0, "H200", 80.0, 0.5, "after-reply", 30.0)
    assert (found.gpu_memory_bytes, found.memory_bytes) == (80 * 2**30, 2**29)


def test_only_what_is_newly_asked_for_is_news() -> None:
    before = NotebookSettings(3, 1, sync="after-reply")
    assert NotebookSettings(3, 2).news(before) == NotebookSettings(gpus_per_cell=2)
    assert before.news(before) == NotebookSettings()


@pytest.mark.parametrize(
    "asked",
    [
        "many",
        {"replica_count": 4},
        {"replica_count": "3"},
        {"replica_count": True},
        {"replica_count": 3.0},
        {"gpus_per_cell": -1},
        {"gpus_per_cell": 1.5},
        {"gpus_per_cell": [1]},
        {"gpu_type": 200},
        {"gpu_type": "H\n200"},
        {"gpu_memory_gib": -1},
        {"gpu_memory_gib": float("nan")},
        {"memory_gib": True},
        {"memory_gib": "64"},
        {"sync": "never"},
        {"gpu_wait_s": 1e9},
    ],
)
def test_a_notebook_that_asks_for_the_impossible_is_named(asked: object) -> None:
    with pytest.raises(InvalidSettings, match=r"train\.ipynb"):
        asked_by({"notebookos": asked}, where="train.ipynb")
