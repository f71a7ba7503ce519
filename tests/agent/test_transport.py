"""Peers find each other, deliver in order, notice loss, and talk to nobody without the token."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

import pytest

from notebookos_ext.agent import peer_connection
from notebookos_ext.agent import transport as transport_module
from notebookos_ext.agent.peer_channel import PeerChannel
from notebookos_ext.agent.transport import PeerTransport, back_off_s
from notebookos_ext.cluster.consensus.messages import Append, Entry, Envelope, Heartbeat
from notebookos_ext.cluster.model import HostId
from notebookos_ext.errors import LaunchFailed

TOKEN = b"t" * 32
A, B, C = HostId("host-a"), HostId("host-b"), HostId("host-c")
HANG_S = 30.0


def beat(number: int, group: str = "k") -> Envelope:
    return Envelope(group, Heartbeat("x", "y", number, 0, 0))


class Recorder:
    """A transport, what it received, and the ups and downs it reported."""

    def __init__(self, host: HostId, address: str, token: bytes = TOKEN, **options: float) -> None:
        self.messages: list[tuple[HostId, Envelope]] = []
        self.frames = 0
        self.changes: list[tuple[HostId, bool]] = []
        self.transport = PeerTransport(
            host,
            address,
            token,
            self._on_messages,
            self._on_change,
            rng=random.Random(host),
            **options,  # type: ignore[arg-type]
        )

    def _on_messages(self, host: HostId, messages: Sequence[Envelope]) -> None:
        self.frames += 1
        self.messages += [(host, message) for message in messages]

    def _on_change(self, host: HostId, up: bool) -> None:
        self.changes.append((host, up))


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; the limit only ends hangs."""
    async with asyncio.timeout(HANG_S):
        while not condition():  # noqa: ASYNC110 - conditions of several objects at once
            await asyncio.sleep(0.005)


def run(coroutine: Coroutine[object, object, None]) -> None:
    asyncio.run(coroutine)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture(params=["unix", "tcp", "tcp6"])
def addresses(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[HostId], str]:
    if request.param == "tcp":
        return lambda host: "127.0.0.1:0"
    if request.param == "tcp6":
        if not has_ipv6():
            pytest.skip("this machine has no IPv6")
        return lambda host: "[::1]:0"
    return lambda host: str(tmp_path / f"{host}.peer")


async def connected(*recorders: Recorder) -> None:
    for recorder in recorders:
        await recorder.transport.start()
    peers = {r.transport.host: r.transport.address for r in recorders}
    for recorder in recorders:
        recorder.transport.set_peers(peers)
    for recorder in recorders:
        await until(lambda r=recorder: len(r.transport.up) == len(recorders) - 1)  # type: ignore[misc]


def test_messages_arrive_in_order_and_packed(addresses: Callable[[HostId], str]) -> None:
    async def story() -> None:
        a, b, c = (Recorder(host, addresses(host)) for host in (A, B, C))
        await connected(a, b, c)
        for number in range(100):
            a.transport.send(B, [beat(number)])
            b.transport.send(A, [beat(number), beat(number + 1000)])
        await until(lambda: len(b.messages) == 100 and len(a.messages) == 200)
        assert b.messages == [(A, beat(number)) for number in range(100)]
        assert b.frames == 1
        assert c.messages == []
        large = Envelope("k", Append("x", "y", 1, 0, 0, (Entry(1, 1, "p", bytes(1_000_000)),), 0))
        c.transport.send(A, [large] * 5)
        await until(lambda: len(a.messages) == 205)
        assert a.messages[-1] == (C, large)
        for recorder in (a, b, c):
            await recorder.transport.close()

    run(story())


def test_a_peer_that_ends_is_lost_at_once_and_found_again(
    addresses: Callable[[HostId], str],
) -> None:
    async def story() -> None:
        # b never gives a up for silence: only the end of the connection can tell it.
        a, b = Recorder(A, addresses(A), ping_s=3600), Recorder(B, addresses(B), ping_s=3600)
        await connected(a, b)
        address = b.transport.address
        await b.transport.close()
        await until(lambda: a.changes == [(B, True), (B, False)])
        a.transport.send(B, [beat(1)])
        again = Recorder(B, address, ping_s=3600)
        await again.transport.start()
        await until(lambda: a.changes[2:] == [(B, True)])
        a.transport.send(B, [beat(2)])
        await until(lambda: again.messages)
        assert again.messages == [(A, beat(2))]
        assert b.changes == [(A, True)], "who closes reports nothing"
        await a.transport.close()
        await again.transport.close()

    run(story())


