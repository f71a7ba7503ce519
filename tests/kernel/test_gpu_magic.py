"""`%%gpu N` vanishes from the cell without moving its lines."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell

from notebookos_ext.kernel.gpu_magic import describe_binding, install, strip_gpu_line


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("x = 1\n", "x = 1\n"),
        ("%%gpu 2\nx = 1\n", "# %%gpu 2\nx = 1\n"),
        ("\n%%gpu 2\nx = 1\n", "\n# %%gpu 2\nx = 1\n"),
        ("# why\n\n%%gpu 2\nx = 1\n", "# why\n\n# %%gpu 2\nx = 1\n"),
        ("# why\n%%gpu 2\n%%time\nx = 1\n", "%%time\nx = 1\n"),
        ("%%gpu\nx = 1\n", "# %%gpu\nx = 1\n"),
        ("%%gpu 2\n%%time\nx = 1\n", "%%time\nx = 1\n"),
        ("%%gpux 2\nx = 1\n", "%%gpux 2\nx = 1\n"),
        ("x = 1\n%%gpu 2\n", "x = 1\n%%gpu 2\n"),
        ("", ""),
    ],
)
def test_the_first_line_goes(cell: str, expected: str) -> None:
    assert "".join(strip_gpu_line(cell.splitlines(keepends=True))) == expected


def test_line_numbers_of_errors_stay() -> None:
    shell = InteractiveShell()
    install(shell)
    result = shell.run_cell("%%gpu 1\n\nx = 1 / 0", silent=True)
    traceback = result.error_in_exec.__traceback__
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    assert traceback.tb_lineno == 3


def test_another_cell_magic_may_follow(capsys: pytest.CaptureFixture[str]) -> None:
    shell = InteractiveShell()
    install(shell)
    assert shell.run_cell("%%gpu 1\n%%capture out\nprint('inner')").success
    assert shell.user_ns["out"].stdout == "inner\n"


def test_the_line_magic_says_where_the_cell_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTEBOOKOS_REPLICA", "k:2")
    monkeypatch.setenv("NOTEBOOKOS_GPUS", "")
    shell = InteractiveShell()
    install(shell)
    assert shell.run_cell("%gpu").success
    assert capsys.readouterr().out == "This cell runs on replica k:2 without GPUs.\n"


@pytest.mark.parametrize(("kind", "words"), [("simulated", "simulated GPUs"), ("cuda", "GPUs")])
def test_simulated_gpus_are_called_so(kind: str, words: str) -> None:
    environ = {
        "NOTEBOOKOS_REPLICA": "k:1",
        "NOTEBOOKOS_GPUS": "a,b",
        "NOTEBOOKOS_GPU_KIND": kind,
    }
    assert describe_binding(environ) == f"This cell runs on replica k:1 with the {words} a, b."
