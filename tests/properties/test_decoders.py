"""Whatever comes from a socket, a file or the store: read, or refused by an error of our own."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notebookos_ext.agent import peer_channel
from notebookos_ext.agent.config import load_config
from notebookos_ext.agent.leftovers import SessionBook
from notebookos_ext.agent.peer_outbox import Inbox
from notebookos_ext.cluster import entries, snapshots
from notebookos_ext.cluster.channels import SHELL, Signer, parse
from notebookos_ext.cluster.consensus.messages import Entry, HardState
from notebookos_ext.cluster.entries import Delta, EpochEntry, LeadEntry, encode_entry
from notebookos_ext.cluster.frames import FrameDecoder, encode_frame
from notebookos_ext.cluster.messages.control import FromAgent, ReadMembers, ToAgent
from notebookos_ext.cluster.messages.replica import Applied, Apply, FromReplica, ToReplica
from notebookos_ext.cluster.messages.startup import ForkReplica
from notebookos_ext.cluster.model import CellId, KernelId, ReplicaId
from notebookos_ext.cluster.router import KernelRouter
from notebookos_ext.errors import NotebookOSError
from notebookos_ext.live.notebook_file import read_settings
from notebookos_ext.live.state_folder import open_shared
from notebookos_ext.storage import journal, kept_kernels, usage, wal
from notebookos_ext.storage.records import file_head, framed

KERNEL = KernelId("8f0fdb47-7525-4332-a01d-fdd45eafd82e")
KEY = b"k" * 32
REPLICA = ReplicaId(f"{KERNEL}:1")
IDENTITY = wal.Identity("group", "host-1", ("host-1",))
MOST_BYTES = 16 << 20
"""What a decoder may take for a kilobyte of nonsense."""
EXAMPLES = 60

deep_msgpack = st.integers(1, 20_000).map(lambda depth: b"\x91" * depth + b"\x90")
deep_json = st.integers(1, 20_000).map(lambda depth: b'{"a":' + b"[" * depth + b"]" * depth + b"}")


@dataclasses.dataclass(frozen=True)
class Decoder:
    """`read` is given bytes and an empty folder; `samples` are right, and are damaged here."""

    read: Callable[[bytes, Path], object]
    samples: tuple[bytes, ...]


def framed_by(message_type: type[Any]) -> Callable[[bytes, Path], object]:
    def read(data: bytes, _folder: Path) -> object:
        return FrameDecoder(message_type).feed(data)

    return read


def in_frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def signed_entry(data: bytes, _folder: Path) -> object:
    """Signed, so that what is behind the signature is reached."""
    return entries.decode_entry(KERNEL, entries._mac(KERNEL, data, KEY) + data, KEY)


def unsigned_entry(data: bytes, _folder: Path) -> object:
    return entries.decode_entry(KERNEL, data, KEY)


def signed_snapshot(data: bytes, _folder: Path) -> object:
    return snapshots.decode_snapshot(KERNEL, snapshots._mac(KERNEL, data, KEY) + data, KEY)


def log(data: bytes, folder: Path) -> object:
    (folder / wal.FILE_NAME).write_bytes(data)
    found = wal.WriteAheadLog.open(folder, IDENTITY)
    found.close()
    return found


def log_of_frames(data: bytes, folder: Path) -> object:
    """With right checksums, as another version could have written it."""
    whole = file_head() + framed(1, wal._encoder.encode(wal._Beginning(IDENTITY)))
    log(whole + framed(2, data), folder)
    return log(file_head() + framed(1, data), folder)


def journal_of(data: bytes, folder: Path) -> object:
    (folder / "journal").write_bytes(data)
    return list(journal.read_journal(folder / "journal"))


def usage_of(data: bytes, folder: Path) -> object:
    (folder / "usage.db").write_bytes(data)
    ledger = usage.UsageLedger(folder / "usage.db")
    ledger.close()
    return ledger


def kept(data: bytes, folder: Path) -> object:
    (folder / "k.json").write_bytes(data)
    found, problems = kept_kernels.KeptKernels(folder).all()
    assert len(found) + len(problems) == 1
    return found


def config(data: bytes, folder: Path) -> object:
    (folder / "agent.json").write_bytes(data)
    return load_config(folder / "agent.json")


def notebook(data: bytes, folder: Path) -> object:
    (folder / "x.ipynb").write_bytes(data)
    return read_settings(folder / "x.ipynb")


def sessions(data: bytes, folder: Path) -> object:
    (folder / "sessions").write_bytes(data)
    return SessionBook(folder / "sessions")._read()


def state(data: bytes, folder: Path) -> object:
    for name in ("hash_seed", "token"):
        (folder / name).write_bytes(data)
        try:
            open_shared(folder).close(delete=False)
        except NotebookOSError:
            (folder / name).unlink()
    return None


def channel(*, dials: bool) -> peer_channel.PeerChannel:
    return peer_channel.PeerChannel(
        host="host-1" if dials else "host-2",
        incarnation="i",
        token=KEY,
        secret=b"s" * peer_channel.SECRET_BYTES,
        expected="host-2" if dials else None,
    )


def stranger(data: bytes, _folder: Path) -> object:
    return channel(dials=False).receive(data)


def answerer(data: bytes, _folder: Path) -> object:
    dialler = channel(dials=True)
    dialler.opening()
    return dialler.receive(data)


def inbox(data: bytes, _folder: Path) -> object:
    return Inbox().open_record(data)


def message_parts(data: bytes) -> list[bytes]:
    """Four frames out of anything: split at line ends, filled up with the whole."""
    parts = data.split(b"\n")
    return (parts + [data] * 4)[:4]


def from_client(data: bytes, _folder: Path) -> object:
    """A message whose signature is right: any client of the kernel can make it."""
    parts = message_parts(data)
    frames = [b"client", b"<IDS|MSG>", Signer(KEY).sign(parts), *parts]
    router = KernelRouter(KERNEL)
    router.replica_ready(REPLICA)
    return router.from_client(SHELL, parse(frames))


def from_replica(data: bytes, _folder: Path) -> object:
    """What user code makes its replica say while it runs a cell."""
    header = json.dumps({"msg_id": "c", "msg_type": "execute_request"}).encode()
    cell = [b"client", b"<IDS|MSG>", b"s", header, b"{}", b"{}", b'{"code": "1"}']
    router = KernelRouter(KERNEL)
    router.replica_ready(REPLICA)
    router.from_client(SHELL, parse(cell))
    router.start_cell(CellId("c"), 1, REPLICA)
    said = parse([b"<IDS|MSG>", b"s", *message_parts(data)])
    return router.from_iopub(REPLICA, said), router.from_replica(REPLICA, SHELL, b"client", said)


def request(kind: str, content: bytes = b"{}") -> bytes:
    header = json.dumps({"msg_id": "m", "msg_type": kind}).encode()
    return b"\n".join([header, b'{"msg_id": "c"}', b"{}", content])


def usage_sample() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        usage.UsageLedger(Path(folder) / "usage.db").close()
        return (Path(folder) / "usage.db").read_bytes()


def log_sample() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        made = wal.WriteAheadLog.open(Path(folder), IDENTITY)
        entry = Entry(term=1, index=1, payload=b"entry", proposal_id="p")
        made.save(HardState(1, "host-1"), [entry])
        made.close()
        return (Path(folder) / wal.FILE_NAME).read_bytes()


def body(entry: entries.LogEntry) -> bytes:
    return encode_entry(KERNEL, entry, KEY)[entries.MAC_BYTES :]


LEAD = LeadEntry(cell=CellId("c"), attempt=1, epoch=0, replica=REPLICA)
DECODERS = {
    "control, agent": Decoder(
        framed_by(ToAgent), (encode_frame(ToAgent(sequence=1, body=ReadMembers())),)
    ),
    "control, controller": Decoder(framed_by(FromAgent), (in_frame(b"\x92\x01\x80"),)),
    "replica link, agent": Decoder(
        framed_by(FromReplica), (encode_frame(FromReplica(sequence=1, body=Applied(1))),)
    ),
    "replica link, replica": Decoder(
        framed_by(ToReplica),
        (encode_frame(ToReplica(1, Apply(1, Delta(), 1, REPLICA, own=False))),),
    ),
    "template": Decoder(framed_by(ForkReplica), (in_frame(b"\x80"),)),
    "signed entries": Decoder(signed_entry, (body(LEAD), body(EpochEntry(epoch=2)))),
    "entries": Decoder(unsigned_entry, (encode_entry(KERNEL, LEAD, KEY),)),
    "signed snapshots": Decoder(signed_snapshot, (b"\x92\x01\x90",)),
    "log": Decoder(log, (log_sample(),)),
    "log with right checksums": Decoder(log_of_frames, (b"\x92\xc0\x90",)),
    "journal": Decoder(journal_of, (in_frame(b"\0\0\0\0"),)),
    "usage": Decoder(usage_of, (usage_sample(),)),
    "kept kernels": Decoder(kept, (b'{"spec": {"kernel": "k"}, "format": 1}',)),
    "agent configuration": Decoder(config, (b'{"host": "host-1", "gpus": "auto"}',)),
    "notebook": Decoder(notebook, (b'{"metadata": {"notebookos": {"replica_count": 3}}}',)),
    "sessions": Decoder(sessions, (b'{"leader": 1, "started_ticks": 2, "boot": "b"}\n',)),
    "token and seed": Decoder(state, (b"ab" * 32, b"17")),
    "peer that dials": Decoder(stranger, (channel(dials=True).opening(),)),
    "peer that answers": Decoder(answerer, (b"NBOS\x02\x00\x20" + b"\0" * 32,)),
    "records of a peer": Decoder(inbox, (b"\0\0\0\x01a",)),
    "client": Decoder(
        from_client,
        (
            request("execute_request", b'{"code": "1", "silent": false}'),
            request("comm_open"),
            request("shutdown_request", b'{"restart": true}'),
            request("debug_request", b'{"command": "initialize"}'),
        ),
    ),
    "replica": Decoder(
        from_replica,
        (
            request("status", b'{"execution_state": "idle"}'),
            request("execute_input", b'{"execution_count": 1}'),
            request("execute_reply", b'{"status": "ok"}'),
        ),
    ),
}


def damaged(samples: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
    """A right sample with a piece of it cut, doubled, changed, or filled with something else."""

    def change(drawn: tuple[bytes, int, int, bytes]) -> bytes:
        sample, start, length, piece = drawn
        at = start % (len(sample) + 1)
        return sample[:at] + piece + sample[at + length :]

    pieces = st.one_of(st.binary(max_size=8), deep_msgpack, deep_json)
    parts = st.tuples(st.sampled_from(samples), st.integers(0, 1 << 16), st.integers(0, 64), pieces)
    return parts.map(change)


def read(decoder: Decoder, data: bytes) -> None:
    """Only an error of our own may come out of it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            decoder.read(data, Path(folder))
        except NotebookOSError:
            return


