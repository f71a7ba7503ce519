"""What members of several hosts keep to, through losses, restarts and broken disks."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from member_rig import HANG_S, HOSTS, TICK_S, A, B, C, Cluster, K, run, until

from notebookos_ext.cluster.consensus.messages import Entry, Envelope, Heartbeat, VoteRequest
from notebookos_ext.cluster.model import HostId, KernelId
from notebookos_ext.errors import (
    CorruptRecord,
    InvalidRequest,
    NoMajority,
    NotFound,
    OutcomeUnknown,
    StorageError,
    StorageFull,
    Unavailable,
)
from notebookos_ext.storage.wal import WriteAheadLog


def test_every_host_can_propose_and_all_see_one_order(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        proposals = [
            cluster[host].members.propose(K, f"{host}-{n}".encode(), f"{host}-{n}")
            for n in range(20)
            for host in HOSTS
        ]
        indices = await asyncio.gather(*proposals)
        assert len(set(indices)) == 60
        await until(lambda: all(len(cluster[host].payloads()) == 60 for host in HOSTS))
        assert cluster[A].committed == cluster[B].committed == cluster[C].committed
        entries = cluster[C].committed[K]
        assert sorted(indices) == [entry.index for entry in entries]
        assert cluster[B].members.committed_from(K, entries[10].index) == entries[10:]
        assert cluster[B].members.committed_from(K, 0) == entries
        assert cluster[B].members.committed_from(K, entries[-1].index + 1) == []
        assert cluster.leader() == A
        assert cluster[B].members.status(K).leader == A

    run(tmp_path, story)


def test_one_proposal_id_is_committed_once_however_often_it_is_proposed(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        calls = [cluster[host].members.propose(K, b"x", "one") for host in HOSTS * 3]
        indices = await asyncio.gather(*calls)
        assert len(set(indices)) == 1
        assert await cluster[B].members.propose(K, b"x", "one") == indices[0]
        await cluster[B].members.propose(K, b"y", "two")
        assert cluster[B].payloads() == [b"x", b"y"]

    run(tmp_path, story)


def test_a_restarted_group_has_everything_and_goes_on(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        for n in range(5):
            await cluster[A].members.propose(K, bytes([n]), f"{n}")
        await cluster.restart()
        assert await cluster[C].members.propose(K, b"2", "2") == 4, "known from before"
        await cluster[C].members.propose(K, b"after", "after")
        await until(lambda: all(len(cluster[host].payloads()) == 6 for host in HOSTS))
        assert cluster[B].payloads() == [*(bytes([n]) for n in range(5)), b"after"]

    run(tmp_path, story)


def test_a_group_of_one_needs_nobody(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        members = cluster[A].members
        await members.open(K, (A,), campaign=False)
        await members.propose(K, b"x", "x")
        await members.close(K, delete=False)
        await members.open(K, (A,), campaign=False)
        assert await members.read_barrier(K) >= 2
        assert [entry.payload for entry in members.committed_from(K, 0)] == [b"x"]

    run(tmp_path, story)


def test_without_a_majority_nothing_is_promised(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        members = cluster[A].members
        await members.open(K, HOSTS, campaign=True)
        with pytest.raises(NoMajority, match=r"no member leads within 0\.1 s, because too few of"):
            await members.propose(K, b"x", "x", timeout_s=0.1)
        with pytest.raises(NoMajority):
            await members.read_barrier(K, timeout_s=0.1)
        await cluster.open()
        await members.propose(K, b"x", "x")

    run(tmp_path, story)


def test_an_unknown_outcome_is_settled_by_the_same_id(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        await cluster[A].members.propose(K, b"first", "first")
        cluster.wire.separate(A, noticed=False)
        with pytest.raises(OutcomeUnknown, match="repeat it with the same id"):
            await cluster[A].members.propose(K, b"x", "x", timeout_s=0.1)
        waiting = asyncio.create_task(cluster[A].members.propose(K, b"x", "x", timeout_s=HANG_S))
        await cluster[B].members.propose(K, b"y", "y", timeout_s=HANG_S)
        cluster.wire.rejoin(A)
        await waiting
        await until(lambda: all(len(cluster[host].payloads()) == 3 for host in HOSTS))
        assert cluster[A].payloads() == cluster[B].payloads() == [b"first", b"y", b"x"]

    run(tmp_path, story)


def test_a_lost_leader_is_replaced_without_a_time_out(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        await cluster[A].members.propose(K, b"x", "x")
        await until(lambda: all(cluster[host].members.status(K).resting for host in HOSTS))
        # Long ticks from here on: only the report can be what replaces it.
        for host in (B, C):
            cluster[host].members._tick_s = 3600
        await asyncio.sleep(3 * TICK_S)
        cluster.wire.separate(A)
        await cluster[C].members.propose(K, b"y", "y")
        assert cluster[C].members.status(K).leader == B

    run(tmp_path, story)


def test_a_reported_loss_that_was_none_is_forgotten(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        for host in (A, C):
            cluster[host].members.peer_lost(B)
        await cluster[A].members.propose(K, b"x", "x")
        await until(lambda: all(cluster[host].members.status(K).resting for host in HOSTS))

    run(tmp_path, story)


def test_leadership_moves(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        for asking, to in ((A, C), (A, B), (C, C), (C, C), (B, A)):
            await cluster[asking].members.transfer_leadership(K, to)
            assert cluster[asking].members.status(K).leader == to
        await until(lambda: cluster.leader() == A)
        cluster[B].members.campaign(K)
        await until(lambda: cluster.leader() == B)
        with pytest.raises(InvalidRequest, match="no voting member on host h9"):
            await cluster[A].members.transfer_leadership(K, HostId("h9"))
        await until(lambda: cluster[A].members.status(K).leader == B)
        cluster.wire.separate(C)
        with pytest.raises(NoMajority, match="h3 did not become its leader within"):
            await cluster[A].members.transfer_leadership(K, C, timeout_s=0.1)
        await cluster[A].members.propose(K, b"still works", "x")

    run(tmp_path, story)


def test_hosts_are_told_who_leads(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        await cluster[C].members.propose(K, b"x", "x")
        await until(lambda: all(cluster[host].leaders == [A] for host in HOSTS))
        cluster.wire.separate(A)
        await until(lambda: cluster[A].leaders == [A, None])
        await until(lambda: cluster[C].leaders[-1] in {B, C})
        await cluster[C].members.close(K, delete=False)
        assert cluster[C].leaders[-1] is None

    run(tmp_path, story)


def test_a_barrier_shows_everything_acknowledged_before_it(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        for n in range(10):
            index = await cluster[A].members.propose(K, bytes([n]), f"{n}")
            reader = cluster[HOSTS[n % 3]]
            assert await reader.members.read_barrier(K) >= index
            assert len(reader.payloads()) == n + 1

    run(tmp_path, story)


def test_idle_groups_send_nothing(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        other = KernelId("kernel-2")
        await cluster.open()
        await cluster[A].members.propose(K, b"x", "x")
        await until(lambda: all(cluster[host].members.status(K).resting for host in HOSTS))
        cluster.wire.carried.clear()
        await cluster.open(other)
        await cluster[A].members.propose(other, b"x", "x")
        await until(lambda: all(cluster[host].members.status(other).resting for host in HOSTS))
        assert {envelope.group for _, _, envelope in cluster.wire.carried} == {other}

    run(tmp_path, story)


def test_a_large_entry_is_saved_by_a_thread(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        large = random.Random(1).randbytes(1_000_000)
        calls = [
            cluster[host].members.propose(K, payload, f"{host}-{len(payload)}")
            for host in HOSTS
            for payload in (large, b"small")
        ]
        await asyncio.gather(*calls)
        await until(lambda: all(len(cluster[host].payloads()) == 6 for host in HOSTS))
        assert cluster[A].payloads() == cluster[B].payloads() == cluster[C].payloads()
        with pytest.raises(InvalidRequest, match="checkpoint store"):
            await cluster[B].members.propose(K, large + b"x", "too large")
        await cluster.restart()
        await cluster[B].members.read_barrier(K)
        assert cluster[B].payloads().count(large) == 3

    run(tmp_path, story)


def test_a_full_disk_stops_one_member_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save = WriteAheadLog.save
    full = True

    def saves(log: WriteAheadLog, *what: object) -> None:
        if full and "/h1/" in str(log.path):
            raise StorageFull("no space is left on h1")
        save(log, *what)  # type: ignore[arg-type]

    async def story(cluster: Cluster) -> None:
        nonlocal full
        await cluster.open()
        await cluster[A].members.propose(K, b"x", "x")
        monkeypatch.setattr(WriteAheadLog, "save", saves)
        with pytest.raises(StorageFull, match="no space is left on h1"):
            await cluster[A].members.propose(K, b"y", "y")
        with pytest.raises(StorageFull):
            await cluster[A].members.read_barrier(K)
        assert cluster[A].members.status(K).failure == "no space is left on h1"
        # The others replace it, after a time-out, and go on.
        await cluster[B].members.propose(K, b"z", "z", timeout_s=HANG_S)
        full = False
        await until(lambda: cluster[A].members.status(K).failure == "")
        index = await cluster[A].members.propose(K, b"y", "y", timeout_s=HANG_S)
        assert index in {entry.index for entry in cluster[A].committed[K]}
        await until(lambda: cluster[A].payloads() == cluster[B].payloads())
        assert sorted(cluster[A].payloads()) == [b"x", b"y", b"z"]
        full = True
        large = asyncio.create_task(cluster[A].members.propose(K, bytes(200_000), "large"))
        with pytest.raises(StorageFull):
            await large
        full = False
        await until(lambda: cluster[A].members.status(K).failure == "")

    with caplog.at_level(logging.CRITICAL):
        run(tmp_path, story)


def test_a_broken_disk_stops_one_member_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(log: WriteAheadLog, *what: object) -> None:
        if "/h2/" in str(log.path):
            raise StorageError("the disk of h2 is broken")
        save(log, *what)  # type: ignore[arg-type]

    save = WriteAheadLog.save

    async def story(cluster: Cluster) -> None:
        await cluster.open()
        await cluster[A].members.propose(K, b"x", "x")
        monkeypatch.setattr(WriteAheadLog, "save", breaks)
        await cluster[A].members.propose(K, b"y", "y")
        await until(lambda: cluster[B].members.status(K).failure)
        with pytest.raises(StorageError, match="disk of h2"):
            await cluster[B].members.propose(K, b"z", "z")
        await cluster[C].members.propose(K, b"z", "z")

    run(tmp_path, story)


def test_a_member_that_lost_its_log_is_not_believed(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        await cluster[A].members.propose(K, b"x", "x")
        await until(lambda: cluster[C].payloads() == [b"x"])
        await cluster[C].members.close(K, delete=True)
        await cluster[C].members.open(K, HOSTS, campaign=False)
        cluster[A].members.peer_lost(C)
        cluster[A].members.peer_back(C)
        await cluster[A].members.propose(K, b"y", "y")
        await until(lambda: cluster[C].members.status(K).failure or cluster[C].payloads())
        assert "its disk lost some" in cluster[C].members.status(K).failure

    run(tmp_path, story)


def test_what_is_said_before_a_member_opens_is_kept_for_it(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        for host in HOSTS:
            # No ticks: nothing is said twice.
            cluster[host].members._tick_s = 3600
        await cluster[A].members.open(K, HOSTS, campaign=True)
        await asyncio.sleep(TICK_S)
        await cluster[C].members.open(K, HOSTS, campaign=False)
        await until(lambda: cluster[C].members.status(K).leader == A)

    run(tmp_path, story)


def test_nobody_speaks_in_anothers_name(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        await until(lambda: cluster.leader() == A)
        forged = VoteRequest(B, A, 99, 99, 99, pre=False, transfer=True)
        cluster[A].members.receive(C, [Envelope(K, forged)])
        assert cluster[A].members.status(K).term == 1

    run(tmp_path, story)


def test_a_log_goes_on_whatever_its_reader_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()

        def fails(kernel: KernelId, entries: Sequence[Entry]) -> None:
            raise RuntimeError("a mistake of the reader")

        member = cluster[A].members._members[K]
        member._on_committed = fails
        await cluster[A].members.propose(K, b"x", "x")
        await cluster[A].members.propose(K, b"y", "y")

    run(tmp_path, story)
    assert "could not be applied" in caplog.text


def test_closing_tells_who_waits_and_deletes_what_it_should(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        members = cluster[A].members
        await members.open(K, HOSTS, campaign=True)
        waiting = asyncio.create_task(members.propose(K, b"x", "x"))
        await asyncio.sleep(TICK_S)
        assert (tmp_path / A / K).exists()
        await members.close(K, delete=True)
        with pytest.raises(Unavailable, match="was closed"):
            await waiting
        assert not (tmp_path / A / K).exists()
        assert members.kernels == ()
        await members.close(K, delete=True)
        with pytest.raises(NotFound, match="h1 has no member of kernel kernel-1"):
            members.status(K)
        members.receive(B, [Envelope(K, Heartbeat(B, A, 1, 0, 0))])

    run(tmp_path, story)


def test_impossible_members_are_named(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        members = cluster[A].members
        with pytest.raises(InvalidRequest, match="h1 is not among h2, h3"):
            await members.open(K, (B, C), campaign=False)
        for bad in ("../up", "", ".."):
            with pytest.raises(InvalidRequest, match="cannot be the id"):
                await members.open(KernelId(bad), HOSTS, campaign=False)
        await members.open(K, HOSTS, campaign=False)
        await members.open(K, HOSTS, campaign=True)
        with pytest.raises(InvalidRequest, match="fixed when it is created"):
            await members.open(K, (A, B), campaign=False)
        await members.close(K, delete=False)
        with pytest.raises(CorruptRecord, match="belongs to member h1 of group kernel-1"):
            await members.open(K, (A,), campaign=False)

    run(tmp_path, story)
