"""Logs of members that forget, members that come, go, and lose what they had."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from member_rig import HANG_S, HOSTS, A, B, C, Cluster, K, run, until

from notebookos_ext.agent.compaction import RETAINED_ENTRIES, CompactionLimits
from notebookos_ext.agent.member import INLINE_SAVE_BYTES_MAX
from notebookos_ext.cluster.consensus.membership import Change, ChangeKind, Membership
from notebookos_ext.cluster.consensus.messages import (
    Append,
    Entry,
    Envelope,
    HardState,
    ReadAnswer,
    SnapshotChunk,
)
from notebookos_ext.cluster.consensus.snapshot import OutgoingSnapshot, Snapshot, SnapshotMeta
from notebookos_ext.errors import (
    CorruptRecord,
    InvalidRequest,
    LogLost,
    NoMajority,
    Refused,
    StorageError,
)
from notebookos_ext.storage.wal import DAMAGED_NAME, FILE_NAME, WriteAheadLog

SMALL = CompactionLimits(entries=20, size_bytes=1 << 30)


async def propose(cluster: Cluster, first: int, last: int, by=A) -> None:
    for n in range(first, last + 1):
        await cluster[by].members.propose(K, b"%d" % n, f"id-{n}", HANG_S)


def payloads(last: int) -> list[bytes]:
    return [b"%d" % n for n in range(1, last + 1)]


def test_logs_forget_and_nothing_is_lost_by_it(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        await propose(cluster, 1, 300)
        await until(lambda: all(cluster[h].state == payloads(300) for h in HOSTS))
        await until(lambda: all(cluster[h].members.status(K).snapshot_index > 250 for h in HOSTS))
        for host in HOSTS:
            status = cluster[host].members.status(K)
            assert status.log_bytes < 5_000
            first = cluster[host].members.committed_from(K, 0)[0].index
            assert first == status.snapshot_index + 1
            assert cluster[host].compacted_at == sorted(set(cluster[host].compacted_at))
        await cluster.restart()
        assert await cluster[B].members.propose(K, b"299", "id-299", HANG_S)
        await propose(cluster, 301, 305)
        await until(lambda: all(cluster[h].state == payloads(305) for h in HOSTS))
        assert all(cluster[h].restored for h in HOSTS)

    run(tmp_path, story, SMALL)


def test_the_size_of_a_log_counts_too(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        for n in range(12):
            await cluster[A].members.propose(K, bytes(10_000), f"{n}", HANG_S)
        await until(lambda: cluster[A].compacted_at)
        # What the snapshot itself takes is not counted again and again.
        assert len(cluster[A].compacted_at) <= 3

    run(tmp_path, story, CompactionLimits(entries=10_000, size_bytes=50_000))


def test_a_host_that_was_away_gets_the_snapshot_and_what_follows(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        await propose(cluster, 1, 5)
        await until(lambda: cluster[C].state == payloads(5))
        cluster.wire.separate(C)
        await propose(cluster, 6, 2 * RETAINED_ENTRIES + 100)
        await until(lambda: cluster[A].members._members[K].node.log.base_index > 50)
        cluster.wire.rejoin(C)
        last = 2 * RETAINED_ENTRIES + 110
        await propose(cluster, 2 * RETAINED_ENTRIES + 101, last, by=B)
        await until(lambda: cluster[C].state == payloads(last))
        assert cluster[C].restored
        assert any(isinstance(e.message, SnapshotChunk) for _, _, e in cluster.wire.carried)
        await cluster.restart()
        await propose(cluster, last + 1, last + 1, by=C)
        await until(lambda: all(cluster[h].state == payloads(last + 1) for h in HOSTS))

    run(tmp_path, story, SMALL)


def test_a_host_that_was_away_shortly_gets_entries(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        cluster.wire.separate(C)
        await propose(cluster, 1, 60)
        await until(lambda: cluster[A].compacted_at)
        cluster.wire.rejoin(C)
        await until(lambda: cluster[C].state == payloads(60))
        assert not cluster[C].restored

    run(tmp_path, story, SMALL)


def test_a_log_without_room_for_a_snapshot_goes_on_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = True
    keep = WriteAheadLog.keep
    compact = WriteAheadLog.compact

    def keeps(log: WriteAheadLog, *what: object) -> object:
        if full:
            raise StorageError("no space is left")
        return keep(log, *what)  # type: ignore[arg-type]

    def compacts(log: WriteAheadLog, *what: object) -> None:
        if full:
            raise StorageError("no space is left")
        compact(log, *what)  # type: ignore[arg-type]

    monkeypatch.setattr(WriteAheadLog, "keep", keeps)

    async def story(cluster: Cluster) -> None:
        nonlocal full
        await cluster.open()
        await propose(cluster, 1, 30)
        await until(lambda: "could not be compacted" in caplog.text)
        monkeypatch.setattr(WriteAheadLog, "keep", keep)
        monkeypatch.setattr(WriteAheadLog, "compact", compacts)
        caplog.clear()
        await propose(cluster, 31, 60)
        await until(lambda: "could not be compacted" in caplog.text)
        assert not cluster[A].compacted_at
        full = False
        await propose(cluster, 61, 90)
        await until(lambda: all(cluster[h].compacted_at for h in HOSTS))
        await until(lambda: all(cluster[h].state == payloads(90) for h in HOSTS))

    with caplog.at_level(logging.WARNING):
        run(tmp_path, story, SMALL)


def test_a_proposal_is_applied_once_also_when_its_first_copy_is_forgotten(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        await propose(cluster, 1, RETAINED_ENTRIES + 60)
        await until(lambda: cluster[A].members._members[K].node.log.base_index > 30)
        await cluster[B].members.propose(K, b"1", "id-1", HANG_S)
        await propose(cluster, RETAINED_ENTRIES + 61, RETAINED_ENTRIES + 61)
        await until(lambda: cluster[C].state == payloads(RETAINED_ENTRIES + 61))

    run(tmp_path, story, SMALL)


def test_a_proposal_so_old_that_nobody_can_tell_is_refused(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        await propose(cluster, 1, 3)
        node = cluster[A].members._members[K].node
        node.log.horizon = node.log.commit_index
        cluster[A].members._members[K].asked._first_proposed["old"] = 0
        with pytest.raises(Refused, match="proposed so long ago that nobody can tell"):
            await cluster[A].members.propose(K, b"old", "old", HANG_S)

    run(tmp_path, story, SMALL)


def test_who_has_been_away_for_long_proposes_as_new_what_it_was_asked_before_anybody_led(
    tmp_path: Path,
) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        await propose(cluster, 1, 3)
        await cluster[C].members.shut_down()
        cluster.wire.separate(C)
        del cluster.wire.hosts[C]
        await propose(cluster, 4, RETAINED_ENTRIES + 60)
        await until(lambda: cluster[A].members._members[K].node.log.base_index > 30)
        log = cluster[A].members._members[K].node.log
        # As after many more proposals than it remembers.
        log.horizon = log.base_index
        await cluster.start(C).members.open(K, HOSTS, campaign=False, is_new=False)
        asked = asyncio.create_task(cluster[C].members.propose(K, b"new", "new", HANG_S))
        await asyncio.sleep(0)
        cluster.wire.rejoin(C)
        assert await asked > log.horizon
        assert cluster[C].state == [*payloads(RETAINED_ENTRIES + 60), b"new"]

    run(tmp_path, story, SMALL)


def test_who_waits_is_told_also_when_the_entry_comes_back_in_a_snapshot(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        await propose(cluster, 1, 3)
        await until(lambda: cluster[C].state == payloads(3))
        cluster.wire.separate(C)
        asked = asyncio.create_task(cluster[C].members.propose(K, b"4", "id-4", HANG_S))
        await propose(cluster, 4, 4)
        await propose(cluster, 5, RETAINED_ENTRIES + 60)
        await until(lambda: cluster[A].members._members[K].node.log.base_index > 30)
        cluster.wire.rejoin(C)
        assert await asked == cluster[A].members._members[K].node.log.index_of("id-4")
        assert cluster[C].restored

    run(tmp_path, story, SMALL)


@pytest.mark.parametrize("came", ["entries", "snapshot"])
def test_a_member_is_left_behind_with_what_came_with_a_save_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, came: str
) -> None:
    """What was committed counts in the group that goes on, however slow the disk is."""
    go = threading.Event()
    save = WriteAheadLog.save

    def slow(
        self: WriteAheadLog,
        hard_state: HardState | None,
        entries: Sequence[Entry],
        snapshot: Snapshot | None = None,
    ) -> None:
        if snapshot is not None or any(
            len(entry.payload) > INLINE_SAVE_BYTES_MAX for entry in entries
        ):
            go.wait(HANG_S)
        save(self, hard_state, entries, snapshot)

    async def story(cluster: Cluster) -> None:
        await cluster.open()
        await propose(cluster, 1, 1)
        await until(lambda: cluster[C].state == payloads(1))
        cluster.wire.separate(C, noticed=False)
        members, term = cluster[C].members, cluster[A].members.status(K).term
        last = members.status(K).last_index
        known = Entry(term, last + 1, "known", b"known")
        large = Entry(term, last + 2, "large", bytes(INLINE_SAVE_BYTES_MAX + 1))
        monkeypatch.setattr(WriteAheadLog, "save", slow)
        if came == "entries":
            first = Append(A, C, term, last, term, (known,), last)
            second = Append(A, C, term, last + 1, term, (large,), last + 1)
            members.receive(A, [Envelope(K, first)])
            members.receive(A, [Envelope(K, second)])
        else:
            meta = SnapshotMeta(last + 1, term, Membership(HOSTS))
            state = msgspec.msgpack.encode([b"1", b"known"])
            chunk = OutgoingSnapshot(Snapshot(meta, state)).chunk(
                sender=A, to=C, term=term, offset=0
            )
            members.receive(A, [Envelope(K, chunk)])
        sealing = asyncio.create_task(members.seal(K))
        await asyncio.sleep(0)
        assert not sealing.done()
        go.set()
        sealed = await sealing
        assert cluster[C].state == [b"1", b"known"]
        assert sealed.tail == ((large,) if came == "entries" else ())

    run(tmp_path, story, CompactionLimits())


def test_a_read_waits_until_the_application_has_the_snapshot_that_answers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when an earlier save, with which the read's index came, ends after it arrived."""
    entries_may, snapshot_may = threading.Event(), threading.Event()
    save = WriteAheadLog.save

    def slow(
        self: WriteAheadLog,
        hard_state: HardState | None,
        entries: Sequence[Entry],
        snapshot: Snapshot | None = None,
    ) -> None:
        (entries_may if snapshot is None else snapshot_may).wait(HANG_S)
        save(self, hard_state, entries, snapshot)

    async def story(cluster: Cluster) -> None:
        await cluster.open()
        await propose(cluster, 1, 1)
        await until(lambda: cluster[C].state == payloads(1))
        cluster.wire.separate(C, noticed=False)
        members, term = cluster[C].members, cluster[A].members.status(K).term
        member, last = members._members[K], members.status(K).last_index
        asked = asyncio.create_task(members.read_barrier(K, HANG_S))
        await until(lambda: member.asked._reads)
        monkeypatch.setattr(WriteAheadLog, "save", slow)
        large = Entry(term, last + 1, "large", bytes(INLINE_SAVE_BYTES_MAX + 1))
        answer = ReadAnswer(A, C, next(iter(member.asked._reads)), last + 1)
        append = Append(A, C, term, last, term, (large,), last)
        members.receive(A, [Envelope(K, append), Envelope(K, answer)])
        meta = SnapshotMeta(last + 3, term + 1, Membership(HOSTS))
        state = msgspec.msgpack.encode([b"1", b"known"])
        chunk = OutgoingSnapshot(Snapshot(meta, state)).chunk(
            sender=B, to=C, term=term + 1, offset=0
        )
        members.receive(B, [Envelope(K, chunk)])
        assert member.node.log.delivered_index == last + 3
        entries_may.set()
        await until(lambda: member._unsaved is not None and member._unsaved.snapshot)
        assert not asked.done()
        snapshot_may.set()
        await asked
        assert cluster[C].state == [b"1", b"known"]

    run(tmp_path, story, CompactionLimits())


