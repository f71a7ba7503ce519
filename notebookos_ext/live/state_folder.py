"""The folder of one cluster, held by a lock: token, hash seed, hosts, store, and its socket folder.

    <state>/lock        held as long as a controller uses the folder
    <state>/token       32 random bytes in hex, mode 0600: who knows it may command the host agents
    <state>/hash_seed   PYTHONHASHSEED of every replica of the installation
    <state>/hosts/<host>/…   logs of the host's members, its own log file
    <state>/kernels/    what is known of each kernel, to bring it back after this server
    <state>/cluster_id  what this cluster's part of a shared checkpoint store is called
    <state>/usage.sqlite3   what cells took
    <state>/store/      the checkpoint store
    <state>/servers/<n> the same again, for a further server of the user at the same time

Unix sockets have paths of at most 107 bytes, so they live in a short private folder of the
machine's temporary directory, found again from the state folder's path: a restarted server adopts
its agents.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

from notebookos_ext.cluster.model import KernelId
from notebookos_ext.errors import StorageError, StorageFull
from notebookos_ext.storage.private_files import write_private

MOST_SOCKET_FOLDER_BYTES = 60
"""Leaves room for `/<32 characters>-control` below the limit of 107 bytes."""
MOST_SERVERS = 64
LEAST_FREE_BYTES = 2 * 1024**2
LOCK = "lock"
_PRIVATE_PREFIX = "notebookos-private-"


class StateFolder:
    """An open, locked state folder."""

    def __init__(
        self,
        path: Path,
        lock: int,
        *,
        token: bytes,
        cluster_id: str,
        hash_seed: int,
        sockets: Path,
        locks: Path,
    ) -> None:
        self.path = path
        self.token = token
        self.cluster_id = cluster_id
        self.hash_seed = hash_seed
        self.sockets = sockets
        self.device_locks = locks
        self._lock = lock

    @property
    def lock(self) -> int:
        """The descriptor that holds the lock; a process that inherits it holds it too."""
        return self._lock

    @property
    def token_file(self) -> Path:
        """Where the agents read the token."""
        return self.path / "token"

    @property
    def store(self) -> Path:
        """The default checkpoint store."""
        return self.path / "store"

    def host(self, host: str) -> Path:
        """The folder of one host's agent."""
        return self.path / "hosts" / host

    @property
    def kernels(self) -> Path:
        """Where records of kernels are kept."""
        return self.path / "kernels"

    def logs(self) -> dict[KernelId, float]:
        """The kernels that have logs on hosts of this folder, and when each was last written to."""
        found: dict[KernelId, float] = {}
        for path in self.path.glob("hosts/*/kernels/*/**/*"):
            kernel = KernelId(path.relative_to(self.path).parts[3])
            with contextlib.suppress(FileNotFoundError):
                found[kernel] = max(found.get(kernel, 0.0), path.stat().st_mtime)
        return found

    def delete_logs(self, kernel: KernelId) -> None:
        """Nobody can read them any more, or nobody wants to."""
        for path in self.path.glob(f"hosts/*/kernels/{glob.escape(kernel)}"):
            shutil.rmtree(path, ignore_errors=True)

    def require_space(self) -> None:
        """Raises StorageFull when there is not even room for the logs of one more kernel."""
        found = os.statvfs(self.path)
        if found.f_bavail * found.f_frsize < LEAST_FREE_BYTES:
            raise StorageFull(
                f"no space is left for a kernel's log in the state folder {self.path}; free some"
            )

    def keeps_kernels(self) -> bool:
        """Whether there is a kernel's log or record left, which may name chunks of the store."""
        found = (*self.path.glob("hosts/*/kernels/*"), *self.kernels.glob("*"))
        return bool(found)

    def close(self, *, delete: bool) -> None:
        """Give the lock back; with `delete` nothing of the folder remains."""
        if self._lock < 0:
            return
        shutil.rmtree(self.sockets, ignore_errors=True)
        if delete:
            _delete(self.path)
        os.close(self._lock)
        self._lock = -1


