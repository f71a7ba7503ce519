"""Which cells get GPUs, from their text and metadata alone."""

from __future__ import annotations

import pytest

from notebookos_ext.cluster.gpu_rule import GpuNeed, needed_gpus, reaches_gpu
from notebookos_ext.errors import InvalidRequest

NAMES = frozenset({"model", "x"})


@pytest.mark.parametrize(
    ("code", "gpus"),
    [
        ("%%gpu 2\nimport math", 2),
        ("%%gpu 0\nimport torch", 0),
        ("\n\n  %%gpu 3  # three", 3),
        ("# a comment first\n%%gpu 1\n1", 1),
        ("%%gpu\t4\n", 4),
    ],
)
def test_the_first_line_wins(code: str, gpus: int) -> None:
    need = needed_gpus(code, {"notebookos": {"gpus": 7}}, 1)
    assert need == GpuNeed(gpus, f"%%gpu {gpus}")


@pytest.mark.parametrize("line", ["%%gpu", "%%gpu two", "%%gpu -1", "%%gpu 1.5", "%%gpu 1 2"])
def test_a_first_line_that_makes_no_sense(line: str) -> None:
    with pytest.raises(InvalidRequest, match="must be followed by a number of GPUs"):
        needed_gpus(line + "\nimport torch", {}, 1)


def test_a_gpu_line_further_down_is_not_a_first_line() -> None:
    assert needed_gpus("1\n%%gpu 2", {}, 0).gpus == 0
    assert needed_gpus("%%gpus 2", {}, 0).gpus == 0
    assert needed_gpus("%%gpu.x 2", {}, 0).gpus == 0


def test_metadata() -> None:
    need = needed_gpus("1", {"notebookos": {"gpus": 2, "replica": 3}}, 0)
    assert need == GpuNeed(2, "the cell's metadata asks for 2", 3)
    assert needed_gpus("import torch", {"notebookos": {"gpus": 0}}, 1).gpus == 0
    assert needed_gpus("import torch", {"notebookos": {"replica": 1}}, 1).gpus == 1
    assert needed_gpus("1", {"notebookos": {}, "tags": []}, 1).gpus == 0


@pytest.mark.parametrize(
    "ours",
    [
        {"gpus": -1},
        {"gpus": "2"},
        {"gpus": 1.0},
        {"gpus": True},
        {"replica": 0},
        {"replica": "1"},
        ["gpus"],
        2,
    ],
)
def test_metadata_that_makes_no_sense(ours: object) -> None:
    with pytest.raises(InvalidRequest, match="metadata") as caught:
        needed_gpus("1", {"notebookos": ours}, 1)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import torch", "imports torch"),
        ("import torch.nn as nn", "imports torch"),
        ("import os, torch", "imports torch"),
        ("from torch.optim import Adam", "imports torch"),
        ("from numba import cuda", "imports numba.cuda"),
        ("import importlib\nimportlib.import_module('jax')", "imports jax"),
        ("t = __import__('cupy')", "imports cupy"),
        ("def f():\n    import tensorflow as tf", "imports tensorflow"),
        ("loss = model(1)", "uses `model`"),
        ("x += 1", "uses `x`"),
        ("del x", "uses `x`"),
        ("print(f'{model}')", "uses `model`"),
        ("%time model.fit()", "uses `model`"),
        ("r = %timeit -o model.fit()", "uses `model`"),
        ("%%time\nmodel.fit()", "uses `model`"),
        ("%matplotlib inline\nmodel.fit()", "uses `model`"),
        ("!ls\nfiles = !ls\nmodel?\nmodel.fit()", "uses `model`"),
        ("if True:\n    %time 1\n    model.fit()", "uses `model`"),
        ("model.fit(  # not finished", "uses `model`"),
        ("import torch\nthis is not python", "imports torch"),
        ("y = (1\n%model)", "uses `model`"),
    ],
)
def test_code_that_reaches_a_framework(code: str, words: str) -> None:
    found = reaches_gpu(code, NAMES)
    assert found is not None
    assert words in found
    assert needed_gpus(code, {}, 2, NAMES).gpus == 2


@pytest.mark.parametrize(
    "code",
    [
        "",
        "1 + 1",
        "import numpy as np",
        "import torchless",
        "import numba",
        "from . import torch",
        "y = 'import torch'",
        "# import torch",
        "model = 3",
        "f(model=3)",
        "y.model",
        "y.x.torch",
        "'model'",
        "%%bash\necho model",
        "%%writefile train.py\nimport torch\nmodel.fit()",
        "model?",
        "!python -m torch.run model",
        "for model in []:\n    pass",
    ],
)
def test_code_that_reaches_none(code: str) -> None:
    assert reaches_gpu(code, NAMES) is None
    need = needed_gpus(code, {}, 2, NAMES)
    assert need.gpus == 0
    assert need.reason == "the code reaches no GPU framework"


def test_a_notebook_without_gpus_is_left_alone() -> None:
    need = needed_gpus("import torch", {}, 0)
    assert need == GpuNeed(0, "the notebook asks for no GPUs")


@pytest.mark.parametrize(
    "code",
    ["model(" * 300, "\0model", "'\\d'\nmodel\\q", "(" * 5_000 + "model", "%%gpu 1\n" + "é" * 9],
)
def test_odd_code_is_no_error(code: str) -> None:
    needed_gpus(code, {}, 1, NAMES)
