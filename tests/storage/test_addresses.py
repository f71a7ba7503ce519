"""The setting that names a store: every mistake is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from notebookos_ext.clock import SystemClock
from notebookos_ext.errors import InvalidSettings, StorageError
from notebookos_ext.storage.addresses import FolderAddress, S3Address, parse_address
from notebookos_ext.storage.disk import DiskStore
from notebookos_ext.storage.opening import check_store, open_store
from notebookos_ext.storage.s3 import S3Store


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("/a/folder", FolderAddress("/a/folder")),
        ("file:///a/folder%20b", FolderAddress("/a/folder b")),
        ("file://localhost/a", FolderAddress("/a")),
        ("~/store", FolderAddress(str(Path.home() / "store"))),
        ("s3://bucket", S3Address("bucket")),
        ("s3://bucket/", S3Address("bucket")),
        ("s3://bucket/a/b/", S3Address("bucket", "a/b")),
        (
            (
                "s3://bucket/p?endpoint=https://s3.example.org:9000&path_style=1&region=eu-1"
                "&sse=aws:kms&kms_key=arn:aws:kms:eu-1:1:key/2&checksums=when_required&profile=lab"
            ),
            S3Address(
                "bucket",
                "p",
                endpoint="https://s3.example.org:9000",
                region="eu-1",
                profile="lab",
                path_style=True,
                sse="aws:kms",
                kms_key="arn:aws:kms:eu-1:1:key/2",
                checksums="when_required",
            ),
        ),
    ],
)
def test_addresses(text: str, address: object) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("store", "must have an absolute path"),
        ("file://host/a", "a folder is file:///path"),
        ("ftp://x/y", 'begins with "ftp://"'),
        ("s3://", "a bucket has 3 to 63"),
        ("s3://My_Bucket/x", "a bucket has 3 to 63"),
        ("s3://bucket/a//b", "has the prefix"),
        ("s3://bucket/a/../b", "has the prefix"),
        ("s3://bucket/a%00b", "has the prefix"),
        ("s3://bucket?endpont=http://x", "did you mean endpoint"),
        ("s3://bucket?zzz=1", "there are endpoint, region"),
        ("s3://bucket?bucket=x", "which is none"),
        ("s3://bucket?region=a&region=b", "the option region twice"),
        ("s3://bucket?path_style=maybe", 'path_style="maybe"; it must be one of'),
        ("s3://bucket?sse=rot13", 'sse="rot13"; it must be one of AES256, aws:kms'),
        ("s3://bucket?checksums=never", "when_supported, when_required"),
        ("s3://bucket?kms_key=k", "needs sse=aws:kms"),
        ("s3://bucket?endpoint=example.org", "it must be like https://"),
        ("s3://bucket?endpoint=http://example.org/path", "it must be like https://"),
        ("s3://bucket?endpoint=http://:99999", "it must be like https://"),
        ("s3://[x", "is not an address"),
    ],
)
def test_mistakes(text: str, said: str) -> None:
    with pytest.raises(InvalidSettings, match=r"^checkpoint_store") as caught:
        check_store(text)
    assert said in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIA123:topsecret@bucket/x",
        "s3://bucket?endpoint=https://AKIA123:topsecret@example.org",
    ],
)
def test_credentials_in_an_address_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidSettings, match="has credentials in its") as caught:
        parse_address(text)
    assert "AKIA123" not in str(caught.value)
    assert "topsecret" not in str(caught.value)


def test_names_have_neither_options_nor_slashes_at_the_end() -> None:
    assert parse_address("s3://bucket?region=x").name == "s3://bucket"
    assert parse_address("s3://bucket/a/?region=x").name == "s3://bucket/a"
    assert parse_address("file:///a/b").name == "/a/b"


def test_opening(tmp_path: Path) -> None:
    folder = open_store(f"file://{tmp_path}/shared", namespace="ours", clock=SystemClock())
    assert isinstance(folder, DiskStore)
    folder.check()
    assert (tmp_path / "shared" / "ours" / "chunks").is_dir()
    bucket = open_store("s3://bucket/p?endpoint=http://127.0.0.1:1&region=x", clock=SystemClock())
    assert isinstance(bucket, S3Store)
    assert bucket.name == "s3://bucket/p"


def test_a_folder_that_is_gone_is_told_by_a_check(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"), clock=SystemClock())
    (tmp_path / "store" / "incoming").rmdir()
    with pytest.raises(StorageError, match="store cannot be used"):
        store.check()
