"""What an agent and the process of one of its raftos members say to each other."""

from __future__ import annotations

import msgspec

from notebookos_ext.cluster.consensus.ready import Role


class Begin(msgspec.Struct, frozen=True, array_like=True, tag="begin"):
    """To the process, first of all: which member it is."""

    host: str
    members: tuple[str, ...]
    folder: str
    heartbeat_s: float


class Begun(msgspec.Struct, frozen=True, array_like=True, tag="begun"):
    """From the process: it takes part."""


class Datagram(msgspec.Struct, frozen=True, array_like=True, tag="datagram"):
    """What raftos would send by UDP, to the process from `host` or from it to `host`."""

    host: str
    payload: bytes


class Command(msgspec.Struct, frozen=True, array_like=True, tag="command"):
    """To the leader's agent and its process: append this; nobody answers but the log."""

    proposal_id: str
    payload: bytes


class Campaign(msgspec.Struct, frozen=True, array_like=True, tag="campaign"):
    """To the process: stand for election now."""


class Applied(msgspec.Struct, frozen=True, array_like=True, tag="applied"):
    """From the process: raftos takes this for committed; `index` counts from 1 in each life."""

    term: int
    index: int
    proposal_id: str
    payload: bytes


class Standing(msgspec.Struct, frozen=True, array_like=True, tag="standing"):
    """From the process, whenever it changes: what raftos believes."""

    role: Role
    term: int
    leader: str | None
    last_index: int
    commit_index: int


BetweenAgents = Datagram | Command
"""What travels between the agents of a group's members."""
ToProcess = Begin | Datagram | Command | Campaign
FromProcess = Begun | Datagram | Applied | Standing
