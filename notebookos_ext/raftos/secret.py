"""The token of a cluster of raftos nodes: from the configured secret, else one per user."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from notebookos_ext.agent.config import make_folder, read_token
from notebookos_ext.errors import InvalidSettings, StorageError
from notebookos_ext.raftos.conf import Configuration, as_bytes

_SCRYPT_COST = {"n": 2**14, "r": 8, "p": 1}


def cluster_token(config: Configuration, addresses: Iterable[str]) -> bytes:
    """What all nodes must share to speak with each other.

    raftos has a published default key. Here nodes of one machine that were given none share a
    random one in the user's own folder; nodes of several machines must be given one.

    Raises:
        InvalidSettings: some address is not of this machine and no secret is configured.
        StorageError: the user's own secret cannot be kept.
    """
    if config.has_secret:
        # The key may be a phrase that somebody made up, so guessing must be slow.
        return hashlib.scrypt(
            as_bytes(config.secret_key), salt=as_bytes(config.salt), dklen=32, **_SCRYPT_COST
        )
    if away := [address for address in addresses if not is_local(address)]:
        raise InvalidSettings(
            f"{away[0]} is not an address of this machine alone, so the nodes need a secret: "
            "call configure({'secret_key': …}) with the same random bytes on every node"
        )
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    folder = Path(state) / "notebookos"
    make_folder(folder)
    return own_secret(folder / "raftos-secret")


def own_secret(path: Path) -> bytes:
    """The secret in `path`, made now if there is none; whoever makes it first wins."""
    if not path.exists():
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(32))
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(temporary)
        except OSError as error:
            raise StorageError(f"the secret {path} cannot be made: {error}") from error
        finally:
            temporary.unlink(missing_ok=True)
    return read_token(path)


def is_local(address: str) -> bool:
    """Whether only processes of this machine can reach `name:port`."""
    name = address.rpartition(":")[0].strip("[]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