# ---- membership --------------------------------------------------------------------------------


def change(kind: ChangeKind, member: str) -> Change:
    return Change(kind, member)


async def replace(cluster: Cluster, host, old: str) -> str:
    """A new member on `host` in the place of `old`."""
    name = await cluster[host].members.join(K)
    members = cluster[A].members
    await members.change_membership(K, change(ChangeKind.REMOVE, old), HANG_S)
    await members.change_membership(K, change(ChangeKind.ADD_LEARNER, name), HANG_S)
    after = await members.change_membership(K, change(ChangeKind.PROMOTE, name), HANG_S)
    assert after.voters == (*(h for h in HOSTS if h != old), name)
    return name


@pytest.mark.parametrize("damage", ["bit", "deleted", "emptied"])
def test_a_host_that_lost_its_log_comes_back_as_somebody_else(tmp_path: Path, damage: str) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        await propose(cluster, 1, 50)
        await until(lambda: cluster[C].state == payloads(50))
        await cluster[C].members.shut_down()
        cluster.wire.separate(C)
        path = tmp_path / C / K / FILE_NAME
        content = bytearray(path.read_bytes())
        if damage == "bit":
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        elif damage == "emptied":
            path.write_bytes(b"")
        else:
            path.unlink()
        cluster.start(C)
        cluster.wire.rejoin(C)
        with pytest.raises(LogLost):
            await cluster[C].members.open(K, HOSTS, campaign=False, is_new=False)
        name = await replace(cluster, C, old=C)
        assert name.startswith("h3#")
        assert (path.parent / DAMAGED_NAME).exists() == (damage != "deleted")
        await propose(cluster, 51, 60, by=C)
        await until(lambda: cluster[C].state == payloads(60))
        # It counts: with it alone the others lack one.
        cluster.wire.separate(B)
        await propose(cluster, 61, 62)
        cluster.wire.rejoin(B)
        # And after a restart it is who it was.
        await cluster.shut_down()
        for host in HOSTS:
            cluster.start(host)
            await cluster[host].members.open(K, HOSTS, campaign=False, is_new=False)
        await propose(cluster, 63, 63, by=C)
        assert cluster[C].members.status(K).member == name
        assert await cluster[C].members.join(K) == name
        await until(lambda: cluster[C].state == payloads(63))

    run(tmp_path, story, SMALL)


