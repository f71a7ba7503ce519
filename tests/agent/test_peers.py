"""The peer protocol without sockets: conversations, and the handshake against known answers."""

from __future__ import annotations

from pathlib import Path

import goldens
import pytest
from peer_talk import PeerConversation

from notebookos_ext.agent.noise import Handshake, shared_key_of
from notebookos_ext.agent.peer_channel import SECRET_BYTES, PeerChannel
from notebookos_ext.agent.peer_outbox import (
    MESSAGE_BYTES_MAX,
    PING,
    RECORD_BYTES_MAX,
    Outbox,
)
from notebookos_ext.errors import ProtocolError, Refused

FOLDER = Path(__file__).resolve().parent.parent / "testdata" / "peers"

KNOWN_ANSWERS = (
    (
        "358072d6365880d1aeea329adf9121383851ed21a28e3b75e965d0d2cd16625457358eb2073b5e7aab68606341da70"
        "341523a69363"
    ),
    (
        "79a631eede1bf9c98f12032cdeadd0e7a079398fc786b88cc846ec89af85a51ae53a094db169b01c9f90f1379498ce"
        "2ffb22cdc5ea0a"
    ),
    "dbd589dd48169ab2c66e5c3fae4963cd7cd6cf4045",
    "e36df07e960e61c0816b874348c593a6b71708ad31bb",
    "8b1c3d8532740a89c48832617dd098a4",
    "ada7f68e2a680b9db96fb535321d775947b45e",
)
"""What noiseprotocol 0.3.1, which passes the published vectors, says with the same keys."""


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_conversation(path: Path, rewrite: bool) -> None:
    goldens.hold(path, PeerConversation(), rewrite=rewrite)


def handshakes(prologue: bytes = b"a prologue") -> tuple[Handshake, Handshake]:
    key, one, two = (bytes(range(start, start + 32)) for start in (0, 32, 64))
    return (
        Handshake(dials=True, shared_key=key, secret=one, prologue=b"a prologue"),
        Handshake(dials=False, shared_key=key, secret=two, prologue=prologue),
    )


def test_the_handshake_is_noise_to_the_byte() -> None:
    a, b = handshakes()
    first = a.write(b"first")
    assert b.read(first) == b"first"
    second = b.write(b"second")
    assert a.read(second) == b"second"
    (to_b, from_b), (to_a, from_a) = a.ciphers(), b.ciphers()
    third, fourth = to_b.encrypt(b"third"), to_a.encrypt(b"fourth")
    fifth, sixth = to_b.encrypt(b""), to_a.encrypt(b"xxx")
    assert tuple(m.hex() for m in (first, second, third, fourth, fifth, sixth)) == KNOWN_ANSWERS
    assert [from_a.decrypt(third), from_a.decrypt(fifth)] == [b"third", b""]
    assert [from_b.decrypt(fourth), from_b.decrypt(sixth)] == [b"fourth", b"xxx"]


def test_a_handshake_needs_the_same_prologue_and_a_usable_key() -> None:
    a, b = handshakes(b"another prologue")
    with pytest.raises(Refused, match="holder of the key"):
        b.read(a.write(b""))
    a, b = handshakes()
    with pytest.raises(Refused, match="too short"):
        b.read(bytes(47))
    # The neutral element, with which every exchange gives the same secret.
    a.write(b"")
    with pytest.raises(Refused, match="not a usable one"):
        a.read(bytes(48))


def test_the_shared_key_is_not_the_token() -> None:
    token = b"t" * 32
    assert shared_key_of(token) != token
    assert shared_key_of(token) != shared_key_of(b"u" * 32)


def opened() -> tuple[PeerChannel, PeerChannel]:
    a, b = (
        PeerChannel(
            host=host, incarnation=host, token=b"t" * 32, secret=host.encode() * 32, expected=peer
        )
        for host, peer in (("a", "b"), ("b", None))
    )
    assert b.receive(a.receive(b.receive(a.opening())[0])[0]) == (b"", [])
    return a, b


