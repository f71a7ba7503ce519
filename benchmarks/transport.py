"""What encryption costs: the time to commit, with it and without, on the same machine in turns.

    python -m benchmarks.transport [--commits 300] [--rounds 5] [--beats 200]

Three members with real logs (each commit is on two disks, flushed) in three processes, once as they
are and once with ciphers that leave every byte as it is; the leader commits entries of 100 B and of
100 kB one after the other and measures from the proposal to its confirmation.

Then how long a heartbeat takes to another process and back while 8 MB of entries always wait: as it
is, overtaking them, and as it would be in their line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.kernels import percentile
from notebookos_ext.agent import noise
from notebookos_ext.agent.members import Members
from notebookos_ext.agent.transport import PeerTransport
from notebookos_ext.clock import SystemClock
from notebookos_ext.cluster.consensus.messages import (
    Append,
    Entry,
    Envelope,
    Foreign,
    Heartbeat,
    HeartbeatAnswer,
    Message,
)
from notebookos_ext.cluster.model import HostId, KernelId

HOSTS = tuple(HostId(f"h{number}") for number in range(3))
KERNEL = KernelId("k")
SIZES = (100, 100_000)
VARIANTS = ("plain", "encrypted")


class ReadableCipher(noise.Cipher):
    """Leaves every byte as it is, with a tag of zeros."""

    def encrypt(self, plaintext: bytes, _associated: bytes = b"") -> bytes:
        """Nothing but room for the tag."""
        return plaintext + bytes(noise.TAG_BYTES)

    def decrypt(self, message: bytes, _associated: bytes = b"") -> bytes:
        """The inverse."""
        return message[: -noise.TAG_BYTES]


async def member(host: HostId, folder: Path) -> None:
    """One process: answers each line `COMMITS SIZE` with the milliseconds of each commit."""
    clock = SystemClock()
    rng = random.Random()
    transport = PeerTransport(
        host,
        str(folder / f"{host}.peer"),
        b"t" * 32,
        lambda *arrived: members.receive(*arrived),  # noqa: PLW0108 - made below
        lambda peer, up: (members.peer_back if up else members.peer_lost)(peer),
        rng=rng,
    )
    members = Members(
        host=host,
        folder=folder / host,
        transport=transport,
        clock=clock,
        rng=rng,
        on_committed=lambda *_: None,
    )
    await transport.start()
    transport.set_peers({peer: str(folder / f"{peer}.peer") for peer in HOSTS})
    await members.open(KERNEL, HOSTS, campaign=host == HOSTS[0])
    await members.read_barrier(KERNEL, 60.0)
    await members.transfer_leadership(KERNEL, HOSTS[0], 60.0)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    count = 0
    while line := await asyncio.to_thread(sys.stdin.readline):
        commits, size = map(int, line.split())
        times_ms = []
        for _ in range(commits):
            count += 1
            begun = clock.monotonic()
            await members.propose(KERNEL, rng.randbytes(size), f"p{count}", 30.0)
            times_ms.append((clock.monotonic() - begun) * 1000)
        sys.stdout.write(json.dumps(times_ms) + "\n")
        sys.stdout.flush()
    await members.shut_down()
    await transport.close()


def echo(host: HostId, message: Message | Foreign) -> Envelope | None:
    """What the other process answers to a heartbeat, and to an Append that asks for an answer."""
    match message:
        case Heartbeat(read_round=number):
            return Envelope(KERNEL, HeartbeatAnswer(host, "", 1, number))
        case Append(entries=(), term=number):
            return Envelope(KERNEL, HeartbeatAnswer(host, "", 1, number))
    return None


async def other(host: HostId, folder: Path) -> None:
    """The process at the other end of a connection: reads everything, answers heartbeats."""

    def received(peer: HostId, envelopes: Sequence[Envelope]) -> None:
        for envelope in envelopes:
            if answer := echo(host, envelope.message):
                transport.send(peer, [answer])

    transport = PeerTransport(
        host,
        str(folder / f"{host}.peer"),
        b"t" * 32,
        received,
        lambda *_: None,
        rng=random.Random(),
    )
    await transport.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await transport.close()


async def beats_ms(folder: Path, beats: int) -> dict[str, list[float]]:
    """Round trips to `other`, in turns: with nothing else, overtaking, and in line."""
    here, there = HOSTS[:2]
    clock = SystemClock()
    answered: dict[int, asyncio.Future[None]] = {}
    times: dict[str, list[float]] = {"idle": [], "overtaking": [], "in line": []}

    def received(_peer: HostId, envelopes: Sequence[Envelope]) -> None:
        for envelope in envelopes:
            if isinstance(envelope.message, HeartbeatAnswer):
                answered.pop(envelope.message.read_round).set_result(None)

    connected = asyncio.Event()
    transport = PeerTransport(
        here,
        str(folder / f"{here}.peer"),
        b"t" * 32,
        received,
        lambda *_: connected.set(),
        rng=random.Random(),
    )
    await transport.start()
    transport.set_peers({there: str(folder / f"{there}.peer")})
    await connected.wait()
    bulk = Envelope(
        KERNEL, Append(here, there, 0, 0, 0, (Entry(1, 1, "p", random.randbytes(1_000_000)),), 0)
    )
    number = 0
    for name, values in times.items():
        for _ in range(beats):
            number += 1
            answered[number] = asyncio.get_running_loop().create_future()
            if name != "idle":
                transport.send(there, [bulk] * 8)
                transport.flush()
            begun = clock.monotonic()
            waiting = answered[number]
            if name == "in line":
                transport.send(there, [Envelope(KERNEL, Append(here, there, number, 0, 0, (), 0))])
            else:
                transport.send(there, [Envelope(KERNEL, Heartbeat(here, there, 1, 0, number))])
            await waiting
            values.append((clock.monotonic() - begun) * 1000)
            # Let what is under way arrive, so that every beat meets the same.
            number += 1
            answered[number] = asyncio.get_running_loop().create_future()
            waiting = answered[number]
            transport.send(there, [Envelope(KERNEL, Append(here, there, number, 0, 0, (), 0))])
            await waiting
    await transport.close()
    return times


def compare_beats(beats: int) -> None:
    """Print how long heartbeats take."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.transport", "other", HOSTS[1], folder]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            times = asyncio.run(beats_ms(Path(folder), beats))
            process.kill()
    for name, values in times.items():
        label = f"heartbeat and answer, {name}"
        sys.stdout.write(
            f"{label:<44} median {statistics.median(values):8.2f} ms"
            f"   p99 {percentile(values, 99):8.2f} ms\n"
        )


