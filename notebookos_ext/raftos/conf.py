"""The settings of raftos, with its names and defaults, checked when they are made."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from notebookos_ext.cluster.consensus.ready import Timing
from notebookos_ext.errors import InvalidSettings
from notebookos_ext.raftos import cryptors, serializers

HEARTBEAT_TICKS = 2
HEARTBEAT_S_MIN = 0.01
PUBLISHED_SECRET = b"raftos sample secret key"
"""Everybody knows it, so it counts as none."""

_log = logging.getLogger(__name__)


def _nothing() -> None:
    """What is called when no hook was configured."""


class Configuration:
    """One for the process, as in raftos; attributes are the settings.

    Attributes:
        log_path: the folder for the logs; one folder below it per node.
        serializer: how values become bytes.
        heartbeat_interval: seconds between two heartbeats of a leader.
        step_down_missed_heartbeats: after so many without a majority a leader steps down, and after
            that many to twice as many without a leader a node stands for election.
        election_interval_spread: accepted and not used: the spread is always two.
        secret_key: what only the nodes of this cluster know; with `salt` it makes their token.
        salt: see `secret_key`.
        cryptor: accepted and not used: connections are always encrypted.
        on_leader: called, or awaited by a task of its own, when this node has begun to lead.
        on_follower: the same when it is certain that it does not lead (any more).
    """

    def __init__(self) -> None:
        self.log_path: Any = "/var/log/raftos/"
        self.serializer: serializers.Serializer = serializers.MessagePackSerializer()
        self.heartbeat_interval: float = 0.3
        self.step_down_missed_heartbeats: int = 5
        self.election_interval_spread: float = 3
        self.secret_key: bytes | str = PUBLISHED_SECRET
        self.salt: bytes | str = b"raftos sample salt"
        self.cryptor: object = cryptors.default_cryptor
        self.on_leader: Callable[[], Any] = _nothing
        self.on_follower: Callable[[], Any] = _nothing

    def configure(self, kwargs: Mapping[str, Any]) -> None:
        """Change settings; what has another name than those of raftos is kept and reported.

        Raises:
            InvalidSettings: a value makes no sense; nothing was changed.
        """
        wanted = {name.lower(): value for name, value in kwargs.items()}
        _check(wanted)
        for name, value in wanted.items():
            if not hasattr(self, name):
                _log.warning("raftos has no setting %s; it has no effect", name)
            setattr(self, name, value)
        if wanted.get("cryptor") is cryptors.DummyCryptor:
            _log.warning("connections between nodes are encrypted all the same")

    @property
    def tick_s(self) -> float:
        """One tick of the consensus core, in seconds."""
        return self.heartbeat_interval / HEARTBEAT_TICKS

    @property
    def timing(self) -> Timing:
        """The core's durations."""
        missed_ticks = HEARTBEAT_TICKS * self.step_down_missed_heartbeats
        return Timing(
            election_ticks=missed_ticks,
            heartbeat_ticks=HEARTBEAT_TICKS,
            retry_ticks=max(2, missed_ticks // 3),
        )

    @property
    def has_secret(self) -> bool:
        """Whether somebody chose a key of their own."""
        return as_bytes(self.secret_key) != PUBLISHED_SECRET


def as_bytes(value: bytes | str) -> bytes:
    """Text as its UTF-8 bytes."""
    return value.encode() if isinstance(value, str) else value


def _check(wanted: Mapping[str, Any]) -> None:
    seconds = wanted.get("heartbeat_interval", 1)
    if not _is_number(seconds) or not HEARTBEAT_S_MIN <= seconds < math.inf:
        raise InvalidSettings(
            f"heartbeat_interval is {seconds!r}; it must be a number of seconds, "
            f"{HEARTBEAT_S_MIN} or more"
        )
    missed = wanted.get("step_down_missed_heartbeats", 5)
    if not _is_number(missed) or missed != int(missed) or missed < 2:
        raise InvalidSettings(
            f"step_down_missed_heartbeats is {missed!r}; it must be a whole number, 2 or more"
        )
    for name in ("secret_key", "salt"):
        if not isinstance(wanted.get(name, b"x"), bytes | str) or not wanted.get(name, b"x"):
            raise InvalidSettings(f"{name} must be bytes or text, and not empty")
    for name in ("on_leader", "on_follower"):
        if not callable(wanted.get(name, _nothing)):
            raise InvalidSettings(f"{name} must be a function or a coroutine function")
    serializer = wanted.get("serializer", serializers.MessagePackSerializer)
    if not all(callable(getattr(serializer, verb, None)) for verb in ("pack", "unpack")):
        raise InvalidSettings("serializer must have the functions pack and unpack")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


config = Configuration()
configure = config.configure
