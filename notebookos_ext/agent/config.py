"""Reading and checking what an agent is started with; every mistake is one clear sentence."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import msgspec

from notebookos_ext.cluster.messages.startup import AgentConfig
from notebookos_ext.errors import UNREADABLE, InvalidSettings, StorageError
from notebookos_ext.settings import CONSENSUS_ENGINES
from notebookos_ext.storage.addresses import parse_address

UNIX_PATH_BYTES_MAX = 107
"""What fits into a unix socket address on Linux, its final zero excluded."""
HASH_SEED_MAX = 4_294_967_295
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def load_config(path: Path) -> AgentConfig:
    """Read and check a configuration file. Raises InvalidSettings, StorageError."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise StorageError(
            f"the agent's configuration {path} cannot be read: {error.strerror}"
        ) from error
    try:
        config = msgspec.json.decode(text, type=AgentConfig)
    except UNREADABLE as error:
        raise InvalidSettings(f"the agent's configuration {path} is not valid: {error}") from error
    check_config(config)
    return config


def check_config(config: AgentConfig) -> None:
    """Raises InvalidSettings for a value that makes no sense."""
    if not _PLAIN_NAME.fullmatch(config.host):
        raise InvalidSettings(
            f'host "{config.host}" is not a plain name (letters, digits, dot, dash, underscore)'
        )
    if not 0 <= config.hash_seed <= HASH_SEED_MAX:
        raise InvalidSettings(
            f"hash_seed is {config.hash_seed}; it must be from 0 to {HASH_SEED_MAX}"
        )
    if config.consensus_engine not in CONSENSUS_ENGINES:
        raise InvalidSettings(
            f'consensus_engine is "{config.consensus_engine}"; it must be '
            f"{' or '.join(CONSENSUS_ENGINES)}"
        )
    for field in ("folder", "socket_folder", "token_file", "lock_folder"):
        path = getattr(config, field)
        if not os.path.isabs(path):  # noqa: PTH117 - a string out of the file
            raise InvalidSettings(f'{field} is "{path}"; it must be an absolute path')
    parse_address(config.checkpoint_store)
    longest = control_path(config)
    if len(os.fsencode(longest)) > UNIX_PATH_BYTES_MAX:
        raise InvalidSettings(
            f"the socket path {longest} is longer than {UNIX_PATH_BYTES_MAX} bytes; "
            "choose a shorter folder for sockets"
        )


def read_token(path: Path) -> bytes:
    """The cluster token. Raises StorageError, and InvalidSettings when others could read it."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"the cluster token {path} cannot be read: {error}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise InvalidSettings(
            f"the cluster token {path} can be read by others; set its mode to 0600"
        )
    try:
        token = bytes.fromhex(text)
    except ValueError:
        token = b""
    if len(token) < 16:
        raise InvalidSettings(f"{path} does not hold a cluster token (32 random bytes in hex)")
    return token


def make_folder(path: Path) -> None:
    """Make a private folder that can be written. Raises StorageError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"the folder {path} cannot be made: {error.strerror}") from error
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise StorageError(f"the folder {path} cannot be written; check its owner and mode")


def control_path(config: AgentConfig) -> Path:
    """Where controllers connect."""
    return Path(config.socket_folder) / f"{config.host}.control"


def peer_path(config: AgentConfig) -> Path:
    """Where the other agents connect."""
    return Path(config.socket_folder) / f"{config.host}.peer"
