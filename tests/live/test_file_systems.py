"""Which mount holds a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from notebookos_ext.live import file_systems
from notebookos_ext.live.file_systems import kind_of, network_file_system

MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
40 22 0:35 / /home rw shared:1 - nfs4 server:/home rw
41 40 8:2 / /home/ada/local\\040disk rw - xfs /dev/sdb1 rw
42 22 0:36 / /homes rw - tmpfs none rw
odd line
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var", "ext4"),
        ("/home/ada/.local", "nfs4"),
        ("/home/ada/local disk/state", "xfs"),
        ("/homes/x", "tmpfs"),
    ],
)
def test_the_nearest_mount_counts(folder: str, kind: str) -> None:
    assert kind_of(Path(folder), MOUNTS) == kind


def test_only_network_file_systems_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    monkeypatch.setattr(file_systems, "MOUNTS", mounts)
    assert network_file_system(tmp_path) is None
    mounts.write_text("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    assert network_file_system(tmp_path) is None
    mounts.write_text("22 1 8:1 / / rw - nfs4 server:/ rw\n")
    assert network_file_system(tmp_path) == "nfs4"