SILENT_PEER = """
import asyncio, random, sys
from notebookos_ext.agent.transport import PeerTransport

async def main():
    transport = PeerTransport(
        "host-b", sys.argv[1], b"t" * 32, lambda *_: None, lambda *_: None, rng=random.Random()
    )
    await transport.start()
    print("listening", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_stopped_peer_is_lost_and_comes_back(tmp_path: Path) -> None:
    address = str(tmp_path / "b.peer")

    async def story(process: subprocess.Popen[str]) -> None:
        a = Recorder(A, str(tmp_path / "a.peer"), ping_s=0.02, silent_pings=50)
        await a.transport.start()
        a.transport.set_peers({B: address})
        await until(lambda: a.changes == [(B, True)])
        os.kill(process.pid, signal.SIGSTOP)
        await until(lambda: a.changes == [(B, True), (B, False)])
        os.kill(process.pid, signal.SIGCONT)
        await until(lambda: a.changes[2:3] == [(B, True)])
        await a.transport.close()

    with subprocess.Popen(
        [sys.executable, "-c", SILENT_PEER, address], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            run(story(process))
        finally:
            os.kill(process.pid, signal.SIGCONT)
            process.kill()


def test_a_restart_that_nobody_noticed_is_reported_as_loss_and_return(tmp_path: Path) -> None:
    async def story() -> None:
        a = Recorder(A, str(tmp_path / "a.peer"))
        b = Recorder(B, str(tmp_path / "b.peer"))
        await connected(a, b)
        # A second a, as after a restart of its machine, while the old connection seems alive.
        twin = Recorder(A, str(tmp_path / "a2.peer"))
        await twin.transport.start()
        twin.transport.set_peers({B: b.transport.address})
        await until(lambda: b.changes[:3] == [(A, True), (A, False), (A, True)])
        for recorder in (twin, a, b):
            await recorder.transport.close()

    run(story())


def test_nobody_without_the_token(tmp_path: Path) -> None:
    async def story() -> None:
        b = Recorder(B, str(tmp_path / "b.peer"))
        stranger = Recorder(A, str(tmp_path / "a.peer"), token=b"guess" * 6)
        await b.transport.start()
        await stranger.transport.start()
        refused = asyncio.get_running_loop().create_future()
        count = 0
        channel = stranger.transport._channel

        def counting(expected: HostId | None) -> PeerChannel:
            nonlocal count
            count += 1
            if count == 3:
                refused.set_result(None)
            return channel(expected)

        stranger.transport._channel = counting  # type: ignore[method-assign]
        stranger.transport.set_peers({B: b.transport.address})
        async with asyncio.timeout(HANG_S):
            await refused
        assert b.changes == stranger.changes == []
        for recorder in (b, stranger):
            await recorder.transport.close()

    run(story())


def test_peers_that_are_dropped_are_let_go(tmp_path: Path) -> None:
    async def story() -> None:
        a, b = Recorder(A, str(tmp_path / "a.peer")), Recorder(B, str(tmp_path / "b.peer"))
        await connected(a, b)
        a.transport.set_peers({})
        await until(lambda: b.changes == [(A, True), (A, False)])
        a.transport.set_peers({B: b.transport.address})
        await until(lambda: a.transport.up == {B})
        for recorder in (a, b):
            await recorder.transport.close()

    run(story())


def test_garbage_and_idlers_are_turned_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_connection, "HANDSHAKE_S", 0.05)

    async def story() -> None:
        b = Recorder(B, str(tmp_path / "b.peer"))
        await b.transport.start()
        for first in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b""):
            reader, writer = await asyncio.open_unix_connection(b.transport.address)
            writer.write(first)
            async with asyncio.timeout(HANG_S):
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await reader.readexactly(1)
            writer.close()
        assert b.changes == []
        await b.transport.close()

    run(story())


def test_strangers_that_prove_nothing_keep_no_peer_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "_STRANGERS_MAX", 2)

    async def story() -> None:
        a, b = Recorder(A, str(tmp_path / "a.peer")), Recorder(B, str(tmp_path / "b.peer"))
        await b.transport.start()
        idle = [await asyncio.open_unix_connection(b.transport.address) for _ in range(3)]
        async with asyncio.timeout(HANG_S):
            # The third made the first one go.
            assert await idle[0][0].read(1) == b""
            await a.transport.start()
            peers = {A: a.transport.address, B: b.transport.address}
            for recorder in (a, b):
                recorder.transport.set_peers(peers)
            await until(lambda: a.transport.up == {B} and b.transport.up == {A})
        for recorder in (a, b):
            await recorder.transport.close()
        for _, writer in idle:
            writer.close()
            await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])

    run(story())


def entry(size: int, group: str = "k") -> Envelope:
    return Envelope(group, Append("x", "y", 1, 0, 0, (Entry(1, 1, "p", bytes(size)),), 0))


def test_a_heartbeat_overtakes_what_waits(addresses: Callable[[HostId], str]) -> None:
    async def story() -> None:
        a, b = Recorder(A, addresses(A)), Recorder(B, addresses(B))
        await connected(a, b)
        a.transport.send(B, [entry(1_000_000) for _ in range(20)])
        a.transport.flush()
        a.transport.send(B, [beat(1)])
        await until(lambda: len(b.messages) == 21)
        place = b.messages.index((A, beat(1)))
        # The sockets between take some megabytes at most, however many are waiting.
        assert place < 10
        assert a.transport.dropped == {B: 0}
        for recorder in (a, b):
            await recorder.transport.close()

    run(story())


def test_a_reader_that_does_not_read_costs_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peer_connection, "WAITING_BYTES_MAX", 2_000_000)

    async def story() -> None:
        a, b = Recorder(A, str(tmp_path / "a.peer")), Recorder(B, str(tmp_path / "b.peer"))
        await connected(a, b)
        (connection,) = a.transport._connections.values()
        assert connection._transport is not None
        for _ in range(100):
            # One turn of the loop each for the sender alone.
            a.transport.send(B, [entry(500_000)])
            a.transport.flush()
            ahead = connection._transport.get_write_buffer_size()
            assert ahead <= peer_connection.SENT_AHEAD_BYTES + 33_000
            assert connection.outbox.waiting_bytes <= 3_000_000
        dropped = a.transport.dropped[B]
        assert 90 <= dropped < 100
        assert caplog.text.count("forgets the oldest messages to host-b") == 1
        await until(lambda: len(b.messages) == 100 - dropped)
        await b.transport.close()
        await until(lambda: not a.transport.up)
        assert a.transport.dropped == {B: dropped}, "counted beyond the connection"
        await a.transport.close()

    run(story())


def test_back_off_doubles_up_to_a_limit_and_is_spread() -> None:
    rng = random.Random(1)
    waits = [[back_off_s(failures, rng) for _ in range(50)] for failures in range(40)]
    longest = [0.05, 0.1, 0.2, 0.4, 0.8, *[1.0] * 35]
    for at_most, some in zip(longest, waits, strict=True):
        assert at_most / 2 <= min(some) < max(some) <= at_most
    assert back_off_s(3, random.Random(7)) == back_off_s(3, random.Random(7))


def test_addresses_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    async def story() -> None:
        taken = Recorder(A, str(tmp_path / "a.peer"))
        await taken.transport.start()
        (tmp_path / "file").write_text("in the way")
        for address, reason in [
            (taken.transport.address, "another process listens"),
            (str(tmp_path / "file"), "no socket is in the way"),
            (str(tmp_path / ("x" * 120)), "more than 107 bytes"),
            ("127.0.0.1:notaport", "invalid literal"),
        ]:
            with pytest.raises(LaunchFailed, match=reason):
                await Recorder(B, address).transport.start()
        await taken.transport.close()
        # What a killed agent leaves behind is no obstacle.
        with socket.socket(socket.AF_UNIX) as left_over:
            left_over.bind(taken.transport.address)
        heir = Recorder(A, taken.transport.address)
        await heir.transport.start()
        modes.append(os.stat(heir.transport.address).st_mode & 0o777)  # noqa: PTH116
        await heir.transport.close()

    modes: list[int] = []
    run(story())
    assert modes == [0o600]
    assert not (tmp_path / "a.peer").exists()
