"""The nodes of this process: started by `register`, ended by `stop`, asked who leads."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import Any

from notebookos_ext.errors import InvalidRequest
from notebookos_ext.raftos.conf import config
from notebookos_ext.raftos.node import Node


class _Process:
    """What raftos keeps per process too: the nodes, and who waits for them."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.ending: set[asyncio.Task[None]] = set()
        self._changed: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        """A node came, went, or follows another leader: all who wait look again."""
        waiting, self._changed = self._changed, set()
        for future in waiting:
            if not future.done() and not future.get_loop().is_closed():
                future.set_result(None)

    async def change(self) -> None:
        """Return when something has changed."""
        future = asyncio.get_running_loop().create_future()
        self._changed.add(future)
        try:
            await future
        finally:
            self._changed.discard(future)


_process = _Process()


async def register(
    *address_list: str,
    cluster: Sequence[str] | None = None,
    loop: asyncio.AbstractEventLoop | None = None,  # noqa: ARG001 - as raftos; ours is the running one
) -> None:
    """Start a node per address. All nodes of the cluster are in one list or in the other.

    Raises:
        InvalidRequest: something is no address, or is registered already.
        InvalidSettings: nodes of several machines need `configure({'secret_key': …})`.
        LaunchFailed: an address cannot be used.
        CorruptRecord: a log is damaged, or was made for other nodes.
        StorageError: a log cannot be opened in `log_path`.
    """
    if not address_list:
        raise InvalidRequest("register needs the address of this node, as 127.0.0.1:8000")
    everybody = (*address_list, *(cluster or ()))
    for address in address_list:
        if address in _process.nodes:
            raise InvalidRequest(f"{address} is registered already; call stop() before")
        node = Node(address, everybody, config, on_leader_change=_process.wake)
        await node.start()
        _process.nodes[address] = node
        _process.wake()


class Stopping:
    """What `stop` returns: may be awaited and need not be."""

    def __init__(self, ending: asyncio.Task[None] | None) -> None:
        self._ending = ending

    def __await__(self) -> Generator[Any, None, None]:
        """Return when the nodes have ended."""
        if self._ending is not None:
            yield from self._ending.__await__()


def stop() -> Stopping:
    """End the nodes of this process; their logs stay.

    Where their loop is no longer running, it runs until they have ended.
    """
    nodes = list(_process.nodes.values())
    if not nodes:
        return Stopping(None)
    _process.nodes.clear()
    _process.wake()
    loop = nodes[0].loop
    ending = loop.create_task(_stopped(nodes))
    _process.ending.add(ending)
    ending.add_done_callback(_process.ending.discard)
    if not loop.is_running():
        loop.run_until_complete(ending)
    return Stopping(ending)


async def _stopped(nodes: Sequence[Node]) -> None:
    for node in nodes:
        await node.stop()


def get_leader() -> str | None:
    """The address of the node that leads, as far as the first node of this process knows.

    This node itself counts only when it has committed in its term. A leader that is cut off from
    the others learns within `step_down_missed_heartbeats` heartbeats that it leads no more.
    """
    for node in _process.nodes.values():
        return node.leader
    return None


async def wait_until_leader(node_id: str | None) -> None:
    """Return when the node at that address leads; any number of callers may wait.

    Raises:
        ValueError: `node_id` is None.
    """
    if node_id is None:
        raise ValueError("wait_until_leader needs the address of a node, not None")
    while get_leader() != node_id:
        await _process.change()


async def registered() -> Node:
    """The first node of this process, as soon as there is one."""
    while not _process.nodes:
        await _process.change()
    return next(iter(_process.nodes.values()))