@contextlib.contextmanager
def group(variant: str) -> Iterator[subprocess.Popen[str]]:
    """Three processes; yields the one that leads."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.transport", variant, host, folder],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for host in HOSTS
        ]
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield processes[0]
        for process in processes:
            process.kill()


def measured(process: subprocess.Popen[str], commits: int, size: int) -> list[float]:
    """Milliseconds of each commit."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{commits} {size}\n")
    process.stdin.flush()
    return list(json.loads(process.stdout.readline()))


def compare(commits: int, rounds: int) -> None:
    """Print median and 99th percentile of both variants for each size."""
    with group("plain") as plain, group("encrypted") as encrypted:
        for size in SIZES:
            times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
            for _ in range(rounds):
                for variant, process in zip(VARIANTS, (plain, encrypted), strict=True):
                    times[variant] += measured(process, max(1, commits // rounds), size)
            for name, value in (
                ("median", statistics.median),
                ("p99", lambda ms: percentile(ms, 99)),
            ):
                readable, sealed = (value(times[variant]) for variant in VARIANTS)
                sys.stdout.write(
                    f"{f'commit of {size:,} B, {name}':<44} plain {readable:8.2f} ms"
                    f"   encrypted {sealed:8.2f} ms   ratio {sealed / readable:5.2f}\n"
                )


def main() -> None:
    """Compare, or be one of the processes."""
    if len(sys.argv) == 4 and sys.argv[1] == "other":
        asyncio.run(other(HostId(sys.argv[2]), Path(sys.argv[3])))
        return
    if len(sys.argv) == 4 and sys.argv[1] in VARIANTS:
        if sys.argv[1] == "plain":
            noise.Cipher = ReadableCipher  # type: ignore[misc]
        asyncio.run(member(HostId(sys.argv[2]), Path(sys.argv[3])))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commits", type=int, default=300, help="commits per variant and size")
    parser.add_argument("--rounds", type=int, default=5, help="turns that each variant gets")
    parser.add_argument("--beats", type=int, default=200, help="heartbeats of each kind")
    arguments = parser.parse_args()
    compare(arguments.commits, arguments.rounds)
    compare_beats(arguments.beats)


if __name__ == "__main__":
    main()
