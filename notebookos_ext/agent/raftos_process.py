"""One raftos member, as published, in a process of its own: run with the descriptor of its link.

raftos 0.2.6 holds one group per process and needs, on the Pythons of today, a few things in its
place: they are put there from outside, by configuration, by names that its modules look up, and by
subclasses. Its consensus stays as it is, with what that loses; docs/consensus.md lists it.

Instead of UDP its messages pass through the agent, so they are encrypted, of known origin and of
any size. Its terms, votes and log are its own files, which it never flushes.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
import sys
from types import SimpleNamespace
from typing import Any, cast

import raftos
import raftos.cryptors
import raftos.network
import raftos.serializers
import raftos.server
import raftos.state

from notebookos_ext.agent.raftos_wire import (
    Applied,
    Begin,
    Begun,
    Campaign,
    Command,
    Datagram,
    FromProcess,
    Standing,
    ToProcess,
)
from notebookos_ext.cluster.consensus.ready import Role
from notebookos_ext.cluster.frames import FrameDecoder, encode_frame

PORT = 1
"""raftos names members `host:port`; ours have no port."""
STEP_DOWN_MISSED_HEARTBEATS = 5

log = logging.getLogger(__name__)


class _Asyncio:
    """The module, with what it has lost since 2017 or moved elsewhere."""

    def __init__(self, **replaced: Any) -> None:
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)


class _Transport:
    """What raftos takes for its datagram socket."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def sendto(self, data: bytes, destination: tuple[str, int]) -> None:
        """To another member, by way of the agents."""
        self._link.say(Datagram(destination[0], data))

    def is_closing(self) -> bool:
        """Never: the process ends instead."""
        return False


class _Node(raftos.server.Node):  # type: ignore[misc] # raftos has no types
    """A node whose datagrams go over the link."""

    def __init__(self, host: str, link: Link) -> None:
        super().__init__((host, PORT), asyncio.get_running_loop())
        self._link = link

    async def start(self) -> None:
        """Take part."""
        self.protocol = raftos.network.UDPProtocol(
            queue=self.requests, request_handler=self.request_handler, loop=self.loop
        )
        self.transport = _Transport(self._link)
        self.protocol.connection_made(self.transport)
        self.state.start()


class _State(raftos.state.State):  # type: ignore[misc] # raftos has no types
    """Tells the link that it may have changed."""

    link: Link

    def set_leader(self, leader: Any) -> None:
        """As raftos does."""
        super().set_leader(leader)
        self.loop.call_soon(self.link.look)


class _NoStateMachine:
    """The log itself is what the agent wants; `Link.look` hands it on."""

    def __init__(self, node_id: str) -> None:
        pass

    def apply(self, command: dict[str, str]) -> None:
        """Nothing: raftos would rewrite a file with all values."""


class Link(asyncio.Protocol):
    """The process's end of the socket pair that it shares with its agent; its end is ours."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._decoder = FrameDecoder[ToProcess](ToProcess)  # type: ignore[arg-type] # a union of types
        self._transport: asyncio.Transport | None = None
        self._node: _Node | None = None
        self._told: Standing | None = None
        self._applied = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The agent is there."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        """The agent is gone or wants no more."""
        if not self.ended.done():
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Carry out what the agent asks."""
        for message in self._decoder.feed(data):
            if isinstance(message, Begin):
                task = asyncio.get_running_loop().create_task(self._begin(message))
                self._tasks.add(task)
                task.add_done_callback(self._begun)
                continue
            try:
                self._take(message)
            except Exception:
                # As with raftos's own socket: the datagram is lost and the member goes on.
                log.exception("raftos failed over a message")
            self.look()

    def say(self, message: FromProcess) -> None:
        """To the agent."""
        if self._transport is not None:
            self._transport.write(encode_frame(message))

    def look(self) -> None:
        """Hand on what is committed since, and what else has changed.

        raftos applies what it has committed only with the message after next, a heartbeat later.
        """
        if self._node is None:
            return
        member = self._node.state
        while self._applied < member.log.commit_index:
            self._applied += 1
            entry = member.log[self._applied]
            for proposal_id, payload in entry["command"].items():
                self.say(
                    Applied(entry["term"], self._applied, proposal_id, base64.b64decode(payload))
                )
        leader = _State.get_leader()
        standing = Standing(
            role=Role(type(member.state).__name__.lower()),
            term=member.storage.term,
            leader=None if leader is None else leader.rpartition(":")[0],
            last_index=member.log.last_log_index,
            commit_index=member.log.commit_index,
        )
        if standing != self._told:
            self._told = standing
            self.say(standing)

    async def _begin(self, begin: Begin) -> None:
        raftos.configure(
            {
                "log_path": begin.folder,
                # Its msgpack log cannot hold the byte 10, and JSON knows no bytes.
                "serializer": raftos.serializers.JSONSerializer,
                "heartbeat_interval": begin.heartbeat_s,
                "step_down_missed_heartbeats": STEP_DOWN_MISSED_HEARTBEATS,
                # The agents encrypt.
                "cryptor": raftos.cryptors.DummyCryptor,
            }
        )
        _State.link = self
        node = _Node(begin.host, self)
        for member in begin.members:
            if member != begin.host:
                node.update_cluster((member, PORT))
        await node.start()
        self._node = node
        self.say(Begun())
        self.look()

    def _begun(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = task.exception()
        if error is not None and not self.ended.done():
            self.ended.set_exception(error)

    def _take(self, message: ToProcess) -> None:
        node = self._node
        if node is None:
            return
        role = node.state.state
        match message:
            case Datagram():
                node.protocol.datagram_received(message.payload, (message.host, PORT))
            case Command() if isinstance(role, raftos.state.Leader):
                text = base64.b64encode(message.payload).decode()
                writing = role.execute_command({message.proposal_id: text})
                # Its future may answer for another command, or never: only the log counts.
                writing.send(None)
                writing.close()
            case Campaign() if isinstance(role, raftos.state.Follower):
                node.state.to_candidate()
            case Campaign() if isinstance(role, raftos.state.Candidate):
                # Who did not hear it the first time had perhaps not begun.
                role.request_vote()


def adapt() -> None:
    """Put in place what raftos misses on the Pythons of today, and our subclasses."""
    raftos.server.asyncio = _Asyncio(Queue=lambda loop=None: asyncio.Queue())  # noqa: ARG005
    raftos.state.asyncio = _Asyncio(
        futures=SimpleNamespace(InvalidStateError=asyncio.InvalidStateError)
    )
    raftos.server.State = _State
    raftos.state.StateMachine = _NoStateMachine


async def main(descriptor: int) -> None:
    """Serve until the agent ends the link."""
    adapt()
    loop = asyncio.get_running_loop()
    ours = socket.socket(fileno=descriptor)
    _, link = await loop.create_connection(Link, sock=ours)
    await link.ended


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    asyncio.run(main(int(sys.argv[1])))
