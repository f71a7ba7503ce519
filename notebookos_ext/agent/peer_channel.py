"""What two host agents say on one connection, without the connection itself.

First a handshake (`noise.py`) that only holders of the cluster token can complete; in it both say
who they are, sealed. Then records, each encrypted, with a tag that covers its number: none can be
read, forged, changed, repeated or dropped unnoticed.

    dialler  → "NBOS" version u8 | length u16 | hello
    listener → "NBOS" version u8 | length u16 | hello
    dialler  → an empty record, by which the listener knows that the dialler is no repetition
    then, both ways: length u16 | sealed record
"""

from __future__ import annotations

import struct

import msgspec

from notebookos_ext.agent.noise import MESSAGE_BYTES_MAX, Cipher, Handshake, shared_key_of
from notebookos_ext.agent.peer_outbox import PING, RECORD_BYTES_MAX, Inbox
from notebookos_ext.errors import UNREADABLE, ProtocolError, Refused

VERSION = 2
SECRET_BYTES = 32

_LENGTH = struct.Struct(">H")
_MAGIC = b"NBOS"
_PREAMBLE_BYTES = len(_MAGIC) + 1
_HELLO_BYTES_MAX = 1_000


class _Hello(msgspec.Struct, frozen=True, array_like=True):
    host: str
    incarnation: str


_encode = msgspec.msgpack.Encoder().encode
_decode_hello = msgspec.msgpack.Decoder(_Hello).decode


class PeerChannel:
    """One end of a connection. `peer` and `peer_incarnation` are certain once `is_open`.

    Args:
        host: this end's name.
        incarnation: tells this life of the host from others.
        token: the cluster token.
        secret: `SECRET_BYTES` of randomness that is used for this connection alone.
        expected: the host that a dialler wants to reach; None for the listener, who takes whoever
            has the token.
    """

    def __init__(
        self, *, host: str, incarnation: str, token: bytes, secret: bytes, expected: str | None
    ) -> None:
        self.peer = ""
        self.peer_incarnation = ""
        self.is_open = False
        self._hello = _encode(_Hello(host, incarnation))
        self._expected = expected
        self._dials = expected is not None
        self._preamble = _MAGIC + bytes([VERSION])
        self._handshake = Handshake(
            dials=self._dials,
            shared_key=shared_key_of(token),
            secret=secret,
            prologue=self._preamble,
        )
        self._met = False
        self._buffer = bytearray()
        self._inbox = Inbox()
        self._sending: Cipher | None = None
        self._receiving: Cipher | None = None

    def opening(self) -> bytes:
        """What is to be sent as soon as there is a connection; the listener waits."""
        return self._preamble + _framed(self._handshake.write(self._hello)) if self._dials else b""

    def seal(self, record: bytes) -> bytes:
        """A record as the bytes to send next; only once the channel is open."""
        if self._sending is None:
            raise ProtocolError("nothing can be sealed before the handshake")
        if len(record) > RECORD_BYTES_MAX:
            raise ProtocolError(f"a record of {len(record):,} bytes is too large")
        return _framed(self._sending.encrypt(record))

    def receive(self, data: bytes) -> tuple[bytes, list[bytes]]:
        """What arrived; returns bytes to answer with and the messages that are complete.

        Raises:
            ProtocolError: the bytes are not what the protocol allows.
            Refused: the other end does not know the token, or is not the host it should be.
        """
        self._buffer += data
        answer = b""
        messages: list[bytes] = []
        if not self._met and not self._take_preamble():
            return answer, messages
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if self._receiving is None and length > _HELLO_BYTES_MAX:
                raise ProtocolError(f"a peer announced a hello of {length:,} bytes")
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            frame = bytes(memoryview(self._buffer)[start + _LENGTH.size : end])
            start = end
            if self._receiving is None:
                answer += self._meet(frame)
            else:
                messages += self._open_record(self._receiving, frame)
        del self._buffer[:start]
        return answer, messages

    def _take_preamble(self) -> bool:
        """Whether the other end has said which protocol it speaks, and it is ours."""
        said = self._buffer[:_PREAMBLE_BYTES]
        if not _MAGIC.startswith(said[: len(_MAGIC)]):
            raise ProtocolError(
                "a peer does not speak this peer protocol; "
                "install the same version of this package on all hosts"
            )
        if len(said) < _PREAMBLE_BYTES:
            return False
        if said[-1] != VERSION:
            raise ProtocolError(
                f"a peer speaks version {said[-1]} of the peer protocol, not {VERSION}; "
                "install the same version of this package on all hosts"
            )
        del self._buffer[:_PREAMBLE_BYTES]
        self._met = True
        return True

    def _meet(self, frame: bytes) -> bytes:
        try:
            hello = _decode_hello(self._handshake.read(frame))
        except Refused:
            raise Refused(
                f"{self._expected or 'who dials'} does not know the token of this cluster"
            ) from None
        except UNREADABLE as error:
            raise ProtocolError(f"a peer sent no hello: {error}") from error
        self.peer, self.peer_incarnation = hello.host, hello.incarnation
        if not self._dials:
            answer = self._preamble + _framed(self._handshake.write(self._hello))
            self._sending, self._receiving = self._handshake.ciphers()
            return answer
        if hello.host != self._expected:
            raise Refused(f"{hello.host} answers at the address of {self._expected}")
        self._sending, self._receiving = self._handshake.ciphers()
        self.is_open = True
        return self.seal(PING)

    def _open_record(self, receiving: Cipher, frame: bytes) -> list[bytes]:
        try:
            record = receiving.decrypt(frame)
        except Refused:
            raise Refused(f"a record that claims to come from {self.peer} is not its own") from None
        self.is_open = True
        return self._inbox.open_record(record)


def _framed(body: bytes) -> bytes:
    if len(body) > MESSAGE_BYTES_MAX:
        raise ProtocolError(f"a frame of {len(body):,} bytes is too large")
    return _LENGTH.pack(len(body)) + body
