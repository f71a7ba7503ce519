"""What a person may choose about scheduling: every wrong name or value gives one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from notebookos_ext.cluster.options import (
    AutoscalerOptions,
    Options,
    PrewarmOptions,
    PrewarmRule,
    ScalingRule,
    changed,
    check,
)
from notebookos_ext.cluster.scheduler import Scheduler
from notebookos_ext.errors import InvalidSettings

SCALED = Options(migrate=True, autoscaler=AutoscalerOptions(keep_s=60.0))


def test_what_is_not_named_stays() -> None:
    found = changed(SCALED, {"quota": 4, "autoscaler": {"least_hosts": 2, "rule": "committed"}})
    assert found == Options(
        migrate=True,
        quota=4,
        autoscaler=AutoscalerOptions(keep_s=60.0, least_hosts=2, rule=ScalingRule.COMMITTED),
    )


def test_a_part_is_turned_on_and_off() -> None:
    found = changed(SCALED, {"autoscaler": None, "prewarm": {}})
    assert found == Options(migrate=True, prewarm=PrewarmOptions())
    found = changed(SCALED, {"prewarm": {"rule": "littles-law"}})
    assert found.prewarm == PrewarmOptions(rule=PrewarmRule.LITTLES_LAW)


def test_users_have_quotas_and_weights() -> None:
    found = changed(Options(), {"quotas": {"ada": 4}, "weights": {"bob": 0.5}})
    assert check(found, max_hosts=8) == Options(quotas={"ada": 4}, weights={"bob": 0.5})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"qouta": 4}, "there is no option qouta; did you mean quota?"),
        ({"zzz": 4}, "there is no option zzz; there are migrate, rebalance"),
        ({"autoscaler": {"least": 4}}, "no option autoscaler.least; did you mean"),
        ({"prewarm": 3}, "prewarm"),
        ({"quotas": {"ada": "many"}}, "quotas"),
        ({"autoscaler": {"rule": "guess"}}, "autoscaler.rule"),
    ],
)
def test_a_wrong_name_or_kind(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        changed(Options(), changes)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (Options(quota=-1), "quota is -1"),
        (Options(quotas={"ada": -1}), "quotas.ada is -1"),
        (Options(quotas={"": 1}), "quotas names a user ''"),
        (Options(priorities={"ada": 2_000}), "priorities.ada is 2000"),
        (Options(weights={"ada": 0.0}), "weights.ada is 0.0"),
        (Options(weights={"ada": float("nan")}), "weights.ada is nan"),
        (Options(idle_s=-1.0), "idle_s is -1.0"),
        (Options(idle_s=float("inf")), "idle_s is inf"),
        (Options(subscription_limit=float("nan")), "subscription_limit is nan"),
        (Options(moves_most=0), "moves_most is 0"),
        (Options(autoscaler=AutoscalerOptions(least_hosts=9)), "least_hosts is 9 but max_hosts"),
        (Options(autoscaler=AutoscalerOptions(keep_s=-1.0)), "autoscaler.keep_s is -1.0"),
        (Options(autoscaler=AutoscalerOptions(release_most=0)), "autoscaler.release_most is 0"),
        (Options(prewarm=PrewarmOptions(per_host=-1)), "prewarm.per_host is -1"),
        (Options(prewarm=PrewarmOptions(start_s=float("nan"))), "prewarm.start_s is nan"),
    ],
)
def test_a_wrong_value_is_named(options: Options, says: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        Scheduler(options=options)
    assert says in str(raised.value)
