"""What the tests take for a disk without power keeps what was flushed, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import power_cut

WRITER = """
import os, sys
from pathlib import Path
from power_cut import keep_flushed

files = Path(sys.argv[1])
keep_flushed(files, Path(sys.argv[2]))

def flush(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)

for step in sys.argv[3:]:
    action, _, name = step.partition(" ")
    if action == "write":
        with (files / name).open("a") as file:
            file.write("x")
    elif action == "flush":
        flush(files / name)
    elif action == "folder":
        (files / name).mkdir()
    elif action == "rename":
        (files / name).rename(files / "renamed")
    elif action == "delete":
        (files / name).unlink()
os.kill(os.getpid(), 9)
"""


def after(folder: Path, *steps: str) -> dict[str, str]:
    """What is there when a process has done all this, was killed, and the power failed."""
    files, kept = folder / "files", folder / "kept"
    environment = os.environ | {"PYTHONPATH": str(Path(power_cut.__file__).parent)}
    subprocess.run(
        [sys.executable, "-c", WRITER, str(files), str(kept), *steps], check=False, env=environment
    )
    power_cut.cut(files, kept)
    return {
        str(path.relative_to(files)): path.read_text()
        for path in sorted(files.rglob("*"))
        if path.is_file()
    }


def test_what_was_not_flushed_is_lost(tmp_path: Path) -> None:
    assert after(tmp_path, "write a", "flush a", "flush .", "write a", "write b") == {"a": "x"}
    assert after(tmp_path, "write a", "flush a", "write b", "flush b") == {"a": "xx"}
    assert after(tmp_path, "write b", "flush .") == {"a": "xx", "b": ""}


def test_a_new_name_counts_when_its_folder_is_flushed(tmp_path: Path) -> None:
    assert after(tmp_path, "write a", "flush a", "flush .", "rename a") == {"a": "x"}
    assert after(tmp_path, "rename a", "flush .") == {"renamed": "x"}
    assert after(tmp_path, "folder f", "write f/a", "flush f/a", "flush f") == {"renamed": "x"}


def test_a_deleted_file_lends_its_contents_to_nobody(tmp_path: Path) -> None:
    steps = ("write a", "flush a", "flush .", "delete a", "write b", "write b", "flush b")
    assert after(tmp_path, *steps) == {"a": "x"}
