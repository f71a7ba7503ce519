"""The handshake and the ciphers of `Noise_NNpsk0_25519_ChaChaPoly_SHA256`, as pure functions.

The Noise Protocol Framework (https://noiseprotocol.org/noise.html, revision 34) says how two ends
that share a key agree on fresh ones: each sends the public half of a key pair made for this
connection, and what follows can be read only by who has the shared key *and* one of the secret
halves. So a shared key that leaks later opens no recorded connection, and nothing from one
connection means anything on another.

    dialler  → psk, e     and a payload
    listener → e, ee      and a payload

The listener is sure of the dialler only when the first message under the new keys arrives: the
dialler's opening could be a repetition.
"""

from __future__ import annotations

import hashlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from notebookos_ext.errors import Refused

NAME = b"Noise_NNpsk0_25519_ChaChaPoly_SHA256"
KEY_BYTES = 32
TAG_BYTES = 16
MESSAGE_BYTES_MAX = 65_535
"""Of a whole message, its tag included (section 3 of the specification)."""


class Cipher:
    """One direction of a connection: authenticated encryption with a counter as its nonce."""

    def __init__(self, key: bytes) -> None:
        self._aead = ChaCha20Poly1305(key)
        self._count = 0

    def encrypt(self, plaintext: bytes, associated: bytes = b"") -> bytes:
        """The next message to send, `TAG_BYTES` longer than `plaintext`."""
        return self._aead.encrypt(self._nonce(), plaintext, associated)

    def decrypt(self, message: bytes, associated: bytes = b"") -> bytes:
        """The next message that arrived.

        Raises:
            Refused: it is not what the other end sent next.
        """
        try:
            return self._aead.decrypt(self._nonce(), message, associated)
        except InvalidTag:
            raise Refused("a message is not what the holder of the key sent next") from None

    def _nonce(self) -> bytes:
        # 2**64 messages are not sent in the life of a connection.
        nonce = bytes(4) + self._count.to_bytes(8, "little")
        self._count += 1
        return nonce


class Handshake:
    """One end's part of the handshake; messages alternate, the dialler's comes first.

    Args:
        dials: whether this end speaks first.
        shared_key: `KEY_BYTES` known to both ends.
        secret: `KEY_BYTES` of randomness for this connection alone.
        prologue: what both ends believe to be true of the connection; they must agree.
    """

    def __init__(self, *, dials: bool, shared_key: bytes, secret: bytes, prologue: bytes) -> None:
        self._dials = dials
        self._private = X25519PrivateKey.from_private_bytes(secret)
        self._their_public = b""
        # The name is longer than a hash, so it enters as its hash (section 5.2).
        self._chain = hashlib.sha256(NAME).digest()
        self._hash = self._chain
        self._cipher: Cipher | None = None
        self._mix_hash(prologue)
        self._chain, seen, key = self._derived(shared_key, 3)
        self._mix_hash(seen)
        self._cipher = Cipher(key)

    def write(self, payload: bytes) -> bytes:
        """This end's message."""
        public = self._private.public_key().public_bytes_raw()
        self._mix_public(public)
        if not self._dials:
            self._mix_exchange()
        sealed = self._current.encrypt(payload, self._hash)
        self._mix_hash(sealed)
        return public + sealed

    def read(self, message: bytes) -> bytes:
        """The payload of the other end's message.

        Raises:
            Refused: it was not made with the shared key, or not for this connection.
        """
        if len(message) < KEY_BYTES + TAG_BYTES:
            raise Refused("a handshake message is too short")
        self._their_public, sealed = message[:KEY_BYTES], message[KEY_BYTES:]
        self._mix_public(self._their_public)
        if self._dials:
            self._mix_exchange()
        payload = self._current.decrypt(sealed, self._hash)
        self._mix_hash(sealed)
        return payload

    def ciphers(self) -> tuple[Cipher, Cipher]:
        """For sending and for receiving, once both messages have passed."""
        of_dialler, of_listener = (Cipher(key) for key in self._derived(b"", 2))
        return (of_dialler, of_listener) if self._dials else (of_listener, of_dialler)

    @property
    def _current(self) -> Cipher:
        assert self._cipher is not None  # noqa: S101 - set by __init__
        return self._cipher

    def _mix_public(self, public: bytes) -> None:
        self._mix_hash(public)
        self._mix_key(public)

    def _mix_exchange(self) -> None:
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(self._their_public))
        except ValueError:
            raise Refused("the other end's public key is not a usable one") from None
        self._mix_key(shared)

    def _mix_hash(self, data: bytes) -> None:
        self._hash = hashlib.sha256(self._hash + data).digest()

    def _mix_key(self, material: bytes) -> None:
        self._chain, key = self._derived(material, 2)
        self._cipher = Cipher(key)

    def _derived(self, material: bytes, count: int) -> list[bytes]:
        # Noise's own HKDF is that of RFC 5869 with the chaining key as salt and without info.
        size = count * KEY_BYTES
        derived = HKDF(SHA256(), length=size, salt=self._chain, info=b"").derive(material)
        return [derived[at : at + KEY_BYTES] for at in range(0, size, KEY_BYTES)]


def shared_key_of(token: bytes) -> bytes:
    """The key that hosts share because they share `token`; of no use for anything else."""
    return HKDF(SHA256(), length=KEY_BYTES, salt=None, info=b"notebookos peers").derive(token)