def test_one_replica_becomes_three_and_one_again(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster[A].members.open(K, (A,), campaign=True)
        await propose(cluster, 1, 50)
        names = [await cluster[host].members.join(K) for host in (B, C)]
        for name in names:
            for kind in (ChangeKind.ADD_LEARNER, ChangeKind.PROMOTE):
                await cluster[A].members.change_membership(K, change(kind, name), HANG_S)
        await propose(cluster, 51, 55, by=B)
        await until(lambda: all(cluster[h].state == payloads(55) for h in HOSTS))
        assert cluster[C].members.status(K).membership == Membership((A, *names))
        # The first one goes, and is asked to do so itself.
        gone = change(ChangeKind.REMOVE, A)
        await cluster[B].members.change_membership(K, gone, HANG_S)
        await cluster[A].members.close(K, delete=True)
        await propose(cluster, 56, 60, by=C)
        await cluster[C].members.change_membership(K, change(ChangeKind.REMOVE, names[0]), HANG_S)
        await propose(cluster, 61, 62, by=C)
        assert cluster[C].members.status(K).membership == Membership((names[1],))
        assert cluster[C].state == payloads(62)
        with pytest.raises(InvalidRequest, match="the only voter"):
            await cluster[C].members.change_membership(
                K, change(ChangeKind.REMOVE, names[1]), HANG_S
            )

    run(tmp_path, story, SMALL)


def test_a_stranger_cannot_be_promoted_and_a_minority_changes_nothing(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.open()
        await propose(cluster, 1, 1)
        with pytest.raises(InvalidRequest, match="add it as a learner first"):
            await cluster[A].members.change_membership(
                K, change(ChangeKind.PROMOTE, "h9#1"), HANG_S
            )
        same = await cluster[B].members.change_membership(
            K, change(ChangeKind.REMOVE, "h9#1"), HANG_S
        )
        assert same == Membership(HOSTS)
        cluster.wire.separate(A)
        with pytest.raises(NoMajority):
            await cluster[A].members.change_membership(K, change(ChangeKind.REMOVE, B), 0.2)

    run(tmp_path, story, SMALL)


def test_nothing_of_another_group_counts(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        for host in (A, B):
            await cluster[host].members.open(K, HOSTS, campaign=host == A, group="old")
        await cluster[A].members.propose(K, b"old", "old", HANG_S)
        # Host C goes on unprotected in a new group, which the old members cannot reach.
        await cluster[C].members.open(K, (C,), campaign=True, group="new")
        await cluster[C].members.propose(K, b"new", "new", HANG_S)
        await asyncio.sleep(0.2)
        assert cluster[C].state == [b"new"]
        assert cluster[A].state == [b"old"]
        assert cluster[C].members.status(K).membership == Membership((C,))

    run(tmp_path, story, SMALL)


def test_an_unreadable_snapshot_stops_the_leader_that_should_send_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = WriteAheadLog.read_snapshot

    def reads(log: WriteAheadLog) -> object:
        if f"/{A}/" in str(log.path):
            raise CorruptRecord("the snapshot is damaged")
        return read(log)

    async def story(cluster: Cluster) -> None:
        await cluster.open()
        monkeypatch.setattr(WriteAheadLog, "read_snapshot", reads)
        cluster.wire.separate(C)
        proposing = asyncio.create_task(propose(cluster, 1, 2 * RETAINED_ENTRIES, by=B))
        await until(lambda: "is damaged" in cluster[A].members.status(K).failure)
        cluster.wire.rejoin(C)
        await proposing
        await until(lambda: cluster[C].state == payloads(2 * RETAINED_ENTRIES))

    run(tmp_path, story, SMALL)
