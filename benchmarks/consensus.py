"""Commits, fail-overs, restarts and rest of replicated logs, beside PySyncObj doing the same.

    python -m benchmarks.consensus [--commits 400] [--failovers 7] [--groups 300] [--only NAME]

Small commits beside raftos too, which flushes nothing; `NAME` is then `raftos`.

Three processes each, on this machine, in turns. Both keep the same promises: flushed before it is
answered, encrypted between the processes. Ours has the timing that host agents have, PySyncObj the
fastest that it was stable with.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.kernels import percentile
from notebookos_ext.clock import SystemClock

ENGINES = ("ours", "pysyncobj")
SIZES = (100, 100_000)
WINDOW = 256
FILLING_WINDOW = 2_000
"""For a log whose making is not measured: many commits share a flush."""
FILLING_PATIENCE_S = 300.0
"""A commit that is tried again too early would make the log longer than it should be."""
RESTART_LIMIT_S = 300.0
IDLE_S = 15.0
THEIR_GROUPS = 20
"""PySyncObj needs a thread and two ports for each; per group it is the same."""
PATIENCE_S = {"ours": 10.0, "pysyncobj": 0.1}
"""Ours asks again by itself; PySyncObj may never answer what it sent to a dead leader."""
CLOCK = SystemClock()


class Process:
    """One member of a group, or of several."""

    def __init__(self, engine: str, number: int, folder: Path, ports: Sequence[int]) -> None:
        self._arguments = [engine, str(number), str(folder), *map(str, ports)]
        self._process: asyncio.subprocess.Process | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._count = 0

    async def start(self, groups: int = 1) -> None:
        """Come up, again if it was killed, with so many groups."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks.consensus_members",
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=2**26,
        )
        self._reader = asyncio.create_task(self._read(self._process))
        await self.ask("open", groups=groups)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            answer = json.loads(line)
            waiting = self._asked.pop(answer["n"])
            if not waiting.done():
                waiting.set_result(answer["result"])
        for waiting in self._asked.values():
            waiting.cancel()
        self._asked.clear()

    async def ask(self, what: str, **arguments: float) -> Any:
        """Its answer."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._count += 1
        waiting = self._asked[self._count] = asyncio.get_running_loop().create_future()
        request = {"n": self._count, "do": what, **arguments}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        return await waiting

    async def kill(self) -> None:
        """As a power switch does."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reader

    @property
    def system(self) -> psutil.Process:
        """For what it uses."""
        assert self._process is not None
        return psutil.Process(self._process.pid)


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now, each with room above it for the ports of more groups."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return [bound.getsockname()[1] for bound in sockets]


@contextlib.asynccontextmanager
async def group(engine: str, groups: int = 1) -> AsyncIterator[list[Process]]:
    """Three processes at work."""
    with tempfile.TemporaryDirectory(prefix="bench-consensus-") as folder:
        ports = free_ports(3)
        processes = [Process(engine, n, Path(folder), ports) for n in range(3)]
        try:
            await asyncio.gather(*(process.start(groups) for process in processes))
            yield processes
        finally:
            for process in processes:
                await process.kill()


async def leader(processes: Sequence[Process]) -> Process:
    """Who leads, once somebody does."""
    while True:
        for process in processes:
            if await process.ask("leads"):
                return process
        await asyncio.sleep(0.02)


def report(label: str, values: dict[str, float], unit: str) -> None:
    """One line; the ratio says how much of PySyncObj's figure ours is."""
    ours, theirs = (values[engine] for engine in ENGINES)
    sys.stdout.write(
        f"{label:<44} ours {ours:9.2f} {unit:<5} PySyncObj {theirs:9.2f} {unit:<5}"
        f" ratio {ours / theirs:6.2f}\n"
    )
    sys.stdout.flush()


