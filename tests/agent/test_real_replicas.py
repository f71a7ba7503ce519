"""Agents with the replicas that users get: real templates, real kernels, real deltas."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from host_agents import HANG_S, Hosts, begin, kill, until
from jupyter_client.blocking import BlockingKernelClient

from notebookos_ext.cluster.messages.control import (
    AttemptBegun,
    AttemptEnded,
    Done,
    NamespaceReport,
    ReplicaExited,
    ReplicaReady,
)
from notebookos_ext.cluster.model import Outcome

pytestmark = pytest.mark.apart

KEY = b"0123456789abcdef"


async def launch(hosts: Hosts, number: int) -> ReplicaReady:
    environment = {k: v for k, v in os.environ.items() if k != "JPY_PARENT_PID"}
    request = msgspec.structs.replace(
        hosts.launch_request(number), session_key=KEY, env=environment
    )
    host = hosts[f"host-{number}"]
    await host.request(request, Done)
    return await host.notice(ReplicaReady, lambda n: n.launch == request.launch)


def client_of(ready: ReplicaReady) -> BlockingKernelClient:
    """A client on the replica's own channels, as the router has one."""
    client = BlockingKernelClient()
    prefix = ready.endpoints["shell"].removeprefix("ipc://").rpartition("-")[0]
    ports = {
        f"{channel}_port": int(address.rpartition("-")[2])
        for channel, address in ready.endpoints.items()
    }
    client.load_connection_info(
        {"transport": "ipc", "ip": prefix, "key": KEY, "signature_scheme": "hmac-sha256", **ports}
    )
    client.start_channels()
    return client


class Replicas:
    """Three real replicas of one kernel, and a way to run a cell on any of them."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.clients: dict[int, BlockingKernelClient] = {}
        self.ready: dict[int, ReplicaReady] = {}
        self.attempt = 0

    async def start(self, *numbers: int) -> None:
        found = await asyncio.gather(*(launch(self.hosts, n) for n in numbers))
        for number, ready in zip(numbers, found, strict=True):
            self.ready[number] = ready
            self.clients[number] = client_of(ready)

    def close(self) -> None:
        for client in self.clients.values():
            client.stop_channels()

    async def begin(self, number: int, code: str) -> dict[str, Any]:
        """The execute_request, sent as soon as its attempt has begun."""
        self.attempt += 1
        session = self.clients[number].session
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        message: dict[str, Any] = session.msg("execute_request", content)
        await self.hosts[f"host-{number}"].request(
            begin(message["header"]["msg_id"], self.attempt, replica=number), AttemptBegun
        )
        self.clients[number].shell_channel.send(message)
        return message

    async def run(self, number: int, code: str) -> str:
        """What the cell printed; returns when its reply is there."""
        message = await self.begin(number, code)
        client = self.clients[number]
        reply = await asyncio.to_thread(client.get_shell_msg, timeout=HANG_S)
        assert reply["content"]["status"] == "ok", reply["content"]
        printed = ""
        while True:
            said = await asyncio.to_thread(client.get_iopub_msg, timeout=HANG_S)
            if said["parent_header"].get("msg_id") != message["header"]["msg_id"]:
                continue
            if said["msg_type"] == "stream":
                printed += said["content"]["text"]
            if said["content"].get("execution_state") == "idle":
                return printed

    async def ended(self, number: int) -> Outcome:
        notice = await self.hosts[f"host-{number}"].notice(
            AttemptEnded, lambda n: n.attempt == self.attempt
        )
        return notice.outcome


def test_any_replica_goes_on_and_a_killed_one_comes_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, count=3, python=sys.executable) as hosts:
            await hosts.open_kernel()
            replicas = Replicas(hosts)
            try:
                await replicas.start(1, 2, 3)
                assert await replicas.run(1, "x = [1]; y = x; import os; print(os.getpid())") == (
                    f"{replicas.ready[1].pid}\n"
                )
                # Killed in the moment of its reply: nothing of the cell is lost.
                kill(replicas.ready[1].pid)
                assert await replicas.ended(1) is Outcome.DONE
                await hosts["host-1"].notice(ReplicaExited)
                assert await replicas.run(2, "x.append(2); print(y, y is x)") == "[1, 2] True\n"
                assert await replicas.ended(2) is Outcome.DONE
                # A new process in the place of the dead one has everything from the log.
                await replicas.start(1)
                assert await replicas.run(1, "print(x, y is x)") == "[1, 2] True\n"
                big = "import numpy; a = numpy.arange(3_000_000); b = a[10:20]; print('made')"
                assert await replicas.run(3, big) == "made\n"
                assert await replicas.ended(3) is Outcome.DONE
                # Large parts follow the reply; until then the scheduler keeps the kernel there.
                await hosts["host-3"].notice(NamespaceReport, lambda n: not n.pending)
                shared = await replicas.run(2, "b[0] = 7; print(a[10], numpy.shares_memory(a, b))")
                assert shared == "7 True\n"
            finally:
                replicas.close()

    asyncio.run(story())


def test_an_executor_killed_in_its_cell_leaves_the_kernel_as_before(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, count=3, python=sys.executable) as hosts:
            await hosts.open_kernel()
            replicas = Replicas(hosts)
            try:
                await replicas.start(1, 2, 3)
                await replicas.run(1, "x = 'before'")
                await replicas.ended(1)
                flag = tmp_path / "runs"
                code = f"x = 'lost'; open({str(flag)!r}, 'w').close(); import time; time.sleep(600)"
                await replicas.begin(1, code)
                await until(flag.exists)
                kill(replicas.ready[1].pid)
                await hosts["host-1"].notice(ReplicaExited)
                # The leftover attempt is closed on the way.
                assert await replicas.run(3, "print(x)") == "before\n"
            finally:
                replicas.close()

    asyncio.run(story())
