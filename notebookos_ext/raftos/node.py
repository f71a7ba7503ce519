"""One raftos node: a member of the cluster's one Raft group, its data, and who leads."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from notebookos_ext.agent.compaction import CompactionLimits
from notebookos_ext.agent.members import Members
from notebookos_ext.agent.transport import PeerTransport
from notebookos_ext.clock import SystemClock
from notebookos_ext.cluster.consensus.messages import PAYLOAD_BYTES_MAX, Entry, Envelope
from notebookos_ext.cluster.model import HostId, KernelId
from notebookos_ext.errors import (
    InvalidRequest,
    NoMajority,
    NotebookOSError,
    OutcomeUnknown,
    ProtocolError,
    StorageError,
    Unavailable,
)
from notebookos_ext.raftos.conf import Configuration
from notebookos_ext.raftos.data import Data, Operation, Set, encode
from notebookos_ext.raftos.secret import cluster_token

GROUP = KernelId("raftos")
ASK_AGAIN_S = 5.0
"""Whoever waits for a majority is in no hurry; the core itself repeats what is on its way."""

_log = logging.getLogger(__name__)


class Node:
    """A node at `host:port` among others, which are known by their addresses and do not change.

    `leader` is the node that leads as far as this one knows; this node itself only once it has
    committed in its term, so that it knows everything that was acknowledged before.

    Args:
        address: of this node; also its name.
        cluster: the addresses of all nodes; this one may be among them or not.
        config: is read when the node starts, except for the hooks, which are read when due.
        on_leader_change: called after `leader` has changed.
        limits: how far the log may grow before a snapshot takes its place.
    """

    def __init__(
        self,
        address: str,
        cluster: Sequence[str],
        config: Configuration,
        on_leader_change: Callable[[], None] = lambda: None,
        limits: CompactionLimits | None = None,
    ) -> None:
        self.id = address
        self.loop = asyncio.get_running_loop()
        self.leader: str | None = None
        self.cluster = tuple(sorted({_checked(a) for a in (address, *cluster)}))
        self._config = config
        self._on_leader_change = on_leader_change
        self._serializer = config.serializer
        self._data = Data(config.serializer)
        self._life = secrets.token_hex(8)
        self._count = 0
        self._answers: dict[str, asyncio.Future[object]] = {}
        self._restored_index = 0
        self._elections = 0
        self._follows: bool | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        rng = random.Random(secrets.randbits(64))
        self._transport = PeerTransport(
            HostId(address),
            address,
            cluster_token(config, self.cluster),
            on_messages=self._received,
            on_peer_change=self._peer_changed,
            rng=rng,
            ping_s=config.heartbeat_interval,
            silent_pings=config.step_down_missed_heartbeats,
        )
        self._members = Members(
            host=HostId(address),
            folder=Path(config.log_path) / address.replace(":", "_"),
            transport=self._transport,
            clock=SystemClock(),
            rng=rng,
            on_committed=self._committed,
            on_leader_change=self._leader_changed,
            hooks=self,
            limits=limits,
            tick_s=config.tick_s,
            timing=config.timing,
        )

    async def start(self) -> None:
        """Listen, recover the log, and take part.

        Raises:
            LaunchFailed: the address cannot be used.
            CorruptRecord: the log is damaged, or was made for other nodes.
            StorageError: the log cannot be opened.
        """
        await self._transport.start()
        try:
            hosts = tuple(HostId(address) for address in self.cluster)
            self._transport.set_peers({host: str(host) for host in hosts})
            await self._members.open(GROUP, hosts, campaign=False)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End, and keep the log; whoever waits for a change or an answer is told."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Unavailable(f"the node {self.id} was stopped"))
                answer.exception()
        await self._members.shut_down()
        await self._transport.close()

    # -- data --------------------------------------------------------------------------------

    def pack(self, value: object) -> bytes:
        """A value as the log holds it."""
        packed: bytes | str = self._serializer.pack(value)
        return packed.encode() if isinstance(packed, str) else packed

    async def change(self, operation: Operation) -> object:
        """Commit an operation and return its answer; waits for a majority as long as it takes.

        It is carried out once, however often the leader changes meanwhile. A caller who gives up
        waiting does not know whether it is.

        Raises:
            InvalidRequest: it is too large for an entry of the log.
            OutcomeUnknown: it was carried out, but this node missed what it answered.
            StorageError: this node's disk is full or broken.
            Unavailable: this node was stopped.
            Exception: what the operation raised.
        """
        payload = encode(operation)
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise InvalidRequest(
                f"a change of {operation.name} takes {len(payload):,} bytes, and at most "
                f"{PAYLOAD_BYTES_MAX:,} fit into one; split it"
            )
        self._count += 1
        proposal_id = f"{self._life}-{self._count}"
        answer = asyncio.get_running_loop().create_future()
        self._answers[proposal_id] = answer
        try:
            index = await self._commit(payload, proposal_id)
            if not answer.done() and index <= self._restored_index:
                if isinstance(operation, Set):
                    return None
                raise OutcomeUnknown(
                    f"a change of {operation.name} was carried out while this node was away, "
                    "and its answer is lost"
                )
            return await answer
        finally:
            del self._answers[proposal_id]

    async def _commit(self, payload: bytes, proposal_id: str) -> int:
        while True:
            try:
                return await self._members.propose(GROUP, payload, proposal_id, ASK_AGAIN_S)
            except (NoMajority, OutcomeUnknown) as error:
                _log.info("%s: %s; asking again", self.id, error)

    async def read(self, name: str, default: object, part: Callable[[Any], Any]) -> Any:
        """What `part` takes of a value; it shows every change acknowledged before this call.

        Raises:
            StorageError: this node's disk is full or broken.
            Unavailable: this node was stopped.
        """
        while True:
            try:
                await self._members.read_barrier(GROUP, ASK_AGAIN_S)
            except NoMajority as error:
                _log.info("%s: %s; asking again", self.id, error)
            else:
                return self._data.read(name, default, part)

    def _committed(self, _group: KernelId, entries: Sequence[Entry]) -> None:
        for entry in entries:
            answer = self._answers.get(entry.proposal_id)
            try:
                result = self._data.apply(entry.payload)
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asked for it
                if answer is not None and not answer.done():
                    answer.set_exception(error)
                    # The caller may have given up.
                    answer.exception()
            else:
                if answer is not None and not answer.done():
                    answer.set_result(result)

    # -- snapshots ---------------------------------------------------------------------------

    def capture(self, kernel: KernelId) -> Callable[[], Awaitable[bytes]]:  # noqa: ARG002
        """All data as of now; see `SnapshotHooks`."""
        packed = self._data.packed()

        async def made() -> bytes:
            return packed

        return made

    def compacted(self, kernel: KernelId, index: int) -> None:
        """Nothing here refers to entries of the log."""

    def restore(self, kernel: KernelId, index: int, state: bytes) -> None:  # noqa: ARG002
        """Go on from a snapshot. Raises StorageError."""
        try:
            self._data.load(state)
        except ProtocolError as error:
            raise StorageError(f"{self.id}: {error.message}") from error
        self._restored_index = index

    # -- who leads ---------------------------------------------------------------------------

    def _received(self, host: HostId, envelopes: Sequence[Envelope]) -> None:
        self._members.receive(host, envelopes)

    def _peer_changed(self, host: HostId, up: bool) -> None:
        if up:
            self._members.peer_back(host)
        else:
            self._members.peer_lost(host)

    def _leader_changed(self, _group: KernelId, leader: HostId | None) -> None:
        self._elections += 1
        if leader == self.id:
            self._start(self._begin_to_lead(self._elections))
            return
        self._tell(leader)
        if self._follows is False or (leader is not None and self._follows is None):
            self._follows = True
            self._call(self._config.on_follower)

    async def _begin_to_lead(self, election: int) -> None:
        """A barrier passes only after an entry of this term is committed."""
        while election == self._elections:
            try:
                await self._members.read_barrier(GROUP, ASK_AGAIN_S)
            except NoMajority:
                continue
            except NotebookOSError as error:
                _log.info("%s does not begin to lead: %s", self.id, error)
                return
            if election == self._elections:
                self._follows = False
                self._tell(self.id)
                self._call(self._config.on_leader)
            return

    def _tell(self, leader: str | None) -> None:
        if leader != self.leader:
            self.leader = leader
            self._on_leader_change()

    def _call(self, hook: Callable[[], Any]) -> None:
        try:
            result = hook()
        except Exception:  # noqa: BLE001 - the node goes on, whatever the program makes of it
            _log.exception("%s: a hook of the program failed", self.id)
            return
        if asyncio.iscoroutine(result):
            self._start(self._awaited(result))

    async def _awaited(self, work: Any) -> None:
        try:
            await work
        except Exception:  # noqa: BLE001 - as above
            _log.exception("%s: a hook of the program failed", self.id)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _checked(address: str) -> str:
    name, _, port = address.rpartition(":")
    if not name or not port.isdigit() or not 0 < int(port) < 65_536:
        raise InvalidRequest(f"{address!r} is not an address; write host:port, as 127.0.0.1:8000")
    return address
