"""The S3 store on a real S3 service: the contract, and what only a service can do to it."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from s3_service import BUCKET, SECRET, S3Service, credentials
from storage.contract import DATA, DIGEST, StoreContract

from notebookos_ext.cluster.digests import chunk_digest
from notebookos_ext.errors import (
    CorruptRecord,
    InvalidSettings,
    NotFound,
    StorageError,
    StorageFull,
)
from notebookos_ext.storage import s3
from notebookos_ext.storage.addresses import S3Address
from notebookos_ext.storage.base import CheckpointStore, StoreUsage
from notebookos_ext.storage.s3 import S3Store

_numbers = itertools.count()


@pytest.fixture
def prefix() -> str:
    return f"tests/{next(_numbers)}"


@pytest.fixture
def store(service: S3Service, aws: object, prefix: str) -> S3Store:
    return S3Store(service.parsed(prefix), namespace="cluster")


def key(prefix: str, digest: str = DIGEST) -> str:
    return f"{prefix}/cluster/chunks/{digest[:2]}/{digest}"


class TestS3Store(StoreContract):
    @pytest.fixture
    def store(self, service: S3Service, aws: object, prefix: str) -> CheckpointStore:
        return S3Store(service.parsed(prefix), namespace="cluster")


def test_clusters_that_share_a_bucket_do_not_sweep_each_other(
    service: S3Service, aws: object, prefix: str
) -> None:
    one, other = (S3Store(service.parsed(prefix), namespace=name) for name in ("one", "other"))
    one.put(DIGEST, DATA)
    assert not other.has(DIGEST)
    assert other.sweep((), -60.0) == StoreUsage(0, 0)
    assert one.get(DIGEST) == DATA


def test_large_chunks_go_in_parts(
    service: S3Service, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "MULTIPART_BYTES", 12 << 20)
    monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)
    data = bytes(range(256)) * (13 << 12)
    digest = chunk_digest(data)
    store.put(digest, data)
    store.put(digest, data)
    assert store.get(digest) == data
    assert store.usage() == StoreUsage(1, len(data))
    uploads = service.client().list_multipart_uploads(Bucket=BUCKET)
    assert not uploads.get("Uploads")


def test_of_parts_that_fail_nothing_is_left(
    service: S3Service, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "MULTIPART_BYTES", 12 << 20)
    monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)
    monkeypatch.setattr(store, "_client", Breaking(store._client, "upload_part"))
    data = bytes(13 << 20)
    with pytest.raises(StorageError, match="Broken"):
        store.put(chunk_digest(data), data)
    assert not service.client().list_multipart_uploads(Bucket=BUCKET).get("Uploads")
    assert store.usage() == StoreUsage(0, 0)


def test_a_list_of_several_pages_is_swept_whole(
    service: S3Service, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_client", Paged(store._client))
    for number in range(7):
        data = str(number).encode()
        store.put(chunk_digest(data), data)
    assert store.usage().chunks == 7
    kept = frozenset({chunk_digest(b"3")})
    assert store.sweep(kept, -60.0) == StoreUsage(6, 6)
    assert store.get(chunk_digest(b"3")) == b"3"


def test_what_was_looked_for_after_the_listing_is_spared(store: S3Store) -> None:
    store.put(DIGEST, DATA)
    ages = iter([3600.0, 0.0])
    real = s3._age_s
    s3._age_s = lambda *_: next(ages)
    try:
        assert store.sweep((), 60.0) == StoreUsage(0, 0)
    finally:
        s3._age_s = real
    assert store.has(DIGEST)


def test_a_look_makes_a_chunk_new(service: S3Service, store: S3Store, prefix: str) -> None:
    store.put(DIGEST, DATA)
    before = service.client().head_object(Bucket=BUCKET, Key=key(prefix))["LastModified"]

    def changed() -> bool:
        assert store.has(DIGEST)
        found = service.client().head_object(Bucket=BUCKET, Key=key(prefix))["LastModified"]
        return bool(found > before)

    # The service counts whole seconds.
    while not changed():
        pass
    assert store.get(DIGEST) == DATA


@pytest.mark.parametrize("garbage", [DATA[:-1] + b"X", DATA[:5], b"", DATA + b"more"])
def test_garbage_is_refused_set_aside_and_can_be_put_again(
    service: S3Service, store: S3Store, prefix: str, garbage: bytes
) -> None:
    service.client().put_object(Bucket=BUCKET, Key=key(prefix), Body=garbage)
    with pytest.raises(CorruptRecord, match=r"does not match its digest.*corrupt/"):
        store.get(DIGEST)
    with pytest.raises(NotFound):
        store.get(DIGEST)
    aside = service.client().get_object(Bucket=BUCKET, Key=f"{prefix}/cluster/corrupt/{DIGEST}")
    assert aside["Body"].read() == garbage
    store.put(DIGEST, DATA)
    assert store.get(DIGEST) == DATA


def test_a_truncated_chunk_is_replaced_by_the_next_put(
    service: S3Service, store: S3Store, prefix: str
) -> None:
    service.client().put_object(Bucket=BUCKET, Key=key(prefix), Body=DATA[:7])
    store.put(DIGEST, DATA)
    assert store.get(DIGEST) == DATA


def test_a_write_that_arrives_damaged_is_refused_by_the_service(
    service: S3Service, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Changing(store._client, "put_object", ChecksumCRC32="AAAAAA==")
    monkeypatch.setattr(store, "_client", wrong)
    with pytest.raises(StorageError, match=r"arrived there damaged \(BadDigest\)"):
        store.put(DIGEST, DATA)
    monkeypatch.undo()


def test_an_object_that_no_chunk_can_be_is_not_read(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(DIGEST, DATA)
    monkeypatch.setattr(s3, "OBJECT_BYTES_MAX", 3)
    with pytest.raises(CorruptRecord, match="which no chunk has; it was not read"):
        store.get(DIGEST)


def everything(store: S3Store) -> Iterator[Any]:
    """Every call that reaches the service."""
    yield store.check
    yield lambda: store.put(DIGEST, DATA)
    yield lambda: store.get(DIGEST)
    yield lambda: store.has(DIGEST)
    yield lambda: store.delete(DIGEST)
    yield lambda: store.sweep((), 0.0)
    yield store.usage


def test_wrong_credentials_are_said_and_never_shown(
    service: S3Service, aws: pytest.MonkeyPatch, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    aws.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret")
    store = S3Store(service.parsed(prefix))
    for call in everything(store):
        with pytest.raises(StorageError, match="refuses our credentials") as caught:
            call()
        told = "".join(traceback.format_exception(caught.value)) + repr(store) + caplog.text
        for secret in ("a-wrong-secret", SECRET, credentials()["AWS_ACCESS_KEY_ID"]):
            assert secret not in told.replace('"testkey"', "")


def test_a_missing_bucket_is_named(service: S3Service, aws: object) -> None:
    store = S3Store(S3Address("other-bucket", endpoint=service.endpoint, path_style=True))
    for call in (store.check, lambda: store.sweep((), 0.0)):
        with pytest.raises(StorageError, match="there is no bucket other-bucket; make it"):
            call()


def test_a_service_that_is_down_is_named(aws: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "ATTEMPTS", 1)
    store = S3Store(S3Address("bucket", endpoint="http://127.0.0.1:1", path_style=True))
    for call in everything(store):
        with pytest.raises(StorageError, match=r"http://127\.0\.0\.1:1 cannot be reached"):
            call()


def test_without_credentials_it_says_what_to_set(service: S3Service, aws: Any) -> None:
    aws.delenv("AWS_ACCESS_KEY_ID")
    aws.delenv("AWS_SECRET_ACCESS_KEY")
    store = S3Store(service.parsed())
    with pytest.raises(StorageError, match="no complete credentials") as caught:
        store.check()
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


def test_an_unknown_profile_is_named(service: S3Service, aws: object) -> None:
    with pytest.raises(InvalidSettings, match="nobody"):
        S3Store(service.parsed(profile="nobody"))


def test_without_boto3_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InvalidSettings, match=r'pip install "notebookos_ext\[s3\]"'):
        S3Store(S3Address("bucket"))


# ---- what SeaweedFS does not do, by a client that answers like other services


class Through:
    """A client of boto3 that does one thing otherwise."""

    def __init__(self, client: Any) -> None:
        self._inner = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Breaking(Through):
    def __init__(self, client: Any, operation: str, code: str = "Broken") -> None:
        super().__init__(client)
        self._operation, self._code = operation, code

    def __getattr__(self, name: str) -> Any:
        if name != self._operation:
            return super().__getattr__(name)

        def fails(**_: Any) -> None:
            raise self._inner.exceptions.ClientError({"Error": {"Code": self._code}}, name)

        return fails


class Changing(Through):
    def __init__(self, client: Any, operation: str, **changes: Any) -> None:
        super().__init__(client)
        self._operation, self._changes = operation, changes

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name != self._operation:
            return found
        return lambda **given: found(**(given | self._changes))


class Paged(Through):
    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name != "list_objects_v2":
            return found
        return lambda **given: found(**({"MaxKeys": 3} | given))


class Unconditional(Through):
    """A service that does not know conditions."""

    def put_object(self, **given: Any) -> Any:
        if "IfNoneMatch" in given:
            error = {"Error": {"Code": "NotImplemented"}}
            raise self._inner.exceptions.ClientError(error, "PutObject")
        return self._inner.put_object(**given)


@pytest.mark.parametrize("code", ["507", "QuotaExceeded", "InsufficientStorage"])
def test_a_full_service_is_said(store: S3Store, code: str) -> None:
    store._client = Breaking(store._client, "put_object", code)
    with pytest.raises(StorageFull, match=rf"no space is left in .* \({code}\)"):
        store.put(DIGEST, DATA)


def test_a_service_without_conditions_gets_the_same_bytes_again(store: S3Store) -> None:
    store._client = Unconditional(store._client)
    store.put(DIGEST, DATA)
    store.put(DIGEST, DATA)
    assert store.get(DIGEST) == DATA


def test_a_write_that_always_races_is_given_up(store: S3Store) -> None:
    store._client = Breaking(store._client, "put_object", "ConditionalRequestConflict")
    with pytest.raises(StorageError, match="did not take chunk"):
        store.put(DIGEST, DATA)


class Noting(Through):
    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name not in {"put_object", "copy_object", "create_multipart_upload"}:
            return found

        def note(**given: Any) -> Any:
            self.asked.append((name, given))
            # The service of the tests has no keys.
            plain = {k: v for k, v in given.items() if k not in ENCRYPTION}
            return found(**plain)

        return note


ENCRYPTION = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "key-1"}


def test_everything_that_is_written_asks_for_encryption(
    service: S3Service, aws: object, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3Store(service.parsed(prefix, sse="aws:kms", kms_key="key-1"))
    noting = Noting(store._client)
    store._client = noting
    monkeypatch.setattr(s3, "MULTIPART_BYTES", 6 << 20)
    monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)
    large = bytes(6 << 20)
    store.put(DIGEST, DATA)
    store.has(DIGEST)
    store.put(chunk_digest(large), large)
    assert [name for name, _ in noting.asked] == [
        "put_object", "copy_object", "create_multipart_upload",
    ]  # fmt: skip
    for _, given in noting.asked:
        assert given.items() >= ENCRYPTION.items()


def test_older_services_get_no_newer_checksums(service: S3Service, aws: Any, prefix: str) -> None:
    store = S3Store(service.parsed(prefix, checksums="when_required"))
    store.put(DIGEST, DATA)
    assert store.get(DIGEST) == DATA
