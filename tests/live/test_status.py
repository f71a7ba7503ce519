"""What `jupyter notebookos status` says of the checkpoint store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from notebookos_ext.live.cli import status

SAMPLES = Path(__file__).resolve().parent.parent / "testdata" / "wire"


def report(name: str) -> str:
    cluster: dict[str, Any] = json.loads((SAMPLES / f"{name}.json").read_text(encoding="utf-8"))
    return "\n".join(status._report("http://localhost:8888/", cluster))


@pytest.mark.parametrize(("name", "told"), [("cluster", True), ("cluster-empty", False)])
def test_a_store_that_does_not_work_is_told(name: str, told: bool) -> None:
    assert (
        "The checkpoint store does not work: the checkpoint store s3://" in report(name)
    ) == told
