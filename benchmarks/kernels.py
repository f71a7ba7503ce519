"""Measure our kernel against plain ipykernel, request by request in the same run, as ratios.

    python -m benchmarks [--requests 200] [--starts 5]

Prints the trivial-cell round trip (execute_request to execute_reply and idle, ZMQ client to kernel)
and the time from asking for a kernel to its first answer. The two kernels take turns, so that noise
of the machine hits both alike.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

PLAIN, OURS = "python3", "notebookos"
READY_TIMEOUT_S = 120


@contextmanager
def running(kernel_name: str) -> Iterator[tuple[BlockingKernelClient, float]]:
    """A started kernel's client, and the seconds until it answered `kernel_info`."""
    manager = KernelManager(kernel_name=kernel_name)
    begun = time.perf_counter()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=READY_TIMEOUT_S)
        yield client, time.perf_counter() - begun
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def round_trip_ms(client: BlockingKernelClient, code: str) -> float:
    """Milliseconds from sending a cell until its reply and its `idle` are here."""
    begun = time.perf_counter()
    message_id = client.execute(code)
    _wait_for(client.get_shell_msg, lambda m: m["parent_header"].get("msg_id") == message_id)
    _wait_for(
        client.get_iopub_msg,
        lambda m: (
            m["parent_header"].get("msg_id") == message_id
            and m["msg_type"] == "status"
            and m["content"]["execution_state"] == "idle"
        ),
    )
    return (time.perf_counter() - begun) * 1000


def _wait_for(
    receive: Callable[..., dict[str, Any]], wanted: Callable[[dict[str, Any]], bool]
) -> None:
    while not wanted(receive(timeout=READY_TIMEOUT_S)):
        pass


def percentile(values: list[float], percent: int) -> float:
    """The value below which `percent` of `values` lie."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def report(label: str, plain: float, ours: float, unit: str) -> None:
    """One line: both figures and ours as a multiple of plain."""
    sys.stdout.write(
        f"{label:<44} plain {plain:8.2f} {unit}   ours {ours:8.2f} {unit}"
        f"   ratio {ours / plain:5.2f}\n"
    )


def compare_round_trips(requests: int) -> None:
    """Trivial cells on both kernels, alternating."""
    with running(PLAIN) as (plain, _), running(OURS) as (ours, _):
        for client in (plain, ours):
            for _ in range(20):
                round_trip_ms(client, "pass")
        times: dict[str, list[float]] = {PLAIN: [], OURS: []}
        for _ in range(requests):
            times[PLAIN].append(round_trip_ms(plain, "pass"))
            times[OURS].append(round_trip_ms(ours, "pass"))
    report("cell `pass`, round trip, median", *(statistics.median(times[k]) for k in times), "ms")
    report("cell `pass`, round trip, p99", *(percentile(times[k], 99) for k in times), "ms")


def compare_starts(starts: int) -> None:
    """Kernel starts, alternating; a first one of ours is not counted (it starts the hosts)."""
    with running(OURS) as (_, first_s):
        times: dict[str, list[float]] = {PLAIN: [], OURS: []}
        for _ in range(starts):
            for name, measured in times.items():
                with running(name) as (_, seconds):
                    measured.append(seconds * 1000)
    report(
        "kernel start until kernel_info, median",
        *(statistics.median(times[k]) for k in times),
        "ms",
    )
    sys.stdout.write(
        f"{'first kernel, the hosts start with it':<44} ours {first_s * 1000:.0f} ms\n"
    )


def main() -> None:
    """Run the comparisons that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=200, help="cells per kernel")
    parser.add_argument("--starts", type=int, default=5, help="kernel starts per kernel")
    arguments = parser.parse_args()
    compare_round_trips(arguments.requests)
    compare_starts(arguments.starts)
