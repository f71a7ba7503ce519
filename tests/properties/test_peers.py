"""The peer protocol against chance: any bytes, any messages, any pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from notebookos_ext.agent.peer_channel import SECRET_BYTES, PeerChannel
from notebookos_ext.agent.peer_outbox import RECORD_BYTES_MAX, STREAMS_MAX, Inbox, Outbox
from notebookos_ext.errors import ProtocolError, Refused

pieces = st.lists(st.binary(max_size=300), max_size=12)


def channel(host: str, expected: str | None) -> PeerChannel:
    return PeerChannel(
        host=host,
        incarnation="1",
        token=b"t" * 32,
        secret=host.encode() * SECRET_BYTES,
        expected=expected,
    )


def opened() -> tuple[PeerChannel, PeerChannel]:
    a, b = channel("a", "b"), channel("b", None)
    b.receive(a.receive(b.receive(a.opening())[0])[0])
    return a, b


def fed(end: PeerChannel, stream: list[bytes]) -> None:
    """Errors of the protocol end a connection; anything else is a defect."""
    for data in stream:
        try:
            _, messages = end.receive(data)
        except (ProtocolError, Refused):
            return
        assert messages == []
        # A frame has two bytes of length, so no more than one of them is ever kept.
        assert len(end._buffer) <= 2 + 65_535


@given(pieces, st.sampled_from(["listener", "dialler", "met", "open"]), st.booleans())
def test_any_bytes(stream: list[bytes], stage: str, begins_well: bool) -> None:
    if stage == "open":
        end = opened()[1]
    else:
        end = channel("a", "b") if stage == "dialler" else channel("b", None)
        if stage == "met":
            end.receive(channel("a", "b").opening())
        elif begins_well:
            stream = [b"NBOS\x02", *stream]
    fed(end, stream)
    assert end.is_open == (stage == "open")


@given(st.binary(max_size=200))
def test_any_record_of_somebody_who_has_the_key(record: bytes) -> None:
    a, b = opened()
    try:
        _, messages = b.receive(a.seal(record))
    except ProtocolError:
        return
    assert sum(len(message) for message in messages) <= len(record)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, *"abcdefghijk"]),
            st.sampled_from([0, 1, 40, 20_000, 32_765, 32_766, 50_000, 99_999]),
            st.integers(min_value=0, max_value=3),
        ),
        max_size=40,
    )
)
def test_whatever_is_put_in_comes_out_in_its_groups_order(
    puts: list[tuple[str | None, int, int]],
) -> None:
    outbox, inbox = Outbox(), Inbox()
    sent: dict[str | None, list[bytes]] = {}
    received: list[bytes] = []

    def take(count: int) -> int:
        taken = 0
        while taken < count and (record := outbox.next_record()) is not None:
            assert len(record) <= RECORD_BYTES_MAX
            received.extend(inbox.open_record(record))
            assert len(inbox._parts) <= STREAMS_MAX
            taken += 1
        return taken

    for number, (group, size, taken) in enumerate(puts):
        message = number.to_bytes(4, "big") + bytes(size if group else min(size, 40))
        sent.setdefault(group, []).append(message)
        outbox.put(message, group)
        take(taken)
    take(10_000)
    assert outbox.dropped == 0
    assert (len(outbox), outbox.waiting_bytes) == (0, 0)
    assert len(received) == len(puts)
    for messages in sent.values():
        wanted = set(messages)
        assert [message for message in received if message in wanted] == messages


@given(
    st.lists(
        st.tuples(st.sampled_from([None, "a", "b"]), st.integers(0, 90_000), st.booleans()),
        max_size=60,
    )
)
def test_a_full_outbox_stays_bounded_and_counts(
    puts: list[tuple[str | None, int, bool]],
) -> None:
    outbox, inbox = Outbox(bytes_max=100_000), Inbox()
    received: list[bytes] = []
    newest: dict[str | None, bytes] = {}
    for number, (group, size, takes) in enumerate(puts):
        message = number.to_bytes(4, "big") + bytes(size if group else size % 1_000)
        newest[group] = message
        outbox.put(message, group)
        # What has begun to leave and what came last are kept besides.
        assert outbox.waiting_bytes <= 100_000 + 3 * 90_004
        if takes and (record := outbox.next_record()) is not None:
            received += inbox.open_record(record)
    while (record := outbox.next_record()) is not None:
        received += inbox.open_record(record)
    assert len(received) + outbox.dropped == len(puts)
    assert len(set(received)) == len(received)
    if puts:
        assert newest[puts[-1][0]] in received
