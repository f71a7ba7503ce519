"""What waits for one peer: urgent messages first, large ones in parts, each group in turn.

A record is what travels under one seal. It either packs whole messages or holds a part of a large
one, and it is small, so that a heartbeat waits for one record at most, however much else waits.
Messages of one group keep their order, because a follower refuses entries that come too early.
"""

from __future__ import annotations

import struct
from collections import deque

from notebookos_ext.errors import ProtocolError

RECORD_BYTES_MAX = 32_768
MESSAGE_BYTES_MAX = 4_000_000
"""Of one message; four times what a leader puts into one at most."""
STREAMS_MAX = 8
"""So many large messages may be under way at once, so what a peer can make us keep is bounded."""
WAITING_BYTES_MAX = 32_000_000

_WHOLE, _PART, _LAST = 0, 1, 2
_KIND = struct.Struct(">B")
_PART_HEAD = struct.Struct(">BB")
_LENGTH = struct.Struct(">H")
_PART_BYTES_MAX = RECORD_BYTES_MAX - _PART_HEAD.size
_WHOLE_BYTES_MAX = RECORD_BYTES_MAX - _KIND.size - _LENGTH.size

PING = _KIND.pack(_WHOLE)
"""A record without a message."""


class _Group:
    """One group's waiting messages, each with its age; the first may have left in part."""

    def __init__(self) -> None:
        self.messages: deque[tuple[int, bytes]] = deque()
        self.stream: int | None = None
        self.left_bytes = 0


class Outbox:
    """Collects messages and gives them out as records. A full one forgets its oldest messages.

    What is forgotten is counted. A Raft member repeats whatever matters and was not answered, and
    the newest word is worth the most; urgent messages are forgotten only when nothing else is left.
    """

    def __init__(self, bytes_max: int = WAITING_BYTES_MAX) -> None:
        self.dropped = 0
        self._bytes_max = bytes_max
        self._bytes = 0
        self._age = 0
        self._urgent: deque[bytes] = deque()
        # In the order of their turns.
        self._groups: dict[str, _Group] = {}
        self._free_streams = list(range(STREAMS_MAX))

    def __len__(self) -> int:
        return len(self._urgent) + sum(len(group.messages) for group in self._groups.values())

    @property
    def waiting_bytes(self) -> int:
        """Of all messages that have not left completely."""
        return self._bytes

    def put(self, message: bytes, group: str | None) -> None:
        """Add a message of a group; None: it is urgent and may overtake everything else."""
        if len(message) > MESSAGE_BYTES_MAX:
            self.dropped += 1
            return
        self._bytes += len(message)
        if group is None and len(message) <= _WHOLE_BYTES_MAX:
            self._urgent.append(message)
        else:
            self._age += 1
            waiting = self._groups.setdefault(group or "", _Group())
            waiting.messages.append((self._age, message))
        while self._bytes > self._bytes_max and self._forget_oldest():
            pass

    def next_record(self) -> bytes | None:
        """What to seal and send next; None when nothing waits."""
        packed = [PING]
        space = RECORD_BYTES_MAX - len(PING)
        while self._urgent and _LENGTH.size + len(self._urgent[0]) <= space:
            message = self._urgent.popleft()
            packed += (_LENGTH.pack(len(message)), message)
            space -= _LENGTH.size + len(message)
            self._bytes -= len(message)
        while not self._urgent and (turn := self._next_turn()) is not None:
            name, group = turn
            message = group.messages[0][1]
            if len(message) > _WHOLE_BYTES_MAX:
                return self._part(name, group) if len(packed) == 1 else b"".join(packed)
            if _LENGTH.size + len(message) > space:
                break
            packed += (_LENGTH.pack(len(message)), message)
            space -= _LENGTH.size + len(message)
            self._left(name, group)
        return b"".join(packed) if len(packed) > 1 else None

    def _next_turn(self) -> tuple[str, _Group] | None:
        """The first group in turn whose first message may leave now."""
        for name, group in self._groups.items():
            is_large = len(group.messages[0][1]) > _WHOLE_BYTES_MAX
            if not is_large or group.stream is not None or self._free_streams:
                return name, group
        return None

    def _part(self, name: str, group: _Group) -> bytes:
        if group.stream is None:
            group.stream = self._free_streams.pop(0)
            group.left_bytes = 0
        stream, message = group.stream, group.messages[0][1]
        end = group.left_bytes + _PART_BYTES_MAX
        part = message[group.left_bytes : end]
        if end < len(message):
            group.left_bytes = end
            self._groups[name] = self._groups.pop(name)
            return _PART_HEAD.pack(_PART, stream) + part
        self._free_streams.append(stream)
        group.stream = None
        self._left(name, group)
        return _PART_HEAD.pack(_LAST, stream) + part

    def _left(self, name: str, group: _Group) -> None:
        self._bytes -= len(group.messages.popleft()[1])
        del self._groups[name]
        if group.messages:
            self._groups[name] = group

    def _forget_oldest(self) -> bool:
        """Forget a message that has not begun to leave; False if there is only what came last."""
        oldest: tuple[int, _Group, int] | None = None
        for group in self._groups.values():
            place = 0 if group.stream is None else 1
            if place < len(group.messages):
                age = group.messages[place][0]
                if age != self._age and (oldest is None or age < oldest[0]):
                    oldest = (age, group, place)
        if oldest is None:
            if len(self._urgent) <= 1:
                return False
            self._bytes -= len(self._urgent.popleft())
            self.dropped += 1
            return True
        _, group, place = oldest
        self._bytes -= len(group.messages[place][1])
        del group.messages[place]
        self.dropped += 1
        # An empty group keeps no turn.
        self._groups = {name: group for name, group in self._groups.items() if group.messages}
        return True


class Inbox:
    """The other end of an `Outbox`: records in, whole messages out, in the order of their ends."""

    def __init__(self) -> None:
        self._parts: dict[int, bytearray] = {}

    def open_record(self, record: bytes) -> list[bytes]:
        """The messages that are complete with this record.

        Raises:
            ProtocolError: no outbox makes such a record.
        """
        if not record or record[0] not in {_WHOLE, _PART, _LAST}:
            raise ProtocolError("a peer sent a record of an unknown kind")
        if record[0] == _WHOLE:
            return _unpacked(record)
        if len(record) <= _PART_HEAD.size or record[1] >= STREAMS_MAX:
            raise ProtocolError("a peer sent a part that belongs to no message")
        collected = self._parts.setdefault(record[1], bytearray())
        collected += memoryview(record)[_PART_HEAD.size :]
        if len(collected) > MESSAGE_BYTES_MAX:
            raise ProtocolError(f"a peer sent a message of more than {MESSAGE_BYTES_MAX:,} bytes")
        if record[0] == _PART:
            return []
        del self._parts[record[1]]
        return [bytes(collected)]


def _unpacked(record: bytes) -> list[bytes]:
    messages = []
    at = _KIND.size
    while at < len(record):
        start = at + _LENGTH.size
        if start > len(record):
            raise ProtocolError("a peer sent a record that ends within a length")
        at = start + _LENGTH.unpack_from(record, at)[0]
        if at > len(record):
            raise ProtocolError("a peer sent a record that ends within a message")
        messages.append(record[start:at])
    return messages
