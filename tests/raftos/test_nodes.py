"""Nodes of one cluster on real sockets and logs: what raftos's API promises, kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from raftos_nodes import HANG_S, Cluster, free_addresses, until

from notebookos_ext.agent.compaction import CompactionLimits
from notebookos_ext.cluster.consensus.ready import Role
from notebookos_ext.cluster.model import KernelId
from notebookos_ext.errors import (
    CorruptRecord,
    InvalidRequest,
    InvalidSettings,
    LaunchFailed,
    OutcomeUnknown,
    Unavailable,
)
from notebookos_ext.raftos import node as node_module
from notebookos_ext.raftos import server
from notebookos_ext.raftos.conf import PUBLISHED_SECRET, Configuration
from notebookos_ext.raftos.data import Append, Pop, Set
from notebookos_ext.raftos.node import GROUP, Node
from notebookos_ext.raftos.secret import cluster_token, is_local


def whole(value: object) -> object:
    return value


def run(
    folder: Path,
    story: Callable[[Cluster], Coroutine[object, object, None]],
    size: int = 3,
    limits: CompactionLimits | None = None,
) -> None:
    async def all_of_it() -> None:
        cluster = Cluster(folder, size, limits)
        try:
            async with asyncio.timeout(2 * HANG_S):
                await cluster.start()
                await story(cluster)
        finally:
            await cluster.stop()

    asyncio.run(all_of_it())


async def get(node: Node, name: str, default: object = None) -> object:
    return await node.read(name, default, whole)


def append(node: Node, item: object) -> Append:
    return Append("list", node.pack([]), node.pack(item))


def test_any_node_takes_changes_and_reads_see_them_everywhere(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        for number, node in enumerate(cluster.nodes.values()):
            await node.change(Set("x", node.pack(number)))
            for other in cluster.nodes.values():
                assert await get(other, "x") == number

    run(tmp_path, story)


def test_concurrent_changes_are_each_confirmed_and_none_is_lost(tmp_path: Path) -> None:
    # raftos: one confirms the other, all but one hang (S9, L3); two nodes overwrite each other.
    async def story(cluster: Cluster) -> None:
        nodes = list(cluster.nodes.values())
        await asyncio.gather(
            *(nodes[number % 3].change(append(nodes[0], number)) for number in range(60))
        )
        lists = [await get(node, "list") for node in nodes]
        assert lists[0] == lists[1] == lists[2]
        assert sorted(lists[0]) == list(range(60))  # type: ignore[call-overload]

    run(tmp_path, story)


def test_a_change_outlives_the_leader(tmp_path: Path) -> None:
    # raftos: no commit after a fail-over (L1), and the caller hangs (L4).
    async def story(cluster: Cluster) -> None:
        leader = await cluster.elected()
        follower, other = cluster.followers()
        changes = [
            asyncio.create_task(cluster.nodes[follower].change(append(cluster.nodes[other], n)))
            for n in range(20)
        ]
        await asyncio.sleep(0)
        await cluster.stop(leader)
        await asyncio.gather(*changes)
        assert sorted(await get(cluster.nodes[other], "list")) == list(range(20))  # type: ignore[call-overload]
        assert await cluster.elected() in {follower, other}

    run(tmp_path, story)


def test_whoever_waits_for_a_majority_gets_what_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "ASK_AGAIN_S", 0.02)

    async def story(cluster: Cluster) -> None:
        one, two, three = cluster.addresses
        await cluster.stop(two, three)
        node = cluster.nodes[one]
        asked_again = 0
        propose = node._members.propose

        async def counting(*arguments: Any) -> int:
            nonlocal asked_again
            asked_again += 1
            return await propose(*arguments)

        monkeypatch.setattr(node._members, "propose", counting)
        change = asyncio.create_task(node.change(append(node, 1)))
        read = asyncio.create_task(get(node, "list"))
        await until(lambda: asked_again > 5)
        assert not change.done()
        assert not read.done()
        await cluster.start(two, three)
        await change
        assert await read in (None, [1])
        assert await get(cluster.nodes[two], "list") == [1], "carried out once"

    run(tmp_path, story)


def test_everything_is_there_after_all_have_stopped(tmp_path: Path) -> None:
    # raftos: nothing can be committed any more (L2), values go back in time (S20).
    async def story(cluster: Cluster) -> None:
        node = cluster.nodes[cluster.addresses[0]]
        for number in range(5):
            await node.change(Set("x", node.pack(number)))
        await cluster.stop()
        await cluster.start()
        node = cluster.nodes[cluster.addresses[1]]
        assert await get(node, "x") == 4
        await node.change(Set("x", node.pack(b"binary \n\x00")))
        assert await get(cluster.nodes[cluster.addresses[2]], "x") == b"binary \n\x00"

    run(tmp_path, story)


def snapshot_index(node: Node) -> int:
    return node._members.status(GROUP).snapshot_index


def test_old_changes_become_a_snapshot_that_all_can_go_on_from(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        one, two, three = cluster.addresses
        await cluster.stop(three)
        node = cluster.nodes[one]
        await node.change(Set("x", node.pack({"kept": b"\n"})))
        for number in range(400):
            await node.change(append(node, number))
        await until(lambda: snapshot_index(cluster.nodes[one]) > 0)
        await until(lambda: snapshot_index(cluster.nodes[two]) > 0)
        await cluster.start(three)
        for number in range(400, 420):
            await cluster.nodes[three].change(append(node, number))
        assert snapshot_index(cluster.nodes[three]) > 0
        await cluster.stop()
        await cluster.start()
        for address in cluster.addresses:
            assert await get(cluster.nodes[address], "list") == list(range(420))
            assert await get(cluster.nodes[address], "x") == {"kept": b"\n"}

    run(tmp_path, story, limits=CompactionLimits(entries=50))


def test_an_answer_that_a_snapshot_swallowed_is_not_made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(cluster: Cluster) -> None:
        (node,) = cluster.nodes.values()

        async def committed_and_in_a_snapshot(payload: bytes, proposal_id: str) -> int:
            node.restore(GROUP, 7, node._data.packed())
            return 7

        monkeypatch.setattr(node, "_commit", committed_and_in_a_snapshot)
        assert await node.change(Set("x", node.pack(1))) is None
        with pytest.raises(OutcomeUnknown, match="a change of d was carried out"):
            await node.change(Pop("d", node.pack({}), node.pack("a"), None))

    run(tmp_path, story, size=1)


def test_an_operation_that_fails_raises_where_it_was_asked_for(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        one, two, three = cluster.nodes.values()
        with pytest.raises(KeyError, match="a"):
            await one.change(Pop("d", one.pack({}), one.pack("a"), None))
        assert await one.change(Pop("d", one.pack({}), one.pack("a"), one.pack(5))) == 5
        await two.change(Set("text", two.pack("x")))
        with pytest.raises(AttributeError):
            await three.change(Append("text", three.pack([]), three.pack(1)))
        with pytest.raises(InvalidRequest, match=r"takes 1,000,0.* bytes, and at most 1,000,000"):
            await three.change(Set("x", three.pack(bytes(1_000_000))))

    run(tmp_path, story)


def test_hooks_say_who_leads_from_when_it_can_be_relied_on(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        leader = await cluster.elected()
        assert cluster.heard[leader] == ["leads"]
        followers = cluster.followers()
        await until(lambda: all(cluster.heard[a] == ["follows"] for a in followers))
        # Cut off from both others, a leader learns that it leads no more.
        for follower in followers:
            await cluster.stop(follower)
        await until(lambda: cluster.heard[leader] == ["leads", "follows"])
        assert cluster.nodes[leader].leader is None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await get(cluster.nodes[leader], "x")
        await cluster.start(*followers)
        await cluster.elected()
        heard = sum(hooks.count("leads") for hooks in cluster.heard.values())
        assert heard == 2

    run(tmp_path, story)


def test_nobody_leads_before_something_is_committed_in_the_term(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(cluster: Cluster) -> None:
        (address,) = cluster.addresses
        await cluster.stop()
        node = Node(address, [], cluster.configuration(address))
        cluster.heard[address].clear()
        barrier = node._members.read_barrier
        may_pass = asyncio.Event()

        async def held_up(kernel: KernelId, timeout_s: float) -> int:
            await may_pass.wait()
            return await barrier(kernel, timeout_s)

        monkeypatch.setattr(node._members, "read_barrier", held_up)
        await node.start()
        cluster.nodes[address] = node
        await until(lambda: node._members.status(GROUP).role is Role.LEADER)
        # Long enough for a hook that is called too early; one that comes later would be too late.
        for _ in range(20):
            await asyncio.sleep(0)
        assert (node.leader, cluster.heard[address]) == (None, [])
        may_pass.set()
        await until(lambda: node.leader == address)
        assert cluster.heard[address] == ["leads"]

    run(tmp_path, story, size=1)


def test_a_hook_that_fails_is_not_the_nodes_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def later() -> None:
        raise RuntimeError("later")

    def at_once() -> None:
        raise RuntimeError("at once")

    async def story(cluster: Cluster) -> None:
        leader = await cluster.elected()
        (node,) = cluster.nodes.values()
        for hook in (later, at_once):
            node._call(hook)
        await until(lambda: caplog.text.count("a hook of the program failed") == 2)
        assert node.leader == leader
        await node.change(Set("x", node.pack(1)))

    run(tmp_path, story, size=1)


def test_who_waits_is_told_when_the_node_stops(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        leader = await cluster.elected()
        await cluster.stop(*cluster.followers())
        node = cluster.nodes[leader]
        waiting = [
            asyncio.create_task(node.change(Set("x", node.pack(1)))),
            asyncio.create_task(get(node, "x")),
        ]
        await asyncio.sleep(0)
        await cluster.stop(leader)
        for task in waiting:
            with pytest.raises(Unavailable):
                await task

    run(tmp_path, story)


def test_an_answer_that_never_came_is_not_waited_for_beyond_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(cluster: Cluster) -> None:
        (node,) = cluster.nodes.values()

        async def committed_but_not_delivered(payload: bytes, proposal_id: str) -> int:
            return 99

        monkeypatch.setattr(node, "_commit", committed_but_not_delivered)
        change = asyncio.create_task(node.change(Set("x", node.pack(1))))
        await asyncio.sleep(0)
        await cluster.stop()
        with pytest.raises(Unavailable, match="was stopped"):
            await change

    run(tmp_path, story, size=1)


def test_a_log_of_other_nodes_is_refused(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        address = cluster.addresses[0]
        await cluster.stop(address)
        other = Node(address, [address, *free_addresses(2)], cluster.configuration(address))
        with pytest.raises(CorruptRecord):
            await other.start()
        await cluster.start(address)

    run(tmp_path, story)


def test_addresses_are_checked(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        for wrong in ("127.0.0.1", "127.0.0.1:", ":8000", "127.0.0.1:http", "127.0.0.1:70000"):
            with pytest.raises(InvalidRequest, match="is not an address"):
                Node(wrong, [], cluster.configuration(wrong))
        address = cluster.addresses[0]
        with pytest.raises(LaunchFailed, match="cannot listen"):
            await Node(address, [], configuration_in(tmp_path / "other")).start()

    run(tmp_path, story)


def configuration_in(folder: Path) -> Configuration:
    config = Configuration()
    config.configure({"log_path": folder, "secret_key": b"x"})
    return config


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"heartbeat_interval": 0}, "heartbeat_interval is 0"),
        ({"heartbeat_interval": "1"}, "heartbeat_interval is '1'"),
        ({"step_down_missed_heartbeats": 1.5}, "must be a whole number"),
        ({"secret_key": b""}, "secret_key must be bytes or text"),
        ({"on_leader": 1}, "on_leader must be a function"),
        ({"serializer": int}, "pack and unpack"),
    ],
)
def test_settings_are_checked_before_any_is_changed(
    settings: dict[str, object], reason: str
) -> None:
    config = Configuration()
    with pytest.raises(InvalidSettings, match=reason):
        config.configure({"log_path": "elsewhere", **settings})
    assert config.log_path == "/var/log/raftos/"


def test_settings_of_another_name_are_kept_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    config = Configuration()
    config.configure({"LOG_PATH": "there", "log_pth": "here"})
    assert config.log_path == "there"
    assert "no setting log_pth" in caplog.text


def test_nodes_of_one_machine_share_a_secret_of_their_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    config = Configuration()
    local = ["127.0.0.1:8000", "localhost:8001", "[::1]:8002"]
    token = cluster_token(config, local)
    assert len(token) == 32
    assert cluster_token(config, local) == token
    assert (tmp_path / "notebookos" / "raftos-secret").stat().st_mode & 0o777 == 0o600
    for away in ("10.0.0.1:8000", "example.org:8000"):
        assert not is_local(away)
        with pytest.raises(InvalidSettings, match="need a secret"):
            cluster_token(config, [*local, away])
    config.configure({"secret_key": "chosen"})
    chosen = cluster_token(config, [*local, "10.0.0.1:8000"])
    config.configure({"secret_key": b"chosen", "salt": "other"})
    assert len({token, chosen, cluster_token(config, local)}) == 3
    config.configure({"secret_key": PUBLISHED_SECRET})
    assert cluster_token(config, local) == token


def test_without_nodes_nobody_leads() -> None:
    async def story() -> None:
        assert server.get_leader() is None
        with pytest.raises(ValueError, match="not None"):
            await server.wait_until_leader(None)
        with pytest.raises(InvalidRequest, match="needs the address"):
            await server.register()

    asyncio.run(story())
