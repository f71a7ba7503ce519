"""One host's member of the group `k` as a process: `member_process.py HOST FOLDER`.

It answers JSON requests, one a line. Its log is compacted often, and is kept on a disk that a power
cut leaves with what was flushed (`power_cut`), and that is full while there is a file `HOST.full`.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from power_cut import keep_flushed

from notebookos_ext.agent.compaction import CompactionLimits
from notebookos_ext.agent.members import Members
from notebookos_ext.agent.transport import PeerTransport
from notebookos_ext.clock import SystemClock
from notebookos_ext.cluster.consensus.messages import Entry
from notebookos_ext.cluster.model import HostId, KernelId
from notebookos_ext.errors import NotebookOSError

HOSTS = (HostId("h1"), HostId("h2"), HostId("h3"))
K = KernelId("k")


class Application:
    """What was applied, in order: the ids of the proposals."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def apply(self, _kernel: KernelId, entries: Sequence[Entry]) -> None:
        self.ids += [entry.proposal_id for entry in entries]

    def capture(self, _kernel: KernelId) -> Callable[[], Awaitable[bytes]]:
        captured = json.dumps(self.ids).encode()

        async def make() -> bytes:
            await asyncio.sleep(0)
            return captured

        return make

    def compacted(self, _kernel: KernelId, _index: int) -> None:
        """It keeps nothing beside."""

    def restore(self, _kernel: KernelId, _index: int, state: bytes) -> None:
        self.ids = json.loads(state)


def be_full_while_there_is(sign: Path) -> None:
    write = os.pwrite

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        if sign.exists():
            # Half of it still had room.
            write(descriptor, data[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data, offset)

    os.pwrite = pwrite  # type: ignore[assignment]


async def answer(members: Members, application: Application, request: dict[str, Any]) -> object:
    match request["do"]:
        case "propose":
            payload = request["id"].encode() + bytes(request.get("size", 0))
            return await members.propose(K, payload, request["id"], 3.0)
        case "read":
            await members.read_barrier(K, 20.0)
            return application.ids
    status = members.status(K)
    return {"failure": status.failure, "snapshot_index": status.snapshot_index}


async def answered(members: Members, application: Application, line: bytes) -> None:
    request = json.loads(line)
    try:
        told = {"result": await answer(members, application, request)}
    except NotebookOSError as error:
        told = {"error": type(error).__name__}
    sys.stdout.write(json.dumps({"n": request["n"], **told}) + "\n")
    sys.stdout.flush()


async def main(host: HostId, folder: Path) -> None:
    application = Application()
    transport = PeerTransport(
        host,
        f"{folder}/{host}.peer",
        b"t" * 32,
        lambda peer, messages: members.receive(peer, messages),  # noqa: PLW0108 - made below
        lambda peer, up: (members.peer_back if up else members.peer_lost)(peer),
        rng=random.Random(),
        ping_s=0.1,
        silent_pings=10,
    )
    members = Members(
        host=host,
        folder=folder / host,
        transport=transport,
        clock=SystemClock(),
        rng=random.Random(),
        on_committed=application.apply,
        hooks=application,
        limits=CompactionLimits(entries=25),
        tick_s=0.05,
    )
    await transport.start()
    transport.set_peers({peer: f"{folder}/{peer}.peer" for peer in HOSTS})
    await members.open(K, HOSTS, campaign=host == HOSTS[0])
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    tasks = set()
    while line := await reader.readline():
        tasks.add(asyncio.create_task(answered(members, application, line)))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await members.shut_down()
    await transport.close()


if __name__ == "__main__":
    own, place = HostId(sys.argv[1]), Path(sys.argv[2])
    be_full_while_there_is(place / f"{own}.full")
    keep_flushed(place / own, place / f"{own}.kept")
    asyncio.run(main(own, place))
