"""How a kernel of which no replica runs stands before its clients: it lives, and answers little.

Browsers and servers ask each kernel who it is, again and again, and take one without an answer for
dead. That is answered from memory; whatever else a client asks brings the kernel back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from notebookos_ext.cluster.channels import Message
from notebookos_ext.cluster.model import KernelId
from notebookos_ext.cluster.requests import Request, error_content, reply_status
from notebookos_ext.cluster.routing import Described, Output

ABOUT_KERNEL = "kernel_info_request"
ABOUT_PROCESS = "usage_request"
"""Panels ask it every few seconds; there is no process to tell of."""


class Rest:
    """Whether a kernel rests, and what it has said of itself."""

    def __init__(self, kernel: KernelId) -> None:
        self.stored = False
        """No replica runs; one comes when it is asked for."""
        self.needed = False
        """That was said, and no replica has come since."""
        self._kernel = kernel
        self._description: Mapping[str, Any] | None = None

    def begin(self, description: Mapping[str, Any] | None) -> None:
        """It rests now; `description` is the content of a kernel_info_reply, if one is known."""
        self.stored, self.needed = True, False
        self._description = self._description or description

    def end(self) -> None:
        """A replica answers."""
        self.stored = self.needed = False

    def learn(self, request: Request, reply: Message) -> list[Described]:
        """A replica's reply may tell who the kernel is."""
        if request.type != ABOUT_KERNEL or reply_status(reply) != "ok":
            return []
        content = reply.content()
        if content == self._description:
            return []
        self._description = content
        return [Described(self._kernel, content)]

    def answer(self, request: Request) -> list[Output] | None:
        """The answer to a request for which there is no replica; None: it waits for one."""
        if not self.stored:
            return None
        if request.type == ABOUT_KERNEL and self._description is not None:
            return request.finish(self._description)
        if request.type == ABOUT_PROCESS:
            sentence = "the kernel is in the checkpoint store and has no process"
            return request.finish(error_content("KernelStored", sentence))
        return None