def open_shared(path: Path, *, hash_seed: int | None = None) -> StateFolder:
    """The user's state folder, or the next `servers/<n>` below it while another server holds it.

    Raises StorageError with the path and the cause when it cannot be written.
    """
    # The agents, which read its path, work in folders of their own.
    path = path.expanduser().absolute()
    with _told(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        seed = _hash_seed(path, hash_seed)
        for number in range(1, MOST_SERVERS + 1):
            candidate = path if number == 1 else path / "servers" / str(number)
            candidate.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = _try_lock(candidate)
            if lock is not None:
                return _opened(candidate, lock, seed)
    raise StorageError(
        f"{MOST_SERVERS} servers already use the state folder {path}; "
        "set NotebookOSApp.state_folder to another folder"
    )


def open_private(*, hash_seed: int | None = None) -> StateFolder:
    """A temporary folder for a cluster that ends with its process. Raises StorageError.

    What killed processes left behind is removed first: a folder whose lock nobody holds.
    """
    parent = Path(tempfile.gettempdir())
    with _told(parent):
        _sweep(parent)
        while True:
            path = Path(tempfile.mkdtemp(prefix=_PRIVATE_PREFIX, dir=parent))
            lock = _try_lock(path)
            if lock is not None:
                return _opened(path, lock, _hash_seed(path, hash_seed))
            # Another process's sweep took it for a dead one in the moment before it was locked.


def _opened(path: Path, lock: int, hash_seed: int) -> StateFolder:
    try:
        return _open(path, lock, hash_seed)
    except BaseException:
        os.close(lock)
        raise


def _open(path: Path, lock: int, hash_seed: int) -> StateFolder:
    token_file = path / "token"
    if not token_file.exists():
        write_private(token_file, secrets.token_hex(32))
    try:
        token = bytes.fromhex(token_file.read_text(encoding="ascii").strip())
    except ValueError as error:
        raise StorageError(
            f"{token_file} does not hold a token; delete it and restart the server"
        ) from error
    cluster_id = _cluster_id(path)
    sockets = _private_folder(_socket_folder(path))
    locks = _private_folder(_socket_base() / "devices")
    return StateFolder(
        path,
        lock,
        token=token,
        cluster_id=cluster_id,
        hash_seed=hash_seed,
        sockets=sockets,
        locks=locks,
    )


def _cluster_id(path: Path) -> str:
    file = path / "cluster_id"
    if not file.exists():
        write_private(file, secrets.token_hex(8))
    text = file.read_text(encoding="ascii", errors="replace").strip()
    if not re.fullmatch("[0-9a-f]{16}", text):
        # A new one would leave all chunks of a shared store behind.
        raise StorageError(
            f"{file} does not hold a cluster's id (16 hex digits); put back what was there"
        )
    return text


def _hash_seed(path: Path, wanted: int | None) -> int:
    if wanted is not None:
        return wanted
    file = path / "hash_seed"
    if not file.exists():
        # 0 would switch randomisation off; everything else is as good as any other.
        write_private(file, str(1 + secrets.randbelow(2**32 - 1)))
    text = file.read_text(encoding="ascii", errors="replace").strip()
    if not text.isdigit() or int(text) >= 2**32:
        raise StorageError(f"{file} does not hold a hash seed; delete it and restart the server")
    return int(text)


def _try_lock(path: Path) -> int | None:
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _sweep(parent: Path) -> None:
    for path in parent.glob(f"{_PRIVATE_PREFIX}*"):
        # Another process may sweep at this moment, too.
        with contextlib.suppress(FileNotFoundError):
            lock = _try_lock(path) if _is_private(path) else None
            if lock is not None:
                shutil.rmtree(_socket_folder(path), ignore_errors=True)
                _delete(path)
                os.close(lock)


def _delete(path: Path) -> None:
    """The lock goes last: without it, what is left by a process killed here is never swept."""
    for entry in path.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != LOCK:
            entry.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def _is_private(path: Path) -> bool:
    """Whether `open_private` of this user made it; others may put folders and links there."""
    found = path.lstat()
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return ours and (path / LOCK).is_file()


def _socket_folder(path: Path) -> Path:
    digest = hashlib.blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()
    return _socket_base() / digest


def _socket_base() -> Path:
    name = f"nbos-{os.getuid()}"
    base = Path(tempfile.gettempdir()) / name
    if len(os.fsencode(base)) + 9 > MOST_SOCKET_FOLDER_BYTES:
        # A long TMPDIR cannot hold sockets; the private mode below makes the public place safe.
        base = Path("/tmp") / name  # noqa: S108
    return _private_folder(base)


def _private_folder(path: Path) -> Path:
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise StorageError(
            f"{path} belongs to somebody else, so no sockets are put there; remove it or set TMPDIR"
        )
    path.chmod(0o700)
    return path


class _told:  # noqa: N801 - reads as a word where it is used
    """Turn what the system says about a folder into one sentence."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, OSError):
            return
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(
                f"no space is left for the state folder {self._path}; free some and restart"
            ) from error
        raise StorageError(
            f"the state folder {self._path} cannot be used ({error.strerror}); "
            "make it writable or set NotebookOSApp.state_folder to a folder of yours"
        ) from error
