"""Nothing leaves a host that its disk does not have yet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from member_rig import HOSTS, A, B, Cluster, K, Wire, run, until

from notebookos_ext.cluster.consensus.messages import AppendAnswer, Envelope, HardState, VoteAnswer
from notebookos_ext.cluster.model import HostId
from notebookos_ext.storage.wal import WriteAheadLog


def test_votes_and_entries_are_saved_before_they_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs: dict[str, WriteAheadLog] = {}
    answers: list[AppendAnswer | VoteAnswer] = []
    too_early: list[AppendAnswer | VoteAnswer] = []
    open_log, carry = WriteAheadLog.open, Wire.carry

    def opened(folder: Path, identity: object) -> WriteAheadLog:
        log = open_log(folder, identity)  # type: ignore[arg-type]
        logs[log.identity.member] = log
        return log

    def carried(wire: Wire, sender: HostId, to: HostId, envelopes: Sequence[Envelope]) -> None:
        for envelope in envelopes:
            message = envelope.message
            if isinstance(message, AppendAnswer) and message.accepted:
                answers.append(message)
                if len(logs[sender].entries) < message.index:
                    too_early.append(message)
            if isinstance(message, VoteAnswer) and message.granted and not message.pre:
                answers.append(message)
                if logs[sender].hard_state != HardState(message.term, message.to):
                    too_early.append(message)
        carry(wire, sender, to, envelopes)

    monkeypatch.setattr(WriteAheadLog, "open", opened)
    monkeypatch.setattr(Wire, "carry", carried)

    async def story(cluster: Cluster) -> None:
        await cluster.open()
        for size in (10, 100_000):
            # The larger one is saved by a thread.
            await cluster[A].members.propose(K, bytes(size), f"{size}")
        await cluster[A].members.transfer_leadership(K, B)
        await cluster[A].members.propose(K, b"after", "after")
        await until(lambda: all(len(cluster[host].payloads()) == 3 for host in HOSTS))

    run(tmp_path, story)
    assert {type(answer) for answer in answers} == {AppendAnswer, VoteAnswer}
    assert too_early == []
