"""Subshells that a client made on one replica and uses on the next.

A subshell is a thread that runs requests beside the main shell. Its client knows it by an id and
goes on using that id when the kernel's executor has changed. What a subshell does is in the
namespace, so a thread of the same name on the new executor is as good: it is made at first use.
"""

# mypy: disable-error-code="no-untyped-call"
# ipykernel's methods carry no annotations.

from __future__ import annotations

from functools import partial
from threading import current_thread
from typing import Any

from ipykernel.shellchannel import ShellChannelThread
from ipykernel.subshell import SubshellThread
from ipykernel.subshell_manager import SubshellManager
from ipykernel.thread import SHELL_CHANNEL_THREAD_NAME
from ipykernel.utils import _async_in_context


class Subshells(SubshellManager):
    """ipykernel's subshells, except that an id from another replica is made here when used."""

    def __init__(self, thread: ShellChannelThread) -> None:
        """Become the manager of a shell channel that has none yet; on the main thread.

        ipykernel makes its own at first use and offers no other way in.
        """
        assert thread.shell_stream is not None  # noqa: S101 - ReplicaApp.init_kernel made it
        super().__init__(thread._zmq_context, thread.io_loop, thread.shell_stream)  # noqa: SLF001
        self._deleted: set[str] = set()
        thread._manager = self  # noqa: SLF001

    def get_shell_channel_to_subshell_socket(self, subshell_id: str | None) -> Any:
        """Where a message for this subshell goes; raises UnknownSubshellError for deleted ones."""
        if subshell_id is not None and current_thread().name == SHELL_CHANNEL_THREAD_NAME:
            with self._lock_cache:
                missing = subshell_id not in self._cache and subshell_id not in self._deleted
            if missing:
                self._make(subshell_id)
        return super().get_shell_channel_to_subshell_socket(subshell_id)

    def _make(self, subshell_id: str) -> None:
        thread = SubshellThread(subshell_id, self._context)
        with self._lock_cache:
            self._cache[subshell_id] = thread
        receive = _async_in_context(partial(self._on_recv_callback, subshell_id))
        thread.shell_channel_to_subshell.on_recv(thread.io_loop, receive)
        thread.subshell_to_shell_channel.on_recv(
            self._shell_channel_io_loop, self._send_on_shell_channel
        )
        thread.start()

    def _delete_subshell(self, subshell_id: str) -> None:
        with self._lock_cache:
            elsewhere = subshell_id not in self._cache and subshell_id not in self._deleted
            self._deleted.add(subshell_id)
        if not elsewhere:
            super()._delete_subshell(subshell_id)
