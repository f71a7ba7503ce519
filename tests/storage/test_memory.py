"""The store in memory: the contract, and its limit."""

from __future__ import annotations

import pytest
from storage.contract import DATA, DIGEST, StoreContract

from notebookos_ext.clock import SystemClock, VirtualClock
from notebookos_ext.errors import StorageFull
from notebookos_ext.storage.base import CheckpointStore
from notebookos_ext.storage.memory import MemoryStore


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> CheckpointStore:
        return MemoryStore(clock=SystemClock())


def test_beyond_its_capacity_it_is_full() -> None:
    store = MemoryStore(clock=VirtualClock(), capacity_bytes=len(DATA) - 1)
    with pytest.raises(StorageFull, match="no space is left"):
        store.put(DIGEST, DATA)
    assert not store.has(DIGEST)


def test_ages_are_those_of_its_clock() -> None:
    clock = VirtualClock(1000.0)
    store = MemoryStore(clock=clock)
    store.put(DIGEST, DATA)
    clock.advance(100.0)
    assert store.has(DIGEST)
    clock.advance(50.0)
    assert store.sweep((), 60.0).chunks == 0
    clock.advance(50.0)
    assert store.sweep((), 60.0).chunks == 1
