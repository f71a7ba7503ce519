"""What the scheduler of a live cluster may do, from its settings."""

from __future__ import annotations

from typing import Any

import pytest

from notebookos_ext.cluster.options import (
    AutoscalerOptions,
    Options,
    ScalingRule,
    WithoutMajority,
)
from notebookos_ext.errors import InvalidSettings
from notebookos_ext.live.scheduling import scheduler_options
from notebookos_ext.settings import Settings


def options(scheduling: dict[str, Any], **settings: Any) -> Options:
    return scheduler_options(Settings(scheduling=scheduling, **settings), boot_s=5.0)


def test_without_a_choice_replicas_move_and_the_rest_is_off() -> None:
    assert options({}) == Options(migrate=True)


def test_the_autoscaler_knows_its_backend_and_keeps_the_first_hosts() -> None:
    assert options({"autoscaler": {}}, hosts=3).autoscaler == AutoscalerOptions(
        least_hosts=3, boot_s=5.0, gpus_per_host=0
    )
    chosen = options({"autoscaler": {"least_hosts": 1, "boot_s": 90}}).autoscaler
    assert chosen == AutoscalerOptions(least_hosts=1, boot_s=90.0, gpus_per_host=0)


def test_reserved_hosts_follow_the_reservations() -> None:
    found = options({"autoscaler": {}}, policy="reservation")
    assert found.autoscaler is not None
    assert found.autoscaler.rule is ScalingRule.RESERVED
    assert not found.migrate


@pytest.mark.parametrize(
    ("scheduling", "says"),
    [
        ({"rebalance": True}, "scheduling.rebalance is on"),
        ({"hints": False}, "nobody to elect"),
    ],
)
def test_what_a_policy_does_not_do_is_refused(scheduling: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSettings, match=says):
        options(scheduling, policy="reservation")


def test_idle_kernels_are_stored_after_what_either_setting_says() -> None:
    assert options({}, idle_minutes=1.5).idle_s == 90.0
    assert options({"idle_s": 30}).idle_s == 30.0
    assert options({}, policy="batch").idle_s == 60.0
    assert options({}, policy="batch", idle_minutes=2).idle_s == 120.0
    with pytest.raises(InvalidSettings, match="set only one of them"):
        options({"idle_s": 30}, idle_minutes=1)


def test_what_becomes_of_a_kernel_without_a_majority_is_chosen() -> None:
    chosen = options({"without_majority": "continue", "majority_grace_s": 5})
    assert chosen.without_majority is WithoutMajority.CONTINUE
    assert chosen.majority_grace_s == 5
    with pytest.raises(InvalidSettings, match="without_majority"):
        options({"without_majority": "hope"})
    with pytest.raises(InvalidSettings, match="majority_grace_s is -1"):
        options({"majority_grace_s": -1})
    with pytest.raises(InvalidSettings, match="raftos can found no group"):
        options({"without_majority": "continue"}, consensus_engine="raftos")


def test_more_hosts_than_there_may_be_are_refused() -> None:
    with pytest.raises(InvalidSettings, match="max_hosts is 8"):
        options({"autoscaler": {"least_hosts": 9}})
