"""The promises of `ReplicatedLog`, put to each engine; those that raftos breaks are named.

A mark says what the published raftos does instead; the marks are strict, so that one that does not
fail any more fails the run.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from engine_group import (
    HANG_S,
    HOSTS,
    EngineGroup,
    EngineHost,
    K,
    Network,
    kept_by_both,
    kept_by_raft_only,
    until,
)

from notebookos_ext.errors import Infeasible, InvalidRequest, LaunchFailed, NotFound, OutcomeUnknown

SHORT_S = 3.0
"""How long something is waited for that raftos never does."""

ENTRIES_IN = {"raft": "member.wal", "raftos": "h*.log"}
"""The file with a member's entries."""

Story = Callable[[EngineGroup], Coroutine[object, object, None]]


CALM_S = 0.3
"""Of a heartbeat: raftos may never commit again once its leader has been replaced."""
EAGER_S = 0.05


def run(folder: Path, engine: str, story: Story, heartbeat_s: float = CALM_S) -> None:
    async def all_of_it() -> None:
        group = EngineGroup(folder, engine, heartbeat_s)
        try:
            await group.start()
            await story(group)
        finally:
            await group.stop()

    asyncio.run(all_of_it())


@kept_by_both
def test_any_member_proposes_and_all_agree_on_the_order(tmp_path: Path, engine: str) -> None:
    async def story(group: EngineGroup) -> None:
        await asyncio.gather(
            *(
                group[HOSTS[n % 3]].engine.propose(K, b"\n%d" % n, f"p{n}", timeout_s=HANG_S)
                for n in range(30)
            )
        )
        for host in HOSTS:
            await group[host].engine.read_barrier(K, HANG_S)
        logs = [group[host].payloads for host in HOSTS]
        assert logs[0] == logs[1] == logs[2]
        assert sorted(logs[0]) == sorted(b"\n%d" % n for n in range(30))
        indices = [entry.index for entry in group[HOSTS[0]].committed]
        assert indices == sorted(set(indices))
        assert group[HOSTS[1]].engine.committed_from(K, indices[7]) == group[HOSTS[0]].committed[7:]

    run(tmp_path, engine, story)


@kept_by_both
def test_a_repeated_proposal_is_committed_once(tmp_path: Path, engine: str) -> None:
    async def story(group: EngineGroup) -> None:
        leader, follower = HOSTS[0], HOSTS[1]
        first = await group[leader].engine.propose(K, b"x", "x", timeout_s=HANG_S)
        again = await asyncio.gather(
            group[leader].engine.propose(K, b"x", "x", timeout_s=HANG_S),
            group[follower].engine.propose(K, b"x", "x", timeout_s=HANG_S),
        )
        assert again == [first, first]
        await group[follower].engine.read_barrier(K, HANG_S)
        assert group[follower].payloads == [b"x"]

    run(tmp_path, engine, story)


@kept_by_both
def test_a_barrier_shows_what_was_acknowledged_before_it(tmp_path: Path, engine: str) -> None:
    async def story(group: EngineGroup) -> None:
        for n in range(6):
            writer, reader = group[HOSTS[n % 3]], group[HOSTS[(n + 1) % 3]]
            index = await writer.engine.propose(K, b"%d" % n, f"p{n}", timeout_s=HANG_S)
            assert await reader.engine.read_barrier(K, HANG_S) >= index
            assert len(reader.payloads) == n + 1

    run(tmp_path, engine, story)


@kept_by_both
def test_a_megabyte_fits_and_more_is_refused(tmp_path: Path, engine: str) -> None:
    async def story(group: EngineGroup) -> None:
        await group[HOSTS[1]].engine.propose(K, bytes(1_000_000), "large", timeout_s=HANG_S)
        await group[HOSTS[2]].engine.read_barrier(K, HANG_S)
        assert group[HOSTS[2]].payloads == [bytes(1_000_000)]
        with pytest.raises(InvalidRequest, match="over the limit of 1,000,000"):
            await group[HOSTS[1]].engine.propose(K, bytes(1_000_001), "larger")

    run(tmp_path, engine, story)


@kept_by_both
def test_a_member_that_was_away_catches_up(tmp_path: Path, engine: str) -> None:
    async def story(group: EngineGroup) -> None:
        follower = (await group.followers())[0]
        await group.stop(follower)
        other = (await group.followers())[0]
        for n in range(5):
            await group[other].engine.propose(K, b"%d" % n, f"p{n}", timeout_s=HANG_S)
        await group.start(follower)
        await until(lambda: len(group[follower].payloads) == 5)
        assert group[follower].payloads == group[other].payloads

    run(tmp_path, engine, story)