def test_nothing_readable_is_on_the_wire() -> None:
    a, b = opened()
    sealed = a.seal(b"\x00\x00\x06secret")
    assert b"secret" not in sealed
    assert b.receive(sealed) == (b"", [b"secret"])
    assert a.seal(b"\x00\x00\x06secret") != sealed
    assert (a.peer_incarnation, b.peer_incarnation) == ("b", "a")


def test_records_arrive_in_any_pieces() -> None:
    a, b = opened()
    stream = a.seal(b"\x00\x00\x03one") + a.seal(PING) + a.seal(b"\x00\x00\x03two\x00\x00")
    received = [m for n in range(len(stream)) for m in b.receive(stream[n : n + 1])[1]]
    assert received == [b"one", b"two", b""]
    assert a.receive(b.seal(b"\x00\x00\x04back"))[1] == [b"back"]


@pytest.mark.parametrize("parts", [1, 2])
def test_p6_messages_of_any_length_around_that_of_a_record_arrive_whole(parts: int) -> None:
    """PySyncObj puts together wrongly what is cut at some lengths."""
    a, b = opened()
    for excess in range(-16, 17):
        message = bytes(n % 251 for n in range(parts * RECORD_BYTES_MAX + excess))
        outbox = Outbox()
        outbox.put(message, "group")
        outbox.put(b"after", "group")
        received = []
        while (record := outbox.next_record()) is not None:
            received += b.receive(a.seal(record))[1]
        assert received == [message, b"after"], excess


def test_a_recorded_connection_cannot_be_played_again() -> None:
    a, _ = opened()
    fresh = PeerChannel(
        host="b", incarnation="b", token=b"t" * 32, secret=b"f" * SECRET_BYTES, expected=None
    )
    again = PeerChannel(
        host="a", incarnation="a", token=b"t" * 32, secret=b"a" * SECRET_BYTES, expected="b"
    )
    answer, _ = fresh.receive(again.opening())
    assert answer, "the first message could come from anybody who has heard it"
    assert not fresh.is_open
    with pytest.raises(Refused, match="is not its own"):
        fresh.receive(a.seal(b"\x00\x00\x03one"))
    assert not fresh.is_open


def test_the_opening_of_a_connection_is_no_answer_to_itself() -> None:
    a = PeerChannel(
        host="a", incarnation="a", token=b"t" * 32, secret=b"a" * SECRET_BYTES, expected="b"
    )
    with pytest.raises(Refused):
        a.receive(a.opening())


def test_before_the_handshake_nothing_is_sealed_and_hellos_are_short() -> None:
    a, b = (
        PeerChannel(
            host=host, incarnation="1", token=b"t" * 32, secret=b"s" * SECRET_BYTES, expected=peer
        )
        for host, peer in (("a", "b"), ("b", None))
    )
    with pytest.raises(ProtocolError, match="before the handshake"):
        a.seal(b"\x00")
    with pytest.raises(ProtocolError, match="1,001 bytes"):
        b.receive(a.opening()[:5] + (1001).to_bytes(2, "big"))
    with pytest.raises(ProtocolError, match="too large"):
        opened()[0].seal(bytes(RECORD_BYTES_MAX + 1))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"", "unknown kind"),
        (b"\x03abc", "unknown kind"),
        (b"\x00\x00", "ends within a length"),
        (b"\x00\x00\x05four", "ends within a message"),
        (b"\x01", "belongs to no message"),
        (b"\x02\x00", "belongs to no message"),
        (b"\x01\x08data", "belongs to no message"),
    ],
)
def test_records_that_no_outbox_makes_are_refused(record: bytes, reason: str) -> None:
    a, b = opened()
    with pytest.raises(ProtocolError, match=reason):
        b.receive(a.seal(record))


def test_a_message_without_an_end_is_refused() -> None:
    a, b = opened()
    part = b"\x01\x00" + bytes(RECORD_BYTES_MAX - 2)
    for _ in range(MESSAGE_BYTES_MAX // (RECORD_BYTES_MAX - 2)):
        assert b.receive(a.seal(part)) == (b"", [])
    with pytest.raises(ProtocolError, match="more than 4,000,000 bytes"):
        b.receive(a.seal(part))
