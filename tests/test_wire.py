"""The samples of the JSON contract as the server's structs see them; jest reads the same files.

A sample has every field of its shape and no other, so that neither side can change alone.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from notebookos_ext.handlers import models

SAMPLES = Path(__file__).parent / "testdata" / "wire"

SHAPES = {
    "cluster": models.ClusterView,
    "cluster-empty": models.ClusterView,
    "settings-patch": models.KernelSettingsPatch,
    "settings-result": models.KernelSettingsResult,
    "usage": models.UsageView,
    "timeline": models.TimelineView,
    "error": models.ErrorView,
}


def test_every_sample_has_a_shape() -> None:
    assert sorted(path.stem for path in SAMPLES.glob("*.json")) == sorted(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
def test_sample_is_exactly_its_shape(name: str) -> None:
    sample = json.loads((SAMPLES / f"{name}.json").read_text(encoding="utf-8"))
    decoded = msgspec.convert(sample, SHAPES[name])
    assert json.loads(msgspec.json.encode(decoded)) == sample
