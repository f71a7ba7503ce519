"""Whose kernel it is: the user on whose behalf one is asked for, carried along by the asking task.

Jupyter tells a provisioner nothing of who asked. What a handler sets here is seen by everything
that its request leads to, and by nothing else. A user whom the identity provider does not know, but
only tells apart from others by a cookie, is no name that quotas could be for: then, and without a
server, kernels are those of whoever runs it.
"""

from __future__ import annotations

import contextlib
import contextvars
import getpass
import os
import re
from collections.abc import Iterator

_ANONYMOUS = re.compile("[0-9a-f]{32}")
"""What Jupyter's own identity providers make up for somebody who is not known by name."""

_asking: contextvars.ContextVar[str] = contextvars.ContextVar("notebookos_asking", default="")


@contextlib.contextmanager
def asked_by(username: str) -> Iterator[None]:
    """Kernels that are asked for meanwhile, in this task and what it starts, are this user's."""
    token = _asking.set("" if _ANONYMOUS.fullmatch(username) else username)
    try:
        yield
    finally:
        _asking.reset(token)


def asking_user() -> str:
    """Who asks just now; empty when that is not known by name."""
    return _asking.get()


def whoever() -> str:
    """Who runs this process; a JupyterHub says it better than the operating system."""
    return os.environ.get("JUPYTERHUB_USER") or getpass.getuser()
