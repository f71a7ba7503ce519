"""What two host agents say on one connection, without the connection itself.

First a handshake. Both know the cluster token and neither sends it. Each proves it with a keyed
BLAKE2b over both names, both incarnations and both nonces, so that a proof fits one connection, one
direction and one role only; keys for the frames come from the same values. Frames carry a MAC that
covers their number, so that none can be forged, changed, repeated or dropped unnoticed. They are
not encrypted: agents of different machines need a private network between them.

    dialler  → hello      version, name, incarnation, nonce
    listener → challenge  name, incarnation, nonce, proof
    dialler  → proof
    then, both ways: length u32 | MAC 16 bytes | payload
"""

from __future__ import annotations

import hashlib
import hmac
import struct

import msgspec

from notebookos_ext.errors import ProtocolError, Refused

VERSION = 1
PAYLOAD_BYTES_MAX = 16_000_000
NONCE_BYTES = 32

_HANDSHAKE_BYTES_MAX = 1_000
_LENGTH = struct.Struct(">I")
_MAC_BYTES = 16


class _Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    version: int
    host: str
    incarnation: str
    nonce: bytes


class _Challenge(msgspec.Struct, frozen=True, array_like=True, tag="challenge"):
    host: str
    incarnation: str
    nonce: bytes
    proof: bytes


class _Proof(msgspec.Struct, frozen=True, array_like=True, tag="proof"):
    proof: bytes


_Step = _Hello | _Challenge | _Proof
_encode = msgspec.msgpack.Encoder().encode
_decode_step = msgspec.msgpack.Decoder(_Step).decode


class PeerChannel:
    """One end of a connection. `peer` and `peer_incarnation` are known once `is_open`.

    `expected` is the host that a dialler wants to reach; None for the listener, who takes whoever
    can prove the token. `nonce` must never be used twice.
    """

    def __init__(
        self, *, host: str, incarnation: str, token: bytes, nonce: bytes, expected: str | None
    ) -> None:
        self.peer = ""
        self.peer_incarnation = ""
        self.is_open = False
        self._host = host
        self._incarnation = incarnation
        # BLAKE2b takes keys of up to 64 bytes; the person string keeps these proofs apart from
        # whatever else is made with the token.
        self._key = hashlib.blake2b(token, person=b"nbos-peer").digest()
        self._nonce = nonce
        self._expected = expected
        self._dials = expected is not None
        self._transcript = b""
        self._buffer = bytearray()
        self._send_key = b""
        self._receive_key = b""
        self._sent = 0
        self._received = 0

    def opening(self) -> bytes:
        """What is to be sent as soon as there is a connection; the listener waits."""
        if not self._dials:
            return b""
        return self._plain(_Hello(VERSION, self._host, self._incarnation, self._nonce))

    def seal(self, payload: bytes) -> bytes:
        """The next frame to send."""
        self._sent += 1
        mac = self._frame_mac(self._send_key, self._sent, payload)
        return b"".join((_LENGTH.pack(len(payload)), mac, payload))

    def receive(self, data: bytes) -> tuple[bytes, list[bytes]]:
        """What arrived; returns bytes to answer with and the payloads that are complete.

        Raises:
            ProtocolError: the bytes are not what the protocol allows.
            Refused: the other end does not know the token, or is not the host it should be.
        """
        self._buffer += data
        answer = b""
        payloads: list[bytes] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > (PAYLOAD_BYTES_MAX if self.is_open else _HANDSHAKE_BYTES_MAX):
                raise ProtocolError(f"a peer announced a frame of {length:,} bytes")
            start = _LENGTH.size + (_MAC_BYTES if self.is_open else 0)
            if len(self._buffer) < start + length:
                break
            mac = bytes(self._buffer[_LENGTH.size : start])
            payload = bytes(self._buffer[start : start + length])
            del self._buffer[: start + length]
            if self.is_open:
                self._received += 1
                expected = self._frame_mac(self._receive_key, self._received, payload)
                if not hmac.compare_digest(mac, expected):
                    raise Refused(f"a frame that claims to come from {self.peer} is not its own")
                payloads.append(payload)
            else:
                answer += self._next_step(payload)
        return answer, payloads

    def _next_step(self, payload: bytes) -> bytes:
        try:
            step = _decode_step(payload)
        except msgspec.DecodeError as error:
            raise ProtocolError(f"a peer sent no handshake: {error}") from error
        if isinstance(step, _Hello) and not self._dials and not self._transcript:
            return self._on_hello(step)
        if isinstance(step, _Challenge) and self._dials:
            return self._on_challenge(step)
        if isinstance(step, _Proof) and self._transcript and not self._dials:
            self._require_proof(step.proof, b"dialler")
            self.is_open = True
            return b""
        raise ProtocolError("a peer broke the order of the handshake")

    def _on_hello(self, hello: _Hello) -> bytes:
        if hello.version != VERSION:
            raise ProtocolError(
                f"{hello.host} speaks version {hello.version} of the peer protocol, not {VERSION}; "
                "install the same version of this package on all hosts"
            )
        self._meet(hello.host, hello.incarnation, hello.nonce)
        return self._plain(
            _Challenge(self._host, self._incarnation, self._nonce, self._proof(b"listener"))
        )

    def _on_challenge(self, challenge: _Challenge) -> bytes:
        self._meet(challenge.host, challenge.incarnation, challenge.nonce)
        self._require_proof(challenge.proof, b"listener")
        if challenge.host != self._expected:
            raise Refused(f"{challenge.host} answers at the address of {self._expected}")
        self.is_open = True
        return self._plain(_Proof(self._proof(b"dialler")))

    def _meet(self, peer: str, incarnation: str, nonce: bytes) -> None:
        if len(nonce) != NONCE_BYTES:
            raise ProtocolError(f"{peer} sent a nonce of {len(nonce)} bytes")
        self.peer, self.peer_incarnation = peer, incarnation
        ours = (self._host, self._incarnation, self._nonce)
        theirs = (peer, incarnation, nonce)
        self._transcript = _encode((*ours, *theirs) if self._dials else (*theirs, *ours))
        key_of_dialler, key_of_listener = self._proof(b"key dialler"), self._proof(b"key listener")
        self._send_key = key_of_dialler if self._dials else key_of_listener
        self._receive_key = key_of_listener if self._dials else key_of_dialler

    def _require_proof(self, proof: bytes, role: bytes) -> None:
        if not hmac.compare_digest(proof, self._proof(role)):
            raise Refused(f"{self.peer} does not know the token of this cluster")

    def _proof(self, role: bytes) -> bytes:
        return hashlib.blake2b(role + b"\0" + self._transcript, key=self._key).digest()

    @staticmethod
    def _plain(step: _Step) -> bytes:
        body = _encode(step)
        return _LENGTH.pack(len(body)) + body

    @staticmethod
    def _frame_mac(key: bytes, number: int, payload: bytes) -> bytes:
        mac = hashlib.blake2b(number.to_bytes(8, "big"), key=key, digest_size=_MAC_BYTES)
        mac.update(payload)
        return mac.digest()
