"""The agent as the parent of everything it started: exit statuses, also of processes it adopted.

A replica is forked by a template, not by the agent; as a sub-reaper the agent becomes its parent
and is told how it ended. Orphans of the user's code end up here too and are simply reaped.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections import OrderedDict
from collections.abc import Callable

PR_SET_CHILD_SUBREAPER = 36
REMEMBERED_EXITS = 256


def become_subreaper() -> None:
    """Adopt orphans below this process. Raises OSError where the system has no such thing."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(code)}")


def exit_words(status: int) -> str:
    """A wait status in words, with the likely cause where there is one."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = "a real-time signal"
        # Whole sentences: a support bundle knows ours by the source.
        if number == signal.SIGKILL:
            return f"killed by signal {number} ({name}): perhaps out of memory"
        if number in (signal.SIGSEGV, signal.SIGBUS):
            return f"killed by signal {number} ({name}): a crash in compiled code"
        return f"killed by signal {number} ({name})"
    return f"exited with status {os.WEXITSTATUS(status)}"


class Reaper:
    """Calls back, on the event loop, with the exit status of every process that is watched."""

    def __init__(self) -> None:
        self._watched: dict[int, Callable[[int], None]] = {}
        self._ended: OrderedDict[int, int] = OrderedDict()

    def start(self) -> None:
        """Listen for ended children. Nothing else in this process may wait for children."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.reap)

    def stop(self) -> None:
        """Stop listening."""
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    def watch(self, pid: int, on_exit: Callable[[int], None]) -> None:
        """Call `on_exit(status)` once when the child ends, also if it has already ended."""
        if pid in self._ended:
            asyncio.get_running_loop().call_soon(on_exit, self._ended.pop(pid))
            return
        self._watched[pid] = on_exit

    def unwatch(self, pid: int) -> None:
        """Call nobody back; who watches it next is told even if it has ended by then."""
        self._watched.pop(pid, None)

    def reap(self) -> None:
        """Collect every child that has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            on_exit = self._watched.pop(pid, None)
            if on_exit is not None:
                on_exit(status)
                continue
            # Its pid may become known only now, from its first message.
            self._ended[pid] = status
            while len(self._ended) > REMEMBERED_EXITS:
                self._ended.popitem(last=False)
