"""A checkpoint store in a bucket of an S3 service: `PREFIX/chunks/<first two digits>/<digest>`.

The one home of boto3, which is an extra: it is loaded only when a store is opened. Credentials come
through boto3's own chain; none is in an address, a message or a log. Nothing is overwritten: writes
are conditional, and the digest that names a chunk is checked on every read.
"""

from __future__ import annotations

import contextlib
import email.utils
import importlib.util
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from notebookos_ext.errors import (
    CorruptRecord,
    InvalidSettings,
    NotFound,
    StorageError,
    StorageFull,
)
from notebookos_ext.storage.addresses import S3Address
from notebookos_ext.storage.base import StoreUsage, check_chunk, check_digest

MULTIPART_BYTES = 64 * 1024 * 1024
"""Objects from this size on are sent in parts."""
PART_BYTES = 16 * 1024 * 1024
OBJECT_BYTES_MAX = 4 * 1024**3
"""Nothing larger is read: no store of ours has it."""
ATTEMPTS = 3
"""Of each request, by botocore's standard mode: with growing pauses, on errors that may pass."""
CONNECT_S = 5.0
READ_S = 30.0
AT_ONCE = 4
"""Requests of one sweep or one large object at the same time."""

_MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
_THERE = frozenset({"412", "PreconditionFailed"})
_RACED = frozenset({"409", "ConditionalRequestConflict", "OperationAborted"})
_UNCONDITIONAL = frozenset({"501", "NotImplemented"})
_FULL = frozenset({"507", "InsufficientStorage", "QuotaExceeded", "XMinioStorageFull"})
_REFUSED = frozenset(
    {
        "401",
        "403",
        "AccessDenied",
        "AuthorizationHeaderMalformed",
        "ExpiredToken",
        "Forbidden",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
    }
)
_DAMAGED = frozenset({"BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch"})


def require_boto3() -> None:
    """Raises InvalidSettings with what to install when boto3 is missing."""
    if importlib.util.find_spec("boto3") is None:
        raise InvalidSettings(
            "checkpoint_store names an S3 bucket, but boto3 is not installed where the server "
            'runs; install it with: pip install "notebookos_ext[s3]"'
        )


