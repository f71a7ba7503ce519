"""Small questions to /proc: who descends from whom, who shares a session. Blocking but quick.

Processes come and go while we look; one that vanished is simply not part of the answer.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec

AGENT_MODULE = b"notebookos_ext.agent"
_PROC = Path("/proc")


class ProcessInfo(msgspec.Struct, frozen=True):
    """What one line of /proc/<pid>/stat says."""

    pid: int
    state: str
    parent: int
    session: int
    started_ticks: int

    @property
    def is_alive(self) -> bool:
        """False for a process that has ended and only waits to be reaped."""
        return self.state not in "ZX"


def machine_memory_bytes() -> int:
    """The machine's memory; 0 where that cannot be found out."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def process(pid: int) -> ProcessInfo | None:
    """The process, or None when there is none of that id."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The name, in parentheses, may contain anything.
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessInfo(
        pid=pid,
        state=fields[0],
        parent=int(fields[1]),
        session=int(fields[3]),
        started_ticks=int(fields[19]),
    )


def processes() -> Iterator[ProcessInfo]:
    """Every process that this one can see."""
    for name in os.listdir(_PROC):  # noqa: PTH208 - names only, hundreds of times
        if name.isdigit() and (found := process(int(name))) is not None:
            yield found


def descendants(pid: int) -> set[int]:
    """Living processes below `pid`, orphans that it adopted included."""
    children: dict[int, list[int]] = {}
    for found in processes():
        if found.is_alive:
            children.setdefault(found.parent, []).append(found.pid)
    below: set[int] = set()
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in below:
                below.add(child)
                waiting.append(child)
    return below


def kill_session(session: int) -> None:
    """SIGKILL every process of a session: a replica's own children, whatever group they chose."""
    for found in processes():
        if found.session == session and found.is_alive:
            kill(found.pid, signal.SIGKILL)


def kill(pid: int, number: int) -> bool:
    """Send a signal to a process, if it is still there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def kill_group(group: int, number: int) -> bool:
    """Send a signal to a process group, if anything of it is still there."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def belongs_to_an_agent(pid: int) -> bool:
    """Whether the process is a host agent (of whatever cluster here) or descends from one.

    NVML names the machine's pids: one that cannot be seen here has just ended, or belongs to
    another container and cannot be told from one of ours. It counts as ours.
    """
    if (found := process(pid)) is None:
        return True
    while found is not None and found.pid > 1:
        try:
            command = (_PROC / str(found.pid) / "cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        if AGENT_MODULE in command:
            return True
        found = process(found.parent)
    return False