@kept_by_both
def test_who_is_not_a_member_is_told(tmp_path: Path, engine: str) -> None:
    async def story(group: EngineGroup) -> None:
        engine_of_one = group[HOSTS[0]].engine
        await engine_of_one.close(K, delete=True)
        with pytest.raises(NotFound, match="no member of kernel"):
            await engine_of_one.propose(K, b"x", "x")
        with pytest.raises(InvalidRequest, match="is not among h2, h3"):
            await engine_of_one.open(K, HOSTS[1:], campaign=False)

    run(tmp_path, engine, story)


@kept_by_raft_only("L1: an entry of the lost leader's term blocks its successor", OutcomeUnknown)
def test_a_new_leader_commits(tmp_path: Path, engine: str) -> None:
    async def story(group: EngineGroup) -> None:
        followers = await group.followers()
        leader = group.leader()
        assert leader is not None
        # Acknowledged, and then nobody hears from the leader any more.
        group.network.silence_after = (leader, "last-words")
        await group[leader].engine.propose(K, b"x", "last-words", timeout_s=HANG_S)
        await group.stop(leader)
        successor = group[followers[0]].engine
        await until(group.leader)
        await successor.propose(K, b"y", "y", timeout_s=SHORT_S)
        assert group[followers[0]].payloads == [b"x", b"y"]

    run(tmp_path, engine, story, EAGER_S)


@kept_by_raft_only("L2: entries of earlier terms block every leader", OutcomeUnknown)
def test_all_start_again_with_what_was_acknowledged(tmp_path: Path, engine: str) -> None:
    async def story(group: EngineGroup) -> None:
        for n in range(3):
            await group[HOSTS[n]].engine.propose(K, b"%d" % n, f"p{n}", timeout_s=HANG_S)
        await group.stop()
        await group.start()
        await group[HOSTS[0]].engine.propose(K, b"3", "p3", timeout_s=SHORT_S)
        assert group[HOSTS[0]].payloads == [b"0", b"1", b"2", b"3"]

    run(tmp_path, engine, story)


COUNT_FLUSHES = """
import os

def counted(flush):
    def flushed(descriptor):
        with open(os.environ["FLUSHES"], "a") as file:
            file.write(f"{os.getpid()}\\n")
        return flush(descriptor)
    return flushed

os.fsync, os.fdatasync = counted(os.fsync), counted(os.fdatasync)
"""


@kept_by_raft_only("S21: nothing is ever flushed", AssertionError)
def test_what_is_acknowledged_was_flushed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    flushes = tmp_path / "flushes"
    flushes.touch()
    (tmp_path / "sitecustomize.py").write_text(COUNT_FLUSHES)
    monkeypatch.setenv("FLUSHES", str(flushes))
    # Read by every process that is started from here on; this one runs it now.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(os, "fsync", os.fsync)
    monkeypatch.setattr(os, "fdatasync", os.fdatasync)
    exec(COUNT_FLUSHES, {})

    async def story(group: EngineGroup) -> None:
        before = len(flushes.read_text().splitlines())
        await group[HOSTS[1]].engine.propose(K, b"x", "x", timeout_s=HANG_S)
        assert len(flushes.read_text().splitlines()) >= before + 2

    run(tmp_path, engine, story)


@kept_by_raft_only("S13: a record that was half written can never be read again", LaunchFailed)
def test_a_half_written_record_is_cut_off(tmp_path: Path, engine: str) -> None:
    async def story(group: EngineGroup) -> None:
        follower, other = await group.followers()
        await group[follower].engine.propose(K, b"x", "x", timeout_s=HANG_S)
        await group[follower].engine.read_barrier(K, HANG_S)
        # What it writes from here on it could not acknowledge before it was killed.
        group.network.silenced.add(follower)
        (log,) = (tmp_path / follower / K).glob(ENTRIES_IN[engine])
        size_bytes = log.stat().st_size
        await group[other].engine.propose(K, b"y", "y", timeout_s=HANG_S)
        await until(lambda: log.stat().st_size > size_bytes)
        await group.stop(follower)
        log.write_bytes(log.read_bytes()[:-5])
        group.network.silenced.clear()
        await group.start(follower)
        await until(lambda: group[follower].payloads == [b"x", b"y"])

    run(tmp_path, engine, story)


@kept_by_raft_only("there is no handover", Infeasible)
def test_leadership_moves_on_request(tmp_path: Path, engine: str) -> None:
    async def story(group: EngineGroup) -> None:
        to = (await group.followers())[0]
        await group[to].engine.transfer_leadership(K, to, timeout_s=HANG_S)
        await until(lambda: group.leader() == to)

    run(tmp_path, engine, story)


@kept_by_raft_only("nobody is elected in a group of one", Infeasible)
def test_a_group_of_one_works(tmp_path: Path, engine: str) -> None:
    async def story() -> None:
        host = EngineHost(Network(), HOSTS[0], tmp_path, engine)
        try:
            await host.engine.open(K, HOSTS[:1], campaign=False)
            await host.engine.propose(K, b"x", "x")
            assert host.payloads == [b"x"]
        finally:
            await host.engine.shut_down()

    asyncio.run(story())
