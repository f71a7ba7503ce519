"""Opens the checkpoint store that an address names."""

from __future__ import annotations

from pathlib import Path

from notebookos_ext.clock import Clock
from notebookos_ext.storage.addresses import S3Address, parse_address
from notebookos_ext.storage.base import CheckpointStore
from notebookos_ext.storage.disk import DiskStore
from notebookos_ext.storage.s3 import S3Store, require_boto3


def check_store(address: str) -> None:
    """Whether the address makes sense here. Raises InvalidSettings; nothing is opened."""
    if isinstance(parse_address(address), S3Address):
        require_boto3()


def open_store(address: str, *, namespace: str = "", clock: Clock) -> CheckpointStore:
    """Open it. `namespace` keeps the clusters that share a store apart; empty: the store is ours.

    Raises InvalidSettings, and StorageError for a folder that cannot be used. An S3 service is not
    asked anything yet.
    """
    parsed = parse_address(address)
    if isinstance(parsed, S3Address):
        return S3Store(parsed, namespace=namespace)
    return DiskStore(Path(parsed.path) / namespace, clock=clock)
