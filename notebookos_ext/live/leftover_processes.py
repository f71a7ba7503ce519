"""Finds what a killed server or agent left running; reads /proc, and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

AGENT = "notebookos_ext.agent"
KERNEL = "notebookos_ext.kernel"


class Running(msgspec.Struct, frozen=True):
    """One process of this user."""

    pid: int
    parent: int
    words: tuple[str, ...]

    @property
    def is_agent(self) -> bool:
        """Whether it is a host agent."""
        return AGENT in self.words

    @property
    def is_kernel(self) -> bool:
        """Whether it is a replica or a template."""
        return any(word == KERNEL or word.startswith(f"{KERNEL}.") for word in self.words)

    @property
    def state_folder(self) -> Path | None:
        """An agent's state folder, by its configuration `<state>/hosts/<host>/agent.json`."""
        config = Path(self.words[-1]) if self.is_agent else None
        return config.parents[2] if config is not None and len(config.parents) > 3 else None


def processes(proc: Path = Path("/proc")) -> dict[int, Running]:
    """All processes of this user, by their id; those that end meanwhile are left out."""
    found = {}
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid != os.getuid():
                continue
            words = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            # The second field, a name in brackets, may hold anything.
            fields = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(entry.name)
        found[pid] = Running(pid, int(fields[1]), tuple(word for word in words if word))
    return found


def is_locked(path: Path, locks: Path = Path("/proc/locks")) -> bool:
    """Whether some process holds the lock of that file."""
    try:
        inode = str(path.stat().st_ino)
        lines = locks.read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    return any(field.endswith(f":{inode}") for line in lines for field in line.split())


def orphaned_agents(found: dict[int, Running]) -> Iterator[Running]:
    """Agents whose state folder no server holds."""
    for process in found.values():
        folder = process.state_folder
        if folder is not None and not is_locked(folder / "lock"):
            yield process


def orphaned_kernels(found: dict[int, Running]) -> Iterator[Running]:
    """Replicas and templates that no agent is above."""
    for process in found.values():
        if process.is_kernel and not _below_agent(process, found):
            yield process


def _below_agent(process: Running, found: dict[int, Running]) -> bool:
    seen: set[int] = set()
    above = found.get(process.parent)
    while above is not None and above.pid not in seen:
        if above.is_agent:
            return True
        seen.add(above.pid)
        above = found.get(above.parent)
    return False


def abandoned_folders(parent: Path, prefix: str) -> list[Path]:
    """Private state folders whose process was killed."""
    return [
        path
        for path in sorted(parent.glob(f"{prefix}*"))
        if path.is_dir() and path.stat().st_uid == os.getuid() and not is_locked(path / "lock")
    ]
