"""Stands between host agents, on the connection of every pair: cuts it, holds it, slows it down.

The agents announce an address at which this listens, and listen beside it themselves. What passes
is encrypted, so bytes are held back or come late, and are never left out: a connection that lost
some would only break.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

BEHIND = ".behind"
HANG_S = 30.0
CHUNK_BYTES = 64 * 1024

Link = tuple[str, str]
"""A direction: from this host to that one."""


class Links:
    """Thread-safe: the work is done on a loop of its own."""

    def __init__(self, folder: Path, hosts: list[str]) -> None:
        self._folder = folder
        self._hosts = hosts
        self._cut: set[Link] = set()
        self._held: set[Link] = set()
        self._slow_s: dict[Link, float] = {}
        self._changed: asyncio.Condition
        self._writers: dict[Link, set[asyncio.StreamWriter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)

    def start(self) -> None:
        """Listen for all hosts."""
        self._thread.start()
        self._do(self._listen())

    def cut(self, one: str, other: str) -> None:
        """Break their connection, and every new one."""
        self._do(self._set(cut={(one, other), (other, one)}))

    def hold(self, source: str, target: str) -> None:
        """Let nothing through in this direction; the other one works."""
        self._do(self._set(held={(source, target)}))

    def slow(self, one: str, other: str, delay_s: float) -> None:
        """Let everything through late, in both directions."""
        self._do(self._set(slow_s={(one, other): delay_s, (other, one): delay_s}))

    def heal(self) -> None:
        """All links work again."""
        self._do(self._set(clear=True))

    def stop(self) -> None:
        """Close everything."""
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(HANG_S)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(HANG_S)

    async def _listen(self) -> None:
        self._changed = asyncio.Condition()
        self._servers = [
            await asyncio.start_unix_server(
                lambda r, w, host=host: self._serve(host, r, w), self._folder / f"{host}.peer"
            )
            for host in self._hosts
        ]

    async def _set(
        self,
        *,
        cut: set[Link] = frozenset(),  # type: ignore[assignment]
        held: set[Link] = frozenset(),  # type: ignore[assignment]
        slow_s: dict[Link, float] | None = None,
        clear: bool = False,
    ) -> None:
        if clear:
            self._cut, self._held, self._slow_s = set(), set(), {}
        self._cut |= cut
        self._held |= held
        self._slow_s |= slow_s or {}
        for link in cut:
            for writer in self._writers.get(link, ()):
                writer.transport.abort()
        async with self._changed:
            self._changed.notify_all()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # What was aborted is closed in the loop's next turn.
        await asyncio.sleep(0)

    async def _serve(
        self, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        dialler = _host_of(writer)
        there, back = (dialler, host), (host, dialler)
        behind: asyncio.StreamWriter | None = None
        try:
            if there in self._cut:
                return
            beyond, behind = await asyncio.open_unix_connection(
                self._folder / f"{host}.peer{BEHIND}"
            )
            for link, end in ((there, writer), (back, behind)):
                self._writers.setdefault(link, set()).add(end)
            pumps = [
                asyncio.create_task(self._pump(there, reader, behind)),
                asyncio.create_task(self._pump(back, beyond, writer)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            # asyncio reports a cancelled handler as if it were an error.
            return
        finally:
            for link, end in ((there, writer), (back, behind)):
                if end is not None:
                    self._writers.get(link, set()).discard(end)
                    end.transport.abort()

    async def _pump(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if delay_s := self._slow_s.get(link):
                    await asyncio.sleep(delay_s)
                async with self._changed:
                    await self._changed.wait_for(lambda: link not in self._held)
                writer.write(data)
                await writer.drain()


def _host_of(writer: asyncio.StreamWriter) -> str:
    """The host whose agent dialled, as its command line says."""
    peer: socket.socket = writer.get_extra_info("socket")
    pid = int.from_bytes(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), "little")
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace")
    except OSError:
        return ""
    found = re.search(r"hosts/([\w.-]+)/agent\.json", words)
    return found[1] if found else ""
