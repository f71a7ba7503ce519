"""Hosts that are given back while others are asked for: nobody gets what is still being deleted."""

from __future__ import annotations

import asyncio
import os
import signal

from host_agents import HANG_S, is_running, until

from notebookos_ext.cluster.model import HostId
from notebookos_ext.live.backends.local import LocalBackend
from notebookos_ext.live.state_folder import open_private
from notebookos_ext.settings import Settings

ONE, TWO, THREE = (HostId(f"host-{n}") for n in (1, 2, 3))


class Heard:
    """Which hosts came up, and as which process."""

    def __init__(self, backend: LocalBackend) -> None:
        self.up: list[HostId] = []
        self.backend = backend

    def host_up(self, host: HostId, _control_path: str, *, adopted: bool) -> None:
        assert not adopted
        self.up.append(host)

    def host_down(self, host: HostId, reason: str) -> None:
        raise AssertionError(f"{host} is down: {reason}")

    def pid(self, host: HostId) -> int:
        return self.backend._hosts[host].pid


def test_a_host_that_leaves_takes_up_room_until_its_folder_is_gone() -> None:
    async def story() -> None:
        folder = open_private(hash_seed=1)
        backend = LocalBackend(
            folder=folder,
            settings=Settings(hosts=2, max_hosts=3, gpus="none", lease_s=60.0),
            store=str(folder.store),
            store_namespace="",
            private=True,
        )
        heard = Heard(backend)
        try:
            await backend.start(heard)
            await until(lambda: sorted(heard.up) == [ONE, TWO])
            pid = heard.pid(TWO)
            # It does not end by itself.
            os.kill(pid, signal.SIGSTOP)
            leaving = asyncio.create_task(backend.release_host(TWO, grace_s=0.5))
            await asyncio.sleep(0)
            await backend.request_hosts(2)
            await backend.request_hosts(3)
            await until(lambda: sorted(heard.up) == [ONE, TWO, THREE])
            await leaving
            assert not is_running(pid)
            assert not folder.host(TWO).exists()
            await backend.request_hosts(3)
            await until(lambda: heard.up.count(TWO) == 2)
            assert folder.host(TWO).exists()
        finally:
            await backend.stop(grace_s=0.0)
            folder.close(delete=True)

    asyncio.run(asyncio.wait_for(story(), HANG_S))
