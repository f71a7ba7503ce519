"""`python -m notebookos_ext.agent CONFIG`: one host's agent, a process in its own right.

It has its own session, adopts its replicas' processes, and logs to `<folder>/agent.log`. A mistake
in what it was given is one sentence on stderr and exit code 2. When it listens, stdout and stderr
are closed for whoever started it: an end of file there means that it serves (or has ended).
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import fcntl
import logging
import os
import random
import sys
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path

from notebookos_ext.agent.config import load_config, read_token
from notebookos_ext.agent.host import HostAgent, prepare_folders
from notebookos_ext.agent.inventory import open_inventory
from notebookos_ext.agent.reaper import become_subreaper
from notebookos_ext.clock import SystemClock
from notebookos_ext.cluster.messages.startup import AgentConfig
from notebookos_ext.errors import InvalidSettings, NotebookOSError, StorageError
from notebookos_ext.storage.opening import open_store

EXIT_UNUSABLE = 2
LOG_BYTES = 2 << 20
LOG_FILES = 3


def main(arguments: list[str]) -> int:
    """Run an agent; the exit code is 0 after an orderly end."""
    if len(arguments) != 1:
        print("usage: python -m notebookos_ext.agent CONFIG", file=sys.stderr)
        return EXIT_UNUSABLE
    # Until the log file is open there is only the one sentence below.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        config = load_config(Path(arguments[0]))
        prepare_folders(config)
        with _only_agent_of(Path(config.folder)):
            _detach(config)
            asyncio.run(_serve(config))
    except NotebookOSError as error:
        logging.getLogger(__name__).warning("cannot run: %s", error)
        print(f"host agent: {error.message} {error.hint}".rstrip(), file=sys.stderr)
        return EXIT_UNUSABLE
    except OSError as error:
        print(f"host agent: it cannot run: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    return 0


async def _serve(config: AgentConfig) -> None:
    clock = SystemClock()
    agent = HostAgent(
        config,
        token=read_token(Path(config.token_file)),
        inventory=open_inventory(
            config.host, gpus=config.gpus, simulated_gpus=config.simulated_gpus
        ),
        store=open_store(config.checkpoint_store, namespace=config.store_namespace, clock=clock),
        clock=clock,
        rng=random.Random(),
    )
    await agent.run(on_listening=lambda: _let_go_of_output(config))


@contextlib.contextmanager
def _only_agent_of(folder: Path) -> Iterator[None]:
    """Hold the pid file. Raises InvalidSettings while another agent holds it."""
    path = folder / "agent.pid"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            raise InvalidSettings(
                f"a living host agent (process {pid}) already uses {folder}; end it first"
            ) from None
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        except OSError as error:
            raise _unwritable(path, error) from error
        yield
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _unwritable(path: Path, error: OSError) -> StorageError:
    return StorageError(f"the pid file {path} cannot be written: {error.strerror}")


def _detach(config: AgentConfig) -> None:
    """A session of its own, a log of its own, no open standard input, orphans adopted."""
    with contextlib.suppress(PermissionError):
        os.setsid()
    become_subreaper()
    os.chdir(config.folder)
    # What was passed to this process (a lock, say) is not for templates and replicas.
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names only
        with contextlib.suppress(OSError):
            if int(name) > 2:
                os.set_inheritable(int(name), False)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    # A full disk must not end the agent: what cannot be logged is not logged.
    logging.raiseExceptions = False
    try:
        handler = RotatingFileHandler(
            Path(config.folder) / "agent.log", maxBytes=LOG_BYTES, backupCount=LOG_FILES
        )
    except OSError as error:
        raise StorageError(
            f"the log file in {config.folder} cannot be written: {error.strerror}"
        ) from error
    logging.basicConfig(
        force=True,
        handlers=[handler],
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


def _let_go_of_output(config: AgentConfig) -> None:
    """From now on nobody reads our stderr; what the interpreter prints goes to a file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    output = os.open(Path(config.folder) / "agent.err", flags, 0o600)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    faulthandler.enable()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
