"""Addresses and nodes for tests of `notebookos_ext.raftos`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

from notebookos_ext.agent.compaction import CompactionLimits
from notebookos_ext.raftos.conf import Configuration
from notebookos_ext.raftos.node import Node

HANG_S = 30.0


def free_addresses(count: int) -> list[str]:
    """Addresses of this machine at which nobody listens."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; the limit only ends hangs."""
    async with asyncio.timeout(HANG_S):
        while not condition():  # noqa: ASYNC110 - conditions of several objects at once
            await asyncio.sleep(0.005)


class Cluster:
    """Nodes that share one loop, each with a configuration and hooks of its own."""

    def __init__(self, folder: Path, size: int = 3, limits: CompactionLimits | None = None) -> None:
        self.folder = folder
        self.limits = limits
        self.addresses = free_addresses(size)
        self.nodes: dict[str, Node] = {}
        self.heard: dict[str, list[str]] = {}

    def configuration(self, address: str) -> Configuration:
        config = Configuration()
        heard = self.heard.setdefault(address, [])
        config.configure(
            {
                "log_path": self.folder,
                "heartbeat_interval": 0.02,
                "secret_key": b"of this test",
                "on_leader": lambda: heard.append("leads"),
                "on_follower": lambda: heard.append("follows"),
            }
        )
        return config

    async def start(self, *addresses: str) -> None:
        for address in addresses or self.addresses:
            node = Node(address, self.addresses, self.configuration(address), limits=self.limits)
            await node.start()
            self.nodes[address] = node

    async def stop(self, *addresses: str) -> None:
        for address in addresses or list(self.nodes):
            await self.nodes.pop(address).stop()

    def leader(self) -> str | None:
        """The node that leads according to itself."""
        return next((a for a, node in self.nodes.items() if node.leader == a), None)

    async def elected(self) -> str:
        await until(self.leader)
        leader = self.leader()
        assert leader is not None
        return leader

    def followers(self) -> list[str]:
        return [address for address in self.nodes if address != self.leader()]
