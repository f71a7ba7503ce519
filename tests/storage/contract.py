"""What every checkpoint store must do; `test_<backend>.py` runs it on a fresh store.

class TestDiskStore(StoreContract):
@pytest.fixture
def store(self, tmp_path): return DiskStore(tmp_path, clock=SystemClock())
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from notebookos_ext.cluster.digests import chunk_digest
from notebookos_ext.errors import CorruptRecord, InvalidRequest, NotFound
from notebookos_ext.storage.base import CheckpointStore, StoreUsage

DATA = b"some bytes of a large array"
DIGEST = chunk_digest(DATA)


class StoreContract:
    def test_what_is_put_is_there(self, store: CheckpointStore) -> None:
        assert not store.has(DIGEST)
        store.put(DIGEST, DATA)
        assert store.has(DIGEST)
        assert store.get(DIGEST) == DATA

    @settings(
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            # Each backend is a class of its own.
            HealthCheck.differing_executors,
        ],
        max_examples=20,
    )
    @given(data=st.binary(max_size=10_000))
    def test_any_bytes_come_back(self, store: CheckpointStore, data: bytes) -> None:
        store.put(chunk_digest(data), data)
        assert store.get(chunk_digest(data)) == data

    def test_putting_twice_keeps_one(self, store: CheckpointStore) -> None:
        store.put(DIGEST, DATA)
        store.put(DIGEST, DATA)
        assert store.usage() == StoreUsage(chunks=1, size_bytes=len(DATA))

    def test_putting_from_many_threads_keeps_one(self, store: CheckpointStore) -> None:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: store.put(DIGEST, DATA), range(32)))
        assert store.usage() == StoreUsage(chunks=1, size_bytes=len(DATA))
        assert store.get(DIGEST) == DATA

    def test_a_wrong_digest_is_refused(self, store: CheckpointStore) -> None:
        with pytest.raises(CorruptRecord, match="does not match its digest"):
            store.put(DIGEST, DATA + b"!")
        assert not store.has(DIGEST)

    def test_it_has_a_name_and_can_be_used(self, store: CheckpointStore) -> None:
        assert store.name
        store.check()

    def test_a_missing_chunk_is_not_found(self, store: CheckpointStore) -> None:
        with pytest.raises(NotFound, match=DIGEST[:12]):
            store.get(DIGEST)

    def test_a_deleted_chunk_is_gone(self, store: CheckpointStore) -> None:
        store.put(DIGEST, DATA)
        store.delete(DIGEST)
        store.delete(DIGEST)
        assert not store.has(DIGEST)
        assert store.usage() == StoreUsage(chunks=0, size_bytes=0)

    @pytest.mark.parametrize(
        "digest", ["", "../../etc/passwd", "A" * 64, DIGEST[:-1], DIGEST + "0"]
    )
    def test_what_is_no_digest_is_refused(self, store: CheckpointStore, digest: str) -> None:
        for call in (store.get, store.has, store.delete, lambda d: store.put(d, DATA)):
            with pytest.raises(InvalidRequest, match="not a chunk digest"):
                call(digest)

    def test_a_sweep_deletes_what_is_neither_named_nor_new(self, store: CheckpointStore) -> None:
        other = chunk_digest(b"other")
        store.put(DIGEST, DATA)
        store.put(other, b"other")
        assert store.sweep(frozenset(), 60.0) == StoreUsage(chunks=0, size_bytes=0)
        would = store.sweep(frozenset({DIGEST}), -60.0, dry_run=True)
        assert would == StoreUsage(chunks=1, size_bytes=len(b"other"))
        assert store.has(other)
        swept = store.sweep(frozenset({DIGEST}), -60.0)
        assert swept == StoreUsage(chunks=1, size_bytes=len(b"other"))
        assert store.has(DIGEST)
        assert not store.has(other)
