"""Exit statuses of children and of adopted orphans, in words."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from notebookos_ext.agent.procfs import descendants, kill, kill_group, process
from notebookos_ext.agent.reaper import Reaper, exit_words

HANG_S = 30.0


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exited with status 0"),
        (3 << 8, "exited with status 3"),
        (signal.SIGKILL, "killed by signal 9 (SIGKILL): perhaps out of memory"),
        (signal.SIGSEGV | 0x80, "killed by signal 11 (SIGSEGV): a crash in compiled code"),
        (signal.SIGTERM, "killed by signal 15 (SIGTERM)"),
        (40, "killed by signal 40 (a real-time signal)"),
    ],
)
def test_a_wait_status_in_words(status: int, words: str) -> None:
    assert exit_words(status) == words


def spawn(code: str) -> int:
    return os.posix_spawn(sys.executable, [sys.executable, "-c", code], dict(os.environ))


def test_children_are_told_apart_and_late_watchers_are_served() -> None:
    async def story() -> None:
        reaper = Reaper()
        reaper.start()
        loop = asyncio.get_running_loop()
        ends: dict[int, asyncio.Future[int]] = {}
        try:
            for status in (4, 5):
                pid = spawn(f"raise SystemExit({status})")
                ends[status] = loop.create_future()
                reaper.watch(pid, ends[status].set_result)
            late = spawn("raise SystemExit(6)")
            for status in (4, 5):
                ended = await asyncio.wait_for(ends[status], HANG_S)
                assert os.waitstatus_to_exitcode(ended) == status
            async with asyncio.timeout(HANG_S):
                while process(late) is not None:  # noqa: ASYNC110 - until it is reaped
                    await asyncio.sleep(0.01)
            told: asyncio.Future[int] = loop.create_future()
            reaper.watch(late, told.set_result)
            assert os.waitstatus_to_exitcode(await asyncio.wait_for(told, HANG_S)) == 6
        finally:
            reaper.stop()

    asyncio.run(story())


def test_descendants_are_found_below_a_process() -> None:
    code = "import subprocess; p = subprocess.Popen(['sleep', '600']); print(flush=True); p.wait()"
    read, write = os.pipe()
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", code],
        dict(os.environ),
        file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)],
        setpgroup=0,
    )
    os.close(write)
    try:
        os.read(read, 1)
        found = descendants(pid)
        assert len(found) == 1
        assert pid in descendants(os.getpid())
    finally:
        os.close(read)
        assert kill_group(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert not kill(pid, signal.SIGKILL)
