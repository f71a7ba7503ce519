"""On what kind of file system a folder lies: logs that must be on disk do not go over a network."""

from __future__ import annotations

from pathlib import Path

NETWORK = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.glusterfs",
        "fuse.s3fs",
        "fuse.sshfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
    }
)
MOUNTS = Path("/proc/self/mountinfo")


def network_file_system(folder: Path) -> str | None:
    """The kind of the network file system that holds `folder`; None on a local disk."""
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    kind = kind_of(folder.resolve(), mounts)
    return kind if kind in NETWORK else None


def kind_of(folder: Path, mounts: str) -> str:
    """The kind of the mount that is nearest above `folder`, by the lines of mountinfo."""
    nearest, kind = -1, ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        # The kernel writes spaces in paths as octal escapes.
        point = Path(fields[4].encode("latin-1", "replace").decode("unicode_escape"))
        depth = len(point.parts)
        if depth >= nearest and folder.is_relative_to(point):
            nearest, kind = depth, after.split(" ", maxsplit=1)[0]
    return kind
