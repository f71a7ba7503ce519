"""Where a host agent listens for its peers: the path of a unix socket, or `name:port`.

The name may be an address of IPv6, in brackets or not.
"""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from notebookos_ext.agent.config import UNIX_PATH_BYTES_MAX


def is_unix(address: str) -> bool:
    """Whether `address` is the path of a unix socket rather than `name:port`."""
    return address.startswith("/")


async def listen(
    address: str, accept: Callable[[], asyncio.Protocol]
) -> tuple[asyncio.Server, str]:
    """A server, and the address it has got; port 0 asks for any that is free.

    Raises:
        OSError: the address is taken or cannot be used.
        ValueError: the port is no number.
    """
    loop = asyncio.get_running_loop()
    if is_unix(address):
        _free_path(address)
        server = await loop.create_unix_server(accept, address)
        _make_private(address)
        return server, address
    name, _, port = address.rpartition(":")
    server = await loop.create_server(accept, name.strip("[]"), int(port))
    return server, f"{name}:{server.sockets[0].getsockname()[1]}"


async def connect(address: str, protocol: asyncio.Protocol) -> None:
    """Connect; the protocol is told. Raises OSError, and ValueError when the port is no number."""
    loop = asyncio.get_running_loop()
    if is_unix(address):
        await loop.create_unix_connection(lambda: protocol, address)
    else:
        name, _, port = address.rpartition(":")
        await loop.create_connection(lambda: protocol, name.strip("[]"), int(port))


def _make_private(address: str) -> None:
    Path(address).chmod(0o600)


def vacate(address: str) -> None:
    """Remove the file of a unix socket that nobody listens at any more."""
    if is_unix(address):
        Path(address).unlink(missing_ok=True)


def _free_path(address: str) -> None:
    """Remove the socket file of an agent that is gone; one that answers is left alone."""
    if len(address.encode()) > UNIX_PATH_BYTES_MAX:
        raise OSError(f"the path has more than {UNIX_PATH_BYTES_MAX} bytes")
    path = Path(address)
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise OSError("a file that is no socket is in the way")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(address)
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise OSError("another process listens there")
