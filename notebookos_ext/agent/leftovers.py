"""What a killed agent could not clean up: processes that its replicas had started.

The system kills a replica with its agent, but not the replica's own children. So an agent writes
down the sessions of its replicas, and the next agent of the same folder ends what is left of them.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import msgspec

from notebookos_ext.agent.procfs import kill_session, process
from notebookos_ext.errors import UNREADABLE

log = logging.getLogger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Session(msgspec.Struct, frozen=True):
    """A replica's session, named by the process that leads it."""

    leader: int
    started_ticks: int
    boot: str


class SessionBook:
    """The sessions below one agent's folder, in a file of one JSON object per line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._boot = _boot_id()

    def add(self, leader: int) -> None:
        """A replica lives. What cannot be written down is only lost if the agent is killed too."""
        found = process(leader)
        if found is None:
            return
        session = Session(leader=leader, started_ticks=found.started_ticks, boot=self._boot)
        with contextlib.suppress(OSError), self._path.open("ab") as file:
            file.write(msgspec.json.encode(session) + b"\n")

    def end_all(self) -> None:
        """Kill what is left of every session that was written down, and begin a new page."""
        for session in self._read():
            if self._is_left(session):
                log.info("ending what is left of session %d", session.leader)
                kill_session(session.leader)
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _read(self) -> list[Session]:
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError:
            return []
        sessions = []
        for line in lines:
            # A line that was torn by the kill names nobody.
            with contextlib.suppress(*UNREADABLE):
                sessions.append(msgspec.json.decode(line, type=Session))
        return sessions

    def _is_left(self, session: Session) -> bool:
        """Not after a reboot, nor when the number belongs to a new process.

        A number is not given out again while a process of its session lives, so a session without
        its leader is the old one.
        """
        leader = process(session.leader)
        same = leader is None or leader.started_ticks == session.started_ticks
        return same and session.boot == self._boot


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
