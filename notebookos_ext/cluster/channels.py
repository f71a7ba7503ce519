"""Jupyter's wire format as pure functions: frames, signatures and the header fields that route.

Frames pass through the router as they came; only what the router says itself is built here. The
format is the Jupyter messaging protocol 5.4 over ZMQ: identities, a delimiter, an HMAC, header,
parent header, metadata and content as JSON, then raw buffers. The HMAC covers the JSON frames.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from notebookos_ext.errors import UNREADABLE, InvalidRequest, ProtocolError

DELIMITER = b"<IDS|MSG>"
PROTOCOL_VERSION = "5.4"
SIGNED_FRAMES = 4
"""Header, parent header, metadata and content; buffers are not signed, by the protocol."""

SHELL, CONTROL, STDIN, IOPUB, HEARTBEAT = "shell", "control", "stdin", "iopub", "hb"
CHANNELS = (SHELL, CONTROL, STDIN, IOPUB, HEARTBEAT)


class Header(msgspec.Struct, frozen=True):
    """The fields of a header that decide where a message goes."""

    msg_id: str
    msg_type: str
    subshell_id: str | None = None


class _Parent(msgspec.Struct, frozen=True):
    msg_id: str = ""


class Message(msgspec.Struct, frozen=True):
    """A message that was split but not unpacked; `frames` is all of it, as it came."""

    frames: tuple[bytes, ...]
    body: int
    """Index of the signature in `frames`; before the delimiter are identities or a topic."""
    header: Header
    parent_id: str
    """`msg_id` of the request that this message answers; empty for a request."""

    @property
    def identities(self) -> tuple[bytes, ...]:
        """The identities (or the topic) before the delimiter."""
        return self.frames[: self.body - 1]

    @property
    def signature(self) -> bytes:
        """The HMAC, in hex."""
        return self.frames[self.body]

    @property
    def header_frame(self) -> bytes:
        """The header as JSON, as it came: the parent header of whatever answers it."""
        return self.frames[self.body + 1]

    @property
    def signed(self) -> tuple[bytes, ...]:
        """The frames that the signature covers."""
        return self.frames[self.body + 1 : self.body + 1 + SIGNED_FRAMES]

    @property
    def content_frame(self) -> bytes:
        """The content as JSON, as it came."""
        return self.frames[self.body + 4]

    def metadata(self) -> dict[str, Any]:
        """The metadata. Raises ProtocolError when it is not a JSON object."""
        return _object(self.frames[self.body + 3], "metadata")

    def content(self) -> dict[str, Any]:
        """The content. Raises ProtocolError when it is not a JSON object."""
        return _object(self.content_frame, "content")


class Made(msgspec.Struct, frozen=True):
    """A message of the router's own, not yet stamped and signed. `parent` is a header frame."""

    msg_type: str
    content: Mapping[str, Any]
    parent: bytes = b"{}"
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)


_header_decoder = msgspec.json.Decoder(Header)
_parent_decoder = msgspec.json.Decoder(_Parent)
_object_decoder = msgspec.json.Decoder(dict[str, Any])
_encoder = msgspec.json.Encoder()


def _object(frame: bytes, what: str) -> dict[str, Any]:
    try:
        return _object_decoder.decode(frame)
    except UNREADABLE as error:
        raise ProtocolError(f"a client sent {what} that cannot be read: {error}") from error


def parse(frames: Sequence[bytes]) -> Message:
    """Split a message, read what routing needs. Raises ProtocolError when it is not a message."""
    frames = tuple(frames)
    try:
        body = frames.index(DELIMITER) + 1
    except ValueError:
        raise ProtocolError("frames without the delimiter <IDS|MSG> were dropped") from None
    if len(frames) < body + 1 + SIGNED_FRAMES:
        raise ProtocolError(f"a message of {len(frames)} frames is too short and was dropped")
    try:
        header = _header_decoder.decode(frames[body + 1])
        parent = _parent_decoder.decode(frames[body + 2])
    except UNREADABLE as error:
        raise ProtocolError(
            f"a message whose header cannot be read was dropped: {error}"
        ) from error
    return Message(frames, body, header, parent.msg_id)


class Signer:
    """Signs and checks messages with one kernel's session key; an empty key signs nothing."""

    def __init__(self, key: bytes, scheme: str = "hmac-sha256") -> None:
        """Raises InvalidRequest for a scheme that this Python cannot compute."""
        kind, _, algorithm = scheme.partition("-")
        if kind != "hmac" or algorithm not in hashlib.algorithms_available:
            raise InvalidRequest(
                f"the signature scheme {scheme!r} is unknown; use hmac-sha256, Jupyter's default"
            )
        self._base = hmac.new(key, digestmod=algorithm) if key else None

    def sign(self, parts: Sequence[bytes]) -> bytes:
        """The signature of the four JSON frames, in hex."""
        if self._base is None:
            return b""
        digest = self._base.copy()
        for part in parts:
            digest.update(part)
        return digest.hexdigest().encode()

    def check(self, message: Message) -> bool:
        """Whether the message was signed with this key."""
        return self._base is None or hmac.compare_digest(
            self.sign(message.signed), message.signature
        )


def build(made: Made, *, signer: Signer, msg_id: str, session: str, date: str) -> list[bytes]:
    """Stamp and sign a message: its frames from the delimiter on. `date` is ISO 8601, zoned."""
    header = {
        "msg_id": msg_id,
        "msg_type": made.msg_type,
        "username": "notebookos",
        "session": session,
        "date": date,
        "version": PROTOCOL_VERSION,
    }
    parts = [
        _encoder.encode(header),
        made.parent,
        _encoder.encode(made.metadata),
        _encoder.encode(made.content),
    ]
    return [DELIMITER, signer.sign(parts), *parts]