async def commits(count: int) -> None:
    """One after the other, and many at a time; the engines take turns."""
    rounds = 5
    async with group("ours") as ours, group("pysyncobj") as theirs:
        leaders = {"ours": await leader(ours), "pysyncobj": await leader(theirs)}
        for process in leaders.values():
            await process.ask("commit", count=20, size=100)
        for size in SIZES:
            times: dict[str, list[float]] = {engine: [] for engine in ENGINES}
            for _ in range(rounds):
                for engine, process in leaders.items():
                    times[engine] += await process.ask("commit", count=count // rounds, size=size)
            medians = {engine: statistics.median(values) for engine, values in times.items()}
            report(f"commit of {size:,} B, median", medians, "ms")
            slowest = {engine: percentile(values, 99) for engine, values in times.items()}
            report(f"commit of {size:,} B, p99", slowest, "ms")
        rates: dict[str, list[float]] = {engine: [] for engine in ENGINES}
        for _ in range(rounds):
            for engine, process in leaders.items():
                many = 2 * count
                seconds = await process.ask("pipeline", count=many, size=100, window=WINDOW)
                rates[engine].append(many / seconds)
        best = {engine: statistics.median(values) for engine, values in rates.items()}
        report(f"commits of 100 B, {WINDOW} at a time", best, "/s")


async def beside_raftos(count: int) -> None:
    """Ours and raftos in turns, small commits only: raftos rereads its whole log every five.

    With large ones its leader is soon too late with a heartbeat, and after an election its group
    may never commit again, which also leaves nothing to measure of fail-overs and restarts.
    """
    times: list[list[float]] = [[], []]
    async with group("ours") as ours, group("raftos") as theirs:
        leaders = [await leader(ours), await leader(theirs)]
        for _ in range(5):
            for process, measured in zip(leaders, times, strict=True):
                measured.extend(await process.ask("commit", count=count // 5, size=SIZES[0]))
    for name, value in (("median", statistics.median), ("p99", lambda ms: percentile(ms, 99))):
        flushed, unflushed = map(value, times)
        label = f"commit of {SIZES[0]} B, {name}"
        sys.stdout.write(
            f"{label:<44} ours {flushed:9.2f} ms    raftos, never flushed {unflushed:9.2f} ms"
            f"    ratio {flushed / unflushed:6.2f}\n"
        )


async def failovers(count: int) -> None:
    """From the leader's death to the next commit that a survivor saw."""
    times: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    async with group("ours") as ours, group("pysyncobj") as theirs:
        groups = {"ours": ours, "pysyncobj": theirs}
        for _ in range(count):
            for engine, processes in groups.items():
                lead = await leader(processes)
                await lead.ask("commit", count=5, size=100)
                others = [process for process in processes if process is not lead]
                begun = CLOCK.monotonic()
                await lead.kill()
                impatient = {"count": 1, "size": 100, "patience_s": PATIENCE_S[engine]}
                asked = [asyncio.create_task(p.ask("commit", **impatient)) for p in others]
                await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                times[engine].append((CLOCK.monotonic() - begun) * 1000)
                await asyncio.wait(asked)
                await lead.start()
                await lead.ask("commit", count=1, size=100)
    for name, value in (("median", statistics.median), ("slowest", max)):
        figures = {engine: value(values) for engine, values in times.items()}
        report(f"leader killed until next commit, {name}", figures, "ms")


async def until_a_commit(processes: Sequence[Process]) -> float:
    """Seconds from the start of all processes to the first commit through any of them.

    Raises:
        TimeoutError: not every process has committed within `RESTART_LIMIT_S`.
    """

    async def committed(process: Process) -> None:
        await process.start()
        await process.ask("commit", count=1, size=100)

    begun = CLOCK.monotonic()
    trying = [asyncio.create_task(committed(process)) for process in processes]
    done, _ = await asyncio.wait(
        trying, timeout=RESTART_LIMIT_S, return_when=asyncio.FIRST_COMPLETED
    )
    taken_s = CLOCK.monotonic() - begun
    if done:
        # The others come too: they are killed again, and must not be in the way until then.
        _, late = await asyncio.wait(trying, timeout=RESTART_LIMIT_S)
        done = set() if late else done
    if not done:
        for task in trying:
            task.cancel()
        raise TimeoutError(f"not all are back {RESTART_LIMIT_S:.0f} s after a restart")
    return taken_s


async def restarts(entries: int, count: int) -> None:
    """All three processes killed; from their start to the next commit, each engine in turns."""
    times: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    async with group("ours") as ours, group("pysyncobj") as theirs:
        groups = {"ours": ours, "pysyncobj": theirs}
        for processes in groups.values():
            filling = {"window": FILLING_WINDOW, "patience_s": FILLING_PATIENCE_S}
            await (await leader(processes)).ask("pipeline", count=entries, size=100, **filling)
        for _ in range(count):
            for engine, processes in groups.items():
                for process in processes:
                    await process.kill()
                times[engine].append(await until_a_commit(processes))
    for name, value in (("median", statistics.median), ("slowest", max)):
        figures = {engine: value(values) for engine, values in times.items()}
        report(f"restart with {entries:,} entries, {name}", figures, "s")


async def rest(groups: int) -> None:
    """What idle groups cost, all three processes together."""
    cores: dict[str, float] = {}
    memory: dict[str, float] = {}
    for engine, count in zip(ENGINES, (groups, THEIR_GROUPS), strict=True):
        async with group(engine) as processes:
            systems = [process.system for process in processes]
            before = sum(system.memory_info().rss for system in systems)
            await asyncio.gather(*(process.ask("open", groups=count) for process in processes))
            await asyncio.sleep(IDLE_S / 3)
            grown = sum(system.memory_info().rss for system in systems) - before
            memory[engine] = grown / (count - 1) / 3 / 1000
            begun = [system.cpu_times() for system in systems]
            await asyncio.sleep(IDLE_S)
            ended = [system.cpu_times() for system in systems]
            used = sum(
                e.user + e.system - b.user - b.system for b, e in zip(begun, ended, strict=True)
            )
            cores[engine] = used / IDLE_S / count / 3 * 300
    report(f"300 idle members ({groups} and {THEIR_GROUPS} groups)", cores, "cores")
    report("memory of one idle member", memory, "kB")


async def run(arguments: argparse.Namespace) -> None:
    """What was asked for."""
    measures = {
        "commits": lambda: commits(arguments.commits),
        "raftos": lambda: beside_raftos(arguments.commits // 4),
        "failovers": lambda: failovers(arguments.failovers),
        "restarts": lambda: restarts(arguments.entries, arguments.restarts),
        "rest": lambda: rest(arguments.groups),
    }
    for name, measure in measures.items():
        if arguments.only in {None, name}:
            await measure()


def main() -> None:
    """Run the comparisons that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commits", type=int, default=400, help="commits per engine and size")
    parser.add_argument("--failovers", type=int, default=7, help="leaders killed per engine")
    parser.add_argument("--entries", type=int, default=10_000, help="in the log at the restart")
    parser.add_argument("--restarts", type=int, default=3, help="of a whole group, per engine")
    parser.add_argument("--groups", type=int, default=300, help="idle groups of ours")
    parser.add_argument("--only", help="commits, raftos, failovers, restarts or rest")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
