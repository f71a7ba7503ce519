"""One real member alone among others that a test plays, in the words of either engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from engine_group import HOSTS, EngineHost, K, Network, until

from notebookos_ext.agent.raftos_wire import BetweenAgents, Datagram
from notebookos_ext.cluster.consensus.messages import (
    Append,
    AppendAnswer,
    Entry,
    Envelope,
    Foreign,
    VoteAnswer,
    VoteRequest,
)
from notebookos_ext.cluster.consensus.ready import Role
from notebookos_ext.cluster.model import HostId

ME = HOSTS[0]


class Heard(msgspec.Struct, frozen=True):
    """What the member said to somebody: it asks for a vote, answers, or verifies entries."""

    to: str
    kind: str
    term: int
    granted: bool = False
    pre: bool = False


class Words(Protocol):
    """An engine's language."""

    def vote_request(self, sender: str, term: int) -> Any: ...
    def vote(self, sender: str, term: int, *, pre: bool) -> Any: ...
    def append(self, sender: str, term: int, after: int, count: int) -> Any: ...
    def understood(self, message: Any) -> Heard | None: ...


class RaftWords:
    def vote_request(self, sender: str, term: int) -> Any:
        # As after a handover, so that it does not matter whether there is a leader.
        return VoteRequest(sender, ME, term, 99, term - 1, pre=False, transfer=True)

    def vote(self, sender: str, term: int, *, pre: bool) -> Any:
        return VoteAnswer(sender, ME, term, pre=pre, granted=True)

    def append(self, sender: str, term: int, after: int, count: int) -> Any:
        entries = tuple(
            Entry(term, index, f"p{index}", b"x") for index in range(after + 1, after + count + 1)
        )
        return Append(sender, ME, term, after, term if after else 0, entries, 0)

    def understood(self, message: Any) -> Heard | None:
        match message:
            case VoteRequest():
                return Heard(message.to, "vote?", message.term, pre=message.pre)
            case VoteAnswer(pre=False):
                return Heard(message.to, "vote", message.term, message.granted)
            case AppendAnswer():
                return Heard(message.to, "verified", message.term, message.accepted)
        return None


class RaftosWords:
    def vote_request(self, sender: str, term: int) -> Any:
        return self._datagram(
            sender,
            type="request_vote",
            term=term,
            candidate_id=f"{sender}:1",
            last_log_index=99,
            last_log_term=term - 1,
        )

    def vote(self, sender: str, term: int, *, pre: bool) -> Any:
        assert not pre
        return self._datagram(sender, type="request_vote_response", term=term, vote_granted=True)

    def append(self, sender: str, term: int, after: int, count: int) -> Any:
        return self._datagram(
            sender,
            type="append_entries",
            term=term,
            leader_id=f"{sender}:1",
            commit_index=0,
            request_id=1,
            prev_log_index=after,
            prev_log_term=term if after else 0,
            entries=[{"term": term, "command": {}} for _ in range(count)],
        )

    def understood(self, message: Any) -> Heard | None:
        datagram = msgspec.msgpack.decode(message.payload, type=BetweenAgents)
        said = json.loads(datagram.payload)
        match said["type"]:
            case "request_vote":
                return Heard(message.to, "vote?", said["term"])
            case "request_vote_response":
                return Heard(message.to, "vote", said["term"], bool(said.get("vote_granted")))
            case "append_entries_response":
                return Heard(message.to, "verified", said["term"], said["success"])
        return None

    def _datagram(self, sender: str, **said: Any) -> Any:
        datagram = Datagram(sender, json.dumps(said).encode())
        return Foreign(sender, ME, msgspec.msgpack.encode(datagram))


WORDS: dict[str, Words] = {"raft": RaftWords(), "raftos": RaftosWords()}


class Alone(Network):
    """A member whose peers only the test speaks for. `heard` is what it has said."""

    def __init__(
        self, folder: Path, engine: str, members: Sequence[HostId], heartbeat_s: float
    ) -> None:
        super().__init__()
        self.words = WORDS[engine]
        self.heard: list[Heard] = []
        self._folder = folder
        self._name = engine
        self._members = tuple(members)
        self._heartbeat_s = heartbeat_s
        self._group = ""

    async def start(self) -> None:
        """Open it, standing for election at once: that shows how it calls its group."""
        await self._open(campaign=True)
        await until(lambda: self._group)

    async def restart_as_follower(self) -> None:
        """End it and open it again, waiting to be spoken to."""
        await self.stop()
        await self._open(campaign=False)

    async def _open(self, *, campaign: bool) -> None:
        host = EngineHost(self, ME, self._folder, self._name, heartbeat_s=self._heartbeat_s)
        await host.engine.open(K, self._members, campaign=campaign)

    async def stop(self) -> None:
        if host := self.hosts.pop(ME, None):
            await host.engine.shut_down()

    def carry(self, sender: HostId, to: HostId, envelopes: Sequence[Envelope]) -> None:
        for envelope in envelopes:
            self._group = envelope.group
            if heard := self.words.understood(envelope.message):
                self.heard.append(heard)

    def say(self, message: Any) -> None:
        """To the member."""
        sender = HostId(message.sender)
        self.hosts[ME].engine.receive(sender, [Envelope(self._group, message)])

    async def answer(self, kind: str, to: str, term: int) -> Heard:
        """The next thing of this kind that it says to one of them in that term."""

        def found() -> Heard | None:
            return next((h for h in self.heard if (h.kind, h.to, h.term) == (kind, to, term)), None)

        await until(found)
        heard = found()
        assert heard is not None
        self.heard.remove(heard)
        return heard

    @property
    def asked_term(self) -> int:
        """The newest term in which it asked for real votes."""
        return max((h.term for h in self.heard if h.kind == "vote?" and not h.pre), default=0)

    @property
    def leads(self) -> bool:
        return self.hosts[ME].engine.status(K).role is Role.LEADER

    @property
    def last_index(self) -> int:
        return self.hosts[ME].engine.status(K).last_index

    async def candidacy(self, after_term: int = 0) -> int:
        """The term of its next real candidacy; whoever is asked beforehand says yes."""

        def asked() -> bool:
            for heard in self.heard:
                if heard.kind == "vote?" and heard.pre and heard.term > after_term:
                    self.say(self.words.vote(heard.to, heard.term, pre=True))
            return self.asked_term > after_term or self.leads

        await until(asked)
        return self.asked_term
