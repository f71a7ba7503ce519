"""Writes the scheduler's journal of a live cluster, for replay in the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from notebookos_ext.cluster.actions import Action
from notebookos_ext.cluster.events import Event
from notebookos_ext.errors import StorageError
from notebookos_ext.storage.journal import JournalWriter


class Journaling:
    """An `Observer`. Events go to the operating system one by one; it decides when to the disk."""

    def __init__(self, writer: JournalWriter, *, warn: Callable[[str], None]) -> None:
        self._writer = writer
        self._warn = warn
        self._told = False

    def observe(self, event: Event, actions: Sequence[Action]) -> None:
        """See `Observer`. A journal that is full or cannot be written is told once, and ends."""
        if self._told:
            return
        try:
            self._writer.append(event, actions)
        except StorageError as error:
            self._told = True
            self._warn(f"{error.message}; it ends here")
        else:
            if self._writer.full:
                self._told = True
                self._warn(f"the journal {self._writer.path} is full; it ends here")

    def close(self) -> None:
        """No more events."""
        self._writer.close()
