"""The agent's side of one raftos member's process, and who waits for what it commits."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import msgspec

from notebookos_ext.agent.member import Carrier
from notebookos_ext.agent.raftos_wire import (
    Applied,
    Begin,
    Begun,
    BetweenAgents,
    Campaign,
    Command,
    Datagram,
    FromProcess,
    Standing,
    ToProcess,
)
from notebookos_ext.cluster.consensus.messages import Entry, Envelope, Foreign
from notebookos_ext.cluster.consensus.ready import Role
from notebookos_ext.cluster.consensus.replicated_log import MemberStatus
from notebookos_ext.cluster.frames import FrameDecoder, encode_frame
from notebookos_ext.cluster.model import HostId, KernelId
from notebookos_ext.errors import LaunchFailed, NoMajority, OutcomeUnknown, Unavailable

PROCESS_MODULE = "notebookos_ext.agent.raftos_process"
ASK_AGAIN_S = (0.05, 2.0)
"""Until the proposal has been handed to somebody, and from then on."""
CAMPAIGN_S = 0.2
"""Whoever is to lead asks this often for votes, since the others begin when they begin."""
CAMPAIGN_ROUNDS = 50
END_S = 2.0
BARRIER = "barrier-"
"""How ids of entries begin that only mark a moment."""

_log = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(BetweenAgents).decode


class RaftosMember(asyncio.Protocol):
    """The agent's side of one member's process, and who waits for what."""

    def __init__(
        self,
        *,
        kernel: KernelId,
        group: str,
        host: HostId,
        folder: Path,
        carrier: Carrier,
        barrier: str,
        on_committed: Callable[[KernelId, Sequence[Entry]], None],
    ) -> None:
        self.group = group
        self.folder = folder
        self.entries: list[Entry] = []
        self.standing = Standing(Role.FOLLOWER, 0, None, 0, 0)
        self._kernel = kernel
        self._host = host
        self._carrier = carrier
        self._barrier = barrier
        self._barriers = 0
        self._on_committed = on_committed
        self._index_of: dict[str, int] = {}
        self._waiting: dict[str, asyncio.Future[int]] = {}
        self._appended: set[str] = set()
        self._applied_index = 0
        self._failure = ""
        self._decoder = FrameDecoder[FromProcess](FromProcess)  # type: ignore[arg-type] # a union
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._campaign: asyncio.Task[None] | None = None
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def begin(self, member_hosts: Sequence[HostId], heartbeat_s: float) -> None:
        """Start the process. Raises LaunchFailed."""
        try:
            ours, self._process = _started(self.folder)
        except OSError as error:
            raise LaunchFailed(f"raftos of kernel {self._kernel}: {error}") from error
        await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)
        self.say(Begin(self._host, tuple(member_hosts), f"{self.folder}/", heartbeat_s))
        try:
            await self._begun
        except BaseException:
            await self.close()
            raise

    def campaign(self) -> None:
        """Ask for votes until somebody leads."""
        self._campaign = asyncio.get_running_loop().create_task(self._ask_for_votes())

    async def _ask_for_votes(self) -> None:
        for _ in range(CAMPAIGN_ROUNDS):
            if self.standing.leader is not None or self._failure:
                return
            self.say(Campaign())
            await asyncio.sleep(CAMPAIGN_S)

    async def close(self) -> None:
        """End the process; whoever waits is told."""
        if self._campaign is not None:
            self._campaign.cancel()
        self._fail(f"kernel {self._kernel}: its raftos member on this host was closed")
        if self._transport is not None:
            self._transport.close()
            await self._ended
        process = self._process
        if process is not None:
            # Its end of the link has closed, so it ends; the agent's reaper may know before us.
            try:
                await asyncio.to_thread(process.wait, END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)

    # -- the process -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The process can be spoken to."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        """The process has ended."""
        self._fail(f"kernel {self._kernel}: its raftos process has ended: {self._last_words()}")
        if not self._begun.done():
            self._begun.set_exception(LaunchFailed(self._failure))
        if not self._ended.done():
            self._ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        """What the process says."""
        for message in self._decoder.feed(data):
            match message:
                case Begun():
                    if not self._begun.done():
                        self._begun.set_result(None)
                case Datagram():
                    to = HostId(message.host)
                    self._send(to, Datagram(self._host, message.payload))
                case Applied():
                    self._deliver(message)
                case Standing():
                    if message.term != self.standing.term:
                        self._appended.clear()
                    self.standing = message

    def say(self, message: ToProcess) -> None:
        """To the process; to one that has ended it goes nowhere."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(message))

    def receive(self, host: HostId, payload: bytes) -> None:
        """What another member's agent says."""
        match _decode(payload):
            case Datagram(payload=datagram):
                self.say(Datagram(host, datagram))
            case Command(proposal_id=proposal_id, payload=proposed):
                self.append(proposal_id, proposed)

    def append(self, proposal_id: str, payload: bytes) -> None:
        """Put it into raftos's log if this member leads and has not done so in its term."""
        if self.standing.role is not Role.LEADER or proposal_id in self._appended:
            return
        if proposal_id not in self._index_of:
            self._appended.add(proposal_id)
            self.say(Command(proposal_id, payload))

    def _deliver(self, applied: Applied) -> None:
        self._applied_index = applied.index
        if applied.proposal_id in self._index_of:
            return
        self._index_of[applied.proposal_id] = applied.index
        if not applied.proposal_id.startswith(BARRIER):
            entry = Entry(applied.term, applied.index, applied.proposal_id, applied.payload)
            self.entries.append(entry)
            try:
                self._on_committed(self._kernel, [entry])
            except Exception:  # noqa: BLE001 - the log goes on, whatever its reader makes of it
                _log.exception("kernel %s: a committed entry could not be applied", self._kernel)
        waiting = self._waiting.get(applied.proposal_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(applied.index)

    # -- proposals ---------------------------------------------------------------------------

    @property
    def status(self) -> MemberStatus:
        """As of now."""
        leader = self.standing.leader
        return MemberStatus(
            kernel=self._kernel,
            role=self.standing.role,
            term=self.standing.term,
            leader=None if leader is None else HostId(leader),
            last_index=self.standing.last_index,
            commit_index=self.standing.commit_index,
            delivered_index=self._applied_index,
            resting=False,
            failure=self._failure,
        )

    def new_barrier(self) -> str:
        """An id for an entry that only marks a moment."""
        self._barriers += 1
        return f"{self._barrier}-{self._barriers}"

    async def propose(self, payload: bytes, proposal_id: str, timeout_s: float) -> int:
        """See `ReplicatedLog.propose`."""
        if self._failure:
            raise Unavailable(self._failure)
        if proposal_id in self._index_of:
            return self._index_of[proposal_id]
        loop = asyncio.get_running_loop()
        waiting = self._waiting.setdefault(proposal_id, loop.create_future())
        deadline = loop.time() + timeout_s
        handed_on = False
        while True:
            handed_on |= self._hand_on(proposal_id, payload)
            wait_s = min(ASK_AGAIN_S[handed_on], max(0.0, deadline - loop.time()))
            done, _ = await asyncio.wait([waiting], timeout=wait_s)
            if done:
                self._waiting.pop(proposal_id, None)
                return waiting.result()
            if loop.time() >= deadline:
                break
        if handed_on:
            raise OutcomeUnknown(
                f"kernel {self._kernel}: raftos did not commit an entry within {timeout_s:g} s; "
                "it still may, so repeat it with the same id"
            )
        raise NoMajority(f"kernel {self._kernel}: raftos elected nobody within {timeout_s:g} s")

    def _hand_on(self, proposal_id: str, payload: bytes) -> bool:
        leader = self.standing.leader
        if leader is None:
            return False
        if leader == self._host:
            self.append(proposal_id, payload)
            return True
        to = HostId(leader)
        if to not in self._carrier.up:
            return False
        self._send(to, Command(proposal_id, payload))
        return True

    def _send(self, to: HostId, message: BetweenAgents) -> None:
        foreign = Foreign(self._host, to, _encode(message))
        self._carrier.send(to, [Envelope(self.group, foreign)])

    def _fail(self, reason: str) -> None:
        if self._failure:
            return
        self._failure = reason
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Unavailable(reason))
                # Whoever waited may have gone.
                waiting.exception()

    def _last_words(self) -> str:
        try:
            lines = (self.folder / "process.log").read_text("utf-8", "replace").splitlines()
        except OSError:
            lines = []
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _started(folder: Path) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Our end of the link, and the process at the other. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ours, theirs = socket.socketpair()
    with theirs, (folder / "process.log").open("ab") as output:
        descriptor = theirs.fileno()
        # Without the working directory on its path, which is the agent's folder.
        command = [sys.executable, "-P", "-m", PROCESS_MODULE, str(descriptor)]
        try:
            process = subprocess.Popen(
                command,
                pass_fds=(descriptor,),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        except OSError:
            ours.close()
            raise
    return ours, process
