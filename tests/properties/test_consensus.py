"""Whole groups under everything that can happen to them; repeat one by its number.

`pytest "tests/properties/test_consensus.py::test_random_group[17]"`; `make raft-soak` runs more.
"""

from __future__ import annotations

import os

import pytest
from raft_chaos import Chaos

SEEDS = range(int(os.environ.get("NOTEBOOKOS_RAFT_SEEDS", "2000")))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_group(seed: int) -> None:
    Chaos(seed).run()
