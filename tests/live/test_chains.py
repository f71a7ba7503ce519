"""Tasks in an order, and none of them left behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from notebookos_ext.cluster.model import KernelId
from notebookos_ext.live.chains import Chains

K, OTHER = KernelId("k"), KernelId("other")


def run(test: Callable[[Chains], Awaitable[None]]) -> None:
    async def running() -> None:
        chains = Chains()
        await test(chains)
        await chains.cancel()

    asyncio.run(running())


def test_one_chain_runs_in_order_and_others_beside_it() -> None:
    ran: list[str] = []
    gate = asyncio.Event()

    async def waits(name: str) -> None:
        await gate.wait()
        ran.append(name)

    async def at_once(name: str) -> None:
        ran.append(name)

    async def test(chains: Chains) -> None:
        chains.append((K, "r1"), waits("first"))
        chains.append((K, "r1"), at_once("second"))
        chains.append((K, ""), at_once("close"), after=chains.keys(K))
        chains.append((K, "r2"), at_once("after close"), after=((K, ""),))
        chains.append((OTHER, "r1"), at_once("other"))
        await chains.settled(OTHER)
        assert ran == ["other"]
        gate.set()
        await chains.settled(K)
        assert ran == ["other", "first", "second", "close", "after close"]
        assert chains.keys(K) == ()

    run(test)


def test_a_failure_is_logged_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    ran: list[str] = []

    async def fails() -> None:
        raise ValueError("broken")

    async def goes_on() -> None:
        ran.append("on")

    async def test(chains: Chains) -> None:
        chains.append((K, ""), fails())
        chains.append((K, ""), goes_on())
        await chains.settled(K)

    with caplog.at_level(logging.ERROR):
        run(test)
    assert ran == ["on"]
    assert "broken" in caplog.text


def test_what_never_began_is_closed_without_a_word() -> None:
    async def never() -> None:
        raise AssertionError("it was cancelled before")

    async def test(chains: Chains) -> None:
        chains.spawn(never())
        chains.append((K, ""), never())
        await chains.cancel()

    run(test)
