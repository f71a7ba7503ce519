"""The replicated values as programs use them, on a cluster of three in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from raftos_nodes import HANG_S, Cluster

from notebookos_ext.raftos import Replicated, ReplicatedDict, ReplicatedList, replicator
from notebookos_ext.raftos.node import Node


class Process:
    """Which of the cluster's nodes is the one of this process, for now."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.address = cluster.addresses[0]

    async def registered(self) -> Node:
        return self.cluster.nodes[self.address]


def run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    story: Callable[[Process], Coroutine[object, object, None]],
) -> None:
    async def all_of_it() -> None:
        cluster = Cluster(folder)
        process = Process(cluster)
        monkeypatch.setattr(replicator, "registered", process.registered)
        try:
            async with asyncio.timeout(HANG_S):
                await cluster.start()
                await story(process)
        finally:
            await cluster.stop()

    asyncio.run(all_of_it())


def test_a_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(process: Process) -> None:
        data = ReplicatedDict("data")
        assert (await data.get(), await data.length(), list(await data.keys())) == ({}, 0, [])
        await data.update({"a": 1, "b": [2]})
        await data.update([("c", None)])
        process.address = process.cluster.addresses[1]
        assert (await data["b"], await data.length()) == ([2], 3)
        assert sorted(await data.keys()) == ["a", "b", "c"]
        assert list(await data.values()) == [1, [2], None]
        assert list(await data.items()) == [("a", 1), ("b", [2]), ("c", None)]
        assert await data.pop("a", "nothing") == 1
        assert await data.pop("a", "nothing") == "nothing"
        for absent in (data.pop("a"), data.delete("a"), data["a"]):
            with pytest.raises(KeyError, match="a"):
                await absent
        await data.delete("b")
        process.address = process.cluster.addresses[2]
        assert await data.get() == {"c": None}
        with pytest.raises(ValueError, match="dictionary update sequence"):
            await data.update(["x"])  # type: ignore[list-item]

    run(tmp_path, monkeypatch, story)


def test_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(process: Process) -> None:
        names = ReplicatedList("names", default=["first"])
        assert await names.get() == ["first"]
        await names.append("second")
        await names.extend(name for name in ("third", "fourth"))
        process.address = process.cluster.addresses[1]
        assert await names.get() == ["first", "second", "third", "fourth"]
        assert (await names[-1], await names.length()) == ("fourth", 4)
        with pytest.raises(IndexError):
            await names[9]

    run(tmp_path, monkeypatch, story)


def test_values_and_defaults_are_nobodys_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # raftos: all dictionaries share one default (S17), what was got is what is stored (S16).
    async def story(_process: Process) -> None:
        given: list[int] = []
        value = Replicated("value", default=given)
        given.append(1)
        assert await value.get() == []
        one, two = ReplicatedDict("one"), ReplicatedDict("two")
        (await one.get())["mine"] = 1
        await two.update({"its": 2})
        assert (await one.get(), await two.get()) == ({}, {"its": 2})
        assert await Replicated("nothing").get() is None

    run(tmp_path, monkeypatch, story)


def test_objects_of_one_name_are_one_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # raftos: an object that has once set a value never sees another (S18).
    async def story(process: Process) -> None:
        mine, theirs = Replicated("value"), Replicated("value")
        await mine.set(1)
        process.address = process.cluster.addresses[2]
        await theirs.set({"two": 2})
        assert await mine.get() == {"two": 2}
        with pytest.raises(TypeError):
            await mine.set(object())
        assert await theirs.get() == {"two": 2}

    run(tmp_path, monkeypatch, story)