class S3Store:
    """Chunks as objects. Safe for several threads and processes at once.

    That a chunk was looked for is kept as its time of last change: it is copied onto itself, which
    the service does without sending it anywhere.
    """

    def __init__(self, address: S3Address, *, namespace: str = "", client: Any = None) -> None:
        """`namespace` keeps clusters that share the bucket and prefix apart.

        `client` takes the place of boto3's. Raises InvalidSettings when boto3 is missing or does
        not know the profile; the service is not asked anything yet.
        """
        base = "/".join(part for part in (address.prefix, namespace) if part)
        self._base = f"{base}/" if base else ""
        self._address = address
        self._client = client or _client(address)
        self._conditional = True
        self._encryption: dict[str, str] = {}
        if address.sse:
            self._encryption["ServerSideEncryption"] = address.sse
        if address.kms_key:
            self._encryption["SSEKMSKeyId"] = address.kms_key

    def __repr__(self) -> str:
        return f"S3Store({self.name!r})"

    @property
    def name(self) -> str:
        """See `CheckpointStore.name`."""
        return self._address.name

    def check(self) -> None:
        """See `CheckpointStore.check`."""
        with self._told("cannot be used"):
            self._ask("list_objects_v2", Prefix=self._chunks, MaxKeys=1)

    def put(self, digest: str, data: bytes) -> None:
        """See `CheckpointStore.put`."""
        check_chunk(digest, data)
        key = self._key(digest)
        with self._told("did not take a chunk"):
            for _ in range(ATTEMPTS):
                if self._write(key, data):
                    return
                size = self._size(key)
                if size == len(data) and self._refresh(key):
                    return
                if size not in (None, len(data)):
                    # Not what was put there: it makes room for what was.
                    self._set_aside(digest)
        raise StorageError(f"the checkpoint store {self.name} did not take chunk {digest[:12]}…")

    def get(self, digest: str) -> bytes:
        """See `CheckpointStore.get`. A corrupt chunk is set aside, so that it can be put again."""
        check_digest(digest)
        with self._told("did not give a chunk"):
            try:
                found = self._ask("get_object", Key=self._key(digest))
            except self._refusal as error:
                if _code(error) not in _MISSING:
                    raise
                raise NotFound(f"chunk {digest[:12]}… is not in the store {self.name}") from None
            if found["ContentLength"] > OBJECT_BYTES_MAX:
                raise CorruptRecord(
                    f"chunk {digest[:12]}… in the store {self.name} has {found['ContentLength']} "
                    "bytes, which no chunk has; it was not read"
                )
            with contextlib.closing(found["Body"]) as body:
                data: bytes = body.read()
        try:
            check_chunk(digest, data)
        except CorruptRecord as error:
            with self._told("could not set a corrupt chunk aside"):
                self._set_aside(digest)
            raise CorruptRecord(
                f"{error.message}; the object is now {self.name}/…/corrupt/{digest}"
            ) from error
        return data

    def has(self, digest: str) -> bool:
        """See `CheckpointStore.has`."""
        check_digest(digest)
        with self._told("cannot be read"):
            return self._refresh(self._key(digest))

    def delete(self, digest: str) -> None:
        """See `CheckpointStore.delete`."""
        check_digest(digest)
        with self._told("did not delete a chunk"):
            self._ask("delete_object", Key=self._key(digest))

    def sweep(
        self, named: Collection[str], older_than_s: float, *, dry_run: bool = False
    ) -> StoreUsage:
        """See `CheckpointStore.sweep`. Ages are those at its beginning, by the service's clock."""

        def freed(found: tuple[str, int]) -> tuple[int, int]:
            key, size_bytes = found
            goes = dry_run or self._delete_if_old(key, now, older_than_s)
            return (1, size_bytes) if goes else (0, 0)

        with self._told("cannot be swept"), ThreadPoolExecutor(AT_ONCE) as threads:
            now = _clock_of(self._ask("list_objects_v2", Prefix=self._chunks, MaxKeys=1))
            old = (
                (key, size_bytes)
                for key, size_bytes, changed in self._listed()
                if _age_s(changed, now) > older_than_s and key.rpartition("/")[2] not in named
            )
            counts = list(threads.map(freed, old))
        return StoreUsage(
            chunks=sum(count for count, _ in counts), size_bytes=sum(size for _, size in counts)
        )

    def usage(self) -> StoreUsage:
        """See `CheckpointStore.usage`."""
        with self._told("cannot be read"):
            sizes = [size_bytes for _, size_bytes, _ in self._listed()]
        return StoreUsage(chunks=len(sizes), size_bytes=sum(sizes))

    # ---- objects ---------------------------------------------------------------------------------

    @property
    def _chunks(self) -> str:
        return f"{self._base}chunks/"

    def _key(self, digest: str) -> str:
        return f"{self._chunks}{digest[:2]}/{digest}"

    def _write(self, key: str, data: bytes) -> bool:
        """Whether it was written; else somebody was there before."""
        condition = {"IfNoneMatch": "*"} if self._conditional else {}
        try:
            if len(data) >= MULTIPART_BYTES:
                if self._size(key) is not None:
                    return False
                self._write_in_parts(key, data, condition)
            else:
                self._ask("put_object", Key=key, Body=data, **condition, **self._encryption)
        except self._refusal as error:
            code = _code(error)
            if code in _UNCONDITIONAL and condition:
                # Such a service overwrites the chunk with the same bytes.
                self._conditional = False
                return self._write(key, data)
            if code in _THERE | _RACED:
                return False
            raise
        return True

    def _write_in_parts(self, key: str, data: bytes, condition: dict[str, str]) -> None:
        checksum = {}
        if self._address.checksums == "when_supported":
            checksum["ChecksumAlgorithm"] = "CRC32"
        begun = self._ask("create_multipart_upload", Key=key, **checksum, **self._encryption)
        upload = {"Key": key, "UploadId": begun["UploadId"]}

        def send(number: int) -> dict[str, Any]:
            part = data[(number - 1) * PART_BYTES : number * PART_BYTES]
            sent = self._ask("upload_part", PartNumber=number, Body=part, **checksum, **upload)
            names = ("ETag", "ChecksumCRC32")
            kept: dict[str, Any] = {name: sent[name] for name in names if name in sent}
            return {"PartNumber": number, **kept}

        try:
            with ThreadPoolExecutor(AT_ONCE) as threads:
                parts = list(threads.map(send, range(1, -(-len(data) // PART_BYTES) + 1)))
            self._ask(
                "complete_multipart_upload", MultipartUpload={"Parts": parts}, **condition, **upload
            )
        except BaseException:
            # What is left of it would be paid for and never seen.
            with contextlib.suppress(Exception):
                self._ask("abort_multipart_upload", **upload)
            raise

    def _size(self, key: str) -> int | None:
        """How long the object is; None if there is none."""
        try:
            return int(self._ask("head_object", Key=key)["ContentLength"])
        except self._refusal as error:
            if _code(error) in _MISSING:
                return None
            raise

    def _refresh(self, key: str) -> bool:
        """Make it as new as if it had just been put; False if it is not there."""
        try:
            self._copy(key, key)
        except self._refusal as error:
            if _code(error) in _MISSING:
                return False
            raise
        return True

    def _set_aside(self, digest: str) -> None:
        key = self._key(digest)
        self._copy(key, f"{self._base}corrupt/{digest}")
        self._ask("delete_object", Key=key)

    def _copy(self, source: str, target: str) -> None:
        self._ask(
            "copy_object",
            Key=target,
            CopySource={"Bucket": self._address.bucket, "Key": source},
            # A copy onto itself must change something.
            MetadataDirective="REPLACE",
            **self._encryption,
        )

    def _delete_if_old(self, key: str, now: datetime, older_than_s: float) -> bool:
        """Looked at again just before: the listing may be minutes old."""
        try:
            found = self._ask("head_object", Key=key)
        except self._refusal as error:
            if _code(error) in _MISSING:
                return False
            raise
        if _age_s(found["LastModified"], now) <= older_than_s:
            return False
        self._ask("delete_object", Key=key)
        return True

    def _listed(self) -> Iterator[tuple[str, int, datetime]]:
        """Key, size in bytes and last change of every chunk."""
        after: dict[str, str] = {}
        while True:
            page = self._ask("list_objects_v2", Prefix=self._chunks, **after)
            for each in page.get("Contents", ()):
                yield each["Key"], int(each["Size"]), each["LastModified"]
            if not page.get("IsTruncated"):
                return
            after = {"ContinuationToken": page["NextContinuationToken"]}

    # ---- the service -----------------------------------------------------------------------------

    def _ask(self, operation: str, **parameters: Any) -> dict[str, Any]:
        answer: dict[str, Any] = getattr(self._client, operation)(
            Bucket=self._address.bucket, **parameters
        )
        return answer

    @property
    def _refusal(self) -> type[Exception]:
        refusal: type[Exception] = self._client.exceptions.ClientError
        return refusal

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Turn what boto3 raises into sentences; none has more of an answer than its code."""
        from botocore import exceptions  # noqa: PLC0415 - boto3 is loaded only where it is used

        store = f"the checkpoint store {self.name}"
        try:
            yield
        except exceptions.ClientError as error:
            raise self._refused(_code(error), what) from None
        except exceptions.FlexibleChecksumError:
            raise CorruptRecord(
                f"{store} gave a chunk that does not match its own checksum; it was not used"
            ) from None
        except (
            exceptions.NoCredentialsError,
            exceptions.PartialCredentialsError,
            exceptions.CredentialRetrievalError,
        ):
            raise StorageError(
                f"{store} {what}: boto3 finds no complete credentials for it",
                hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials.",
            ) from None
        except (exceptions.ConnectionError, exceptions.HTTPClientError) as error:
            where = self._address.endpoint or "AWS"
            raise StorageError(
                f"{store} {what}: {where} cannot be reached ({type(error).__name__})"
            ) from None
        except exceptions.BotoCoreError as error:
            raise StorageError(f"{store} {what}: {type(error).__name__}") from None

    def _refused(self, code: str, what: str) -> StorageError:
        store = f"the checkpoint store {self.name}"
        if code in _FULL:
            return StorageFull(
                f"no space is left in {store} ({code})",
                hint="Raise its quota, free space there, or name another store.",
            )
        if code in _REFUSED:
            return StorageError(
                f"{store} {what}: it refuses our credentials ({code}); check them, and what they "
                "may do with the bucket"
            )
        if code == "NoSuchBucket":
            return StorageError(
                f"{store} {what}: there is no bucket {self._address.bucket}; make it, or correct "
                "checkpoint_store"
            )
        if code in _DAMAGED:
            return StorageError(f"{store} {what}: it arrived there damaged ({code})")
        return StorageError(f"{store} {what} ({code})")


def _client(address: S3Address) -> Any:
    require_boto3()
    from boto3.session import Session  # noqa: PLC0415 - boto3 is an extra
    from botocore.config import Config  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415

    config = Config(
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        max_pool_connections=4 * AT_ONCE,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        s3={"addressing_style": "path" if address.path_style else "auto"},
        request_checksum_calculation=address.checksums,
        response_checksum_validation=address.checksums,
        user_agent_extra="notebookos",
    )
    try:
        session = Session(profile_name=address.profile or None)
        return session.client(
            "s3",
            endpoint_url=address.endpoint or None,
            region_name=address.region or None,
            config=config,
        )
    except (BotoCoreError, ValueError) as error:
        raise InvalidSettings(
            f"the checkpoint store {address.name} cannot be opened: {error}"
        ) from None


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", "unknown"))


def _clock_of(answer: dict[str, Any]) -> datetime:
    """What the service's clock showed when it answered."""
    return email.utils.parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])


def _age_s(changed: datetime, now: datetime) -> float:
    return (now - changed).total_seconds()
