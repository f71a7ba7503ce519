"""Copies that a standby replaces do not clean up what the user's object still uses."""

from __future__ import annotations

from pathlib import Path

KEEPS_A_FILE = """
import os
class Keeper:
    def __init__(self, path):
        self.path = path
        open(path, "w").close()
    def __del__(self):
        os.unlink(self.path)
"""


def test_a_standbys_copy_does_not_run_del(replicas, tmp_path: Path):
    group = replicas(2)
    file = tmp_path / "kept"
    group.cell(KEEPS_A_FILE)
    group.cell(f"keeper = Keeper({str(file)!r})")
    group.cell("keeper.changed = 1; ring = [keeper]; ring.append(ring)")
    group.cell("keeper.changed = 2", on=1)
    group.cell("keeper.changed = 3; del ring")
    assert file.exists()
    # The executor's own object is gone for good: there it runs, once.
    exists = f"print(os.path.exists({str(file)!r}))"
    assert group.cell(f"del keeper; import gc; gc.collect(); {exists}") == "False\n"
    assert group.problems == []


def test_del_of_a_class_that_changes_and_of_one_at_rest(replicas):
    group = replicas(2)
    group.cell("gone = []\nclass Noted:\n    def __del__(self): gone.append('first')\na = Noted()")
    group.cell("Noted.__del__ = lambda self: gone.append('second')\na.x = 1")
    assert group.handles[1].evaluate("gone") == []
    # What does not change does not travel because a standby looked at it asleep.
    group.cell("b = 1", on=1)
    assert group.sent == [("b",)]
    group.cell("del a", on=1)
    assert [handle.evaluate("gone") for handle in group.handles] == [["second"], ["second"]]


def test_a_temporary_directory_stays_when_another_replica_leads(replicas):
    group = replicas(2)
    group.cell("import os, tempfile\nfolder = tempfile.TemporaryDirectory()\nbox = [folder]")
    assert {kind for _, kind, _ in group.handles[0].held()} == {"weakref.finalize"}
    group.cell("box.append(1)", on=1)
    assert group.cell("print(os.path.exists(folder.name))") == "True\n"
    group.cell("os.rmdir(folder.name)")


def test_a_temporary_directory_that_was_cleaned_up_travels(replicas):
    group = replicas(2)
    group.cell("import tempfile\nfolder = tempfile.TemporaryDirectory(); folder.cleanup()")
    assert group.handles[0].held() == []
    assert group.cell("print(folder._finalizer.alive)", on=1) == "False\n"
