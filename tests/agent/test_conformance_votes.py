"""What a member makes of messages that come twice, late or after its restart, for each engine.

The test speaks for all other members. The marks are as in `test_conformance.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

from engine_group import HOSTS, kept_by_raft_only
from engine_words import Alone

from notebookos_ext.cluster.model import HostId

FIVE = (*HOSTS, HostId("h4"), HostId("h5"))
CALM_S = 2.0
"""Heartbeats so rare that nobody stands for election unless told to."""
EAGER_S = 0.05

Story = Callable[[Alone], Coroutine[object, object, None]]


def run(
    folder: Path,
    engine: str,
    story: Story,
    *,
    members: Sequence[HostId] = HOSTS,
    heartbeat_s: float = CALM_S,
) -> None:
    async def all_of_it() -> None:
        alone = Alone(folder, engine, members, heartbeat_s)
        try:
            await alone.start()
            await story(alone)
        finally:
            await alone.stop()

    asyncio.run(all_of_it())


@kept_by_raft_only("S1: the vote is forgotten with the process", AssertionError)
def test_one_vote_a_term_also_after_a_restart(tmp_path: Path, engine: str) -> None:
    async def story(alone: Alone) -> None:
        await alone.restart_as_follower()
        alone.say(alone.words.vote_request("h2", 50))
        assert (await alone.answer("vote", "h2", 50)).granted
        await alone.restart_as_follower()
        alone.say(alone.words.vote_request("h3", 50))
        assert not (await alone.answer("vote", "h3", 50)).granted

    run(tmp_path, engine, story)


@kept_by_raft_only("S3: a vote of an earlier term elects", AssertionError)
def test_a_late_vote_does_not_count(tmp_path: Path, engine: str) -> None:
    async def story(alone: Alone) -> None:
        first = await alone.candidacy()
        second = await alone.candidacy(first)
        alone.say(alone.words.vote("h2", first, pre=False))
        await alone.candidacy(second)
        assert not alone.leads

    run(tmp_path, engine, story, heartbeat_s=EAGER_S)


@kept_by_raft_only("S4: one vote counts as often as it comes", AssertionError)
def test_a_repeated_vote_counts_once(tmp_path: Path, engine: str) -> None:
    async def story(alone: Alone) -> None:
        term = await alone.candidacy()
        for _ in range(3):
            alone.say(alone.words.vote("h2", term, pre=False))
        await alone.candidacy(term)
        assert not alone.leads

    run(tmp_path, engine, story, members=FIVE, heartbeat_s=EAGER_S)


@kept_by_raft_only("S15: two of four are a majority", AssertionError)
def test_half_is_no_majority(tmp_path: Path, engine: str) -> None:
    async def story(alone: Alone) -> None:
        term = await alone.candidacy()
        alone.say(alone.words.vote("h2", term, pre=False))
        await alone.candidacy(term)
        assert not alone.leads

    run(tmp_path, engine, story, members=FIVE[:4], heartbeat_s=EAGER_S)


@kept_by_raft_only("S6: a late message erases what was acknowledged", AssertionError)
def test_late_messages_erase_nothing(tmp_path: Path, engine: str) -> None:
    async def story(alone: Alone) -> None:
        await alone.restart_as_follower()
        for after in range(3):
            alone.say(alone.words.append("h2", 50, after, 1))
            assert (await alone.answer("verified", "h2", 50)).granted
        # A heartbeat from when there was one entry, and one that carries the second again.
        alone.say(alone.words.append("h2", 50, 1, 0))
        await alone.answer("verified", "h2", 50)
        alone.say(alone.words.append("h2", 50, 1, 1))
        await alone.answer("verified", "h2", 50)
        assert alone.last_index == 3

    run(tmp_path, engine, story)