@pytest.mark.parametrize("name", DECODERS)
def test_nonsense_is_refused_by_an_error_of_our_own(name: str) -> None:
    decoder = DECODERS[name]

    @settings(max_examples=EXAMPLES, database=None)
    @given(st.one_of(st.binary(max_size=1024), deep_msgpack, deep_json, damaged(decoder.samples)))
    def any_bytes(data: bytes) -> None:
        read(decoder, data)
        read(decoder, in_frame(data))

    any_bytes()


@pytest.mark.parametrize("name", DECODERS)
def test_an_announced_length_is_not_taken_at_its_word(name: str) -> None:
    decoder = DECODERS[name]
    lengths = [b"\xff" * 4, b"\x7f" + b"\xff" * 3, b"\xdd" + b"\xff" * 4, b"\xc6" + b"\xff" * 4]
    tracemalloc.start()
    try:
        for length in lengths:
            for data in (length, length + b"x" * 512, in_frame(length), b"\x92\x01" + length):
                read(decoder, data)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def test_messages_that_are_nested_too_deeply_end_like_others() -> None:
    """A cell with such metadata is answered; it must not hang."""
    deep = b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"
    header = json.dumps({"msg_id": "c", "msg_type": "execute_request"}).encode()
    router = KernelRouter(KERNEL)
    router.replica_ready(REPLICA)
    said = router.from_client(
        SHELL, parse([b"client", b"<IDS|MSG>", b"s", header, b"{}", deep, b'{"code": "1"}'])
    )
    assert any("ProtocolError" in repr(output) for output in said)
