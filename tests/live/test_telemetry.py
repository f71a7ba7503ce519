"""Bursts of changes become one event each, and every event fits its schema."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from jsonschema.exceptions import ValidationError
from jupyter_events import EventLogger

from notebookos_ext.cluster.model import KernelId
from notebookos_ext.live.telemetry import SCHEMA_FILE, SCHEMA_ID, Telemetry

KERNEL = KernelId("k")


async def told(*changes: tuple[KernelId | None, str]) -> list[dict[str, str | None]]:
    """What is emitted when `changes` come from another thread, all at once."""
    events: list[dict[str, str | None]] = []
    heard = asyncio.Event()

    def emit(data: dict[str, str | None]) -> None:
        events.append(data)
        heard.set()

    telemetry = Telemetry(loop=asyncio.get_running_loop(), emit=emit)
    thread = threading.Thread(target=lambda: [telemetry.changed(*change) for change in changes])
    thread.start()
    thread.join()
    await heard.wait()
    telemetry.close()
    return events


def test_a_burst_is_told_once_per_kernel() -> None:
    changes = [(KERNEL, "cell"), (None, "host"), (KERNEL, "gpu"), (KERNEL, "replica")]
    assert asyncio.run(told(*changes)) == [
        {"kind": "replica", "kernel_id": KERNEL},
        {"kind": "host", "kernel_id": None},
    ]


def test_a_second_burst_is_told_too() -> None:
    async def twice() -> list[dict[str, str | None]]:
        events: list[dict[str, str | None]] = []
        heard = asyncio.Condition()

        def emit(data: dict[str, str | None]) -> None:
            events.append(data)
            asyncio.get_running_loop().create_task(notify())

        async def notify() -> None:
            async with heard:
                heard.notify_all()

        telemetry = Telemetry(loop=asyncio.get_running_loop(), emit=emit)
        for count in (1, 2):
            telemetry.changed(KERNEL, "cell")
            async with heard:
                await heard.wait_for(lambda count=count: len(events) == count)
        return events

    assert len(asyncio.run(twice())) == 2


def test_a_closed_loop_is_no_error() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    Telemetry(loop=loop, emit=lambda _data: None).changed(KERNEL, "cell")


KINDS = [
    *("host", "kernel", "replica", "cell", "waiting", "gpu", "namespace", "settings", "warning"),
    "store",
]


async def heard_by_a_listener(kind: str) -> list[object]:
    logger = EventLogger()
    logger.register_event_schema(SCHEMA_FILE)
    heard: list[object] = []

    async def listener(logger: EventLogger, schema_id: str, data: dict[str, object]) -> None:
        heard.append(data)

    logger.add_listener(schema_id=SCHEMA_ID, listener=listener)
    logger.emit(schema_id=SCHEMA_ID, data={"kind": kind, "kernel_id": None})
    await logger.gather_listeners()
    return heard


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_told_fits_the_schema(kind: str) -> None:
    assert asyncio.run(heard_by_a_listener(kind)) == [{"kind": kind, "kernel_id": None}]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValidationError):
        asyncio.run(heard_by_a_listener("weather"))


def test_every_kind_that_is_said_is_in_the_schema() -> None:
    folder = Path(SCHEMA_FILE).parents[2] / "live"
    said = {
        part.split('"')[1]
        for file in folder.glob("*.py")
        for part in file.read_text().split("changed(")[1:]
        if '"' in part.split(")")[0]
    }
    assert said
    assert said <= set(KINDS)
