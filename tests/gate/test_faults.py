"""The list of planted faults follows the source: each still fits, and leaves valid Python."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest
from gate.mutants.faults import Fault, FaultMoved, all_faults

PACKAGE = Path(__file__).parents[2] / "notebookos_ext"


@pytest.mark.parametrize("fault", all_faults(), ids=lambda fault: fault.name)
def test_a_fault_fits_the_source(fault: Fault, tmp_path: Path) -> None:
    planted = tmp_path / fault.file
    planted.parent.mkdir(parents=True)
    shutil.copy(PACKAGE / fault.file, planted)
    fault.plant(tmp_path)
    text = planted.read_text(encoding="utf-8")
    ast.parse(text)
    assert text != (PACKAGE / fault.file).read_text(encoding="utf-8")


def test_a_fault_whose_place_has_moved_on_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("value = 1\nvalue = 1\n", encoding="utf-8")
    with pytest.raises(FaultMoved, match="2 times"):
        Fault("twice", "file.py", "", (("value = 1\n", ""),), blind=False).plant(tmp_path)
    with pytest.raises(FaultMoved, match="0 times"):
        Fault("gone", "file.py", "", (("value = 2\n", ""),), blind=False).plant(tmp_path)
