"""A process that has imported what every replica needs, and becomes replicas by forking.

`python -m notebookos_ext.kernel.template FD [MODULE …]` imports ipykernel, our kernel modules and
the modules named, then reads `ForkReplica` frames (each with two descriptors: the replica's end of
its socket pair, and a log file) from the socket FD until its peer closes it. It stays
single-threaded and opens no ZMQ context, so that a fork is safe; what it imported is shared with
its replicas page by page. Each replica is forked twice, so that the host agent, which is the
sub-reaper, becomes its parent. A fork without a launch is a pre-warmed replica: it waits until it
is told which one to be.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from notebookos_ext.cluster.frames import FrameDecoder, encode_frame
from notebookos_ext.cluster.messages.control import LaunchReplica
from notebookos_ext.cluster.messages.replica import FromReplica, ReplicaHello
from notebookos_ext.cluster.messages.startup import BecomeReplica, ForkReplica

READ_BYTES = 1 << 16
DESCRIPTORS_PER_FORK = 2
ADOPTION_MS = 10_000
"""How long a fork waits until the agent is its parent; far above the microseconds that it takes."""
PR_SET_PDEATHSIG = 1

ALWAYS = (
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.oinspect",
    "IPython.core.pylabtools",
    "IPython.extensions.storemagic",
    "IPython.utils.wildcard",
    "asyncio",
    "ipykernel.comm",
    "ipykernel.debugger",
    "ipykernel.displayhook",
    "ipykernel.iostream",
    "ipykernel.kernelapp",
    "jedi",
    "jedi.api",
    "multiprocessing.util",
    "sqlite3",
)
"""What a fresh ipykernel imports sooner or later; absent ones are skipped."""
REPLICA = "notebookos_ext.kernel.app"
"""Without this no replica can run: when it cannot be imported, the template ends and says why."""


class Fork(NamedTuple):
    """One request to fork, with the descriptors that came with it."""

    request: ForkReplica
    link: int
    log: int


def preload(modules: Sequence[str]) -> None:
    """Import modules; one that cannot be imported is named in the log and left out."""
    # matplotlib reads this once, at import: a preloaded one must draw into the notebook too.
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"the template does without {name}: {error}", file=sys.stderr)  # noqa: T201
        except Exception:  # noqa: BLE001 — a user's module must not keep the kernel from starting
            print(f"the template does without {name}:", file=sys.stderr)  # noqa: T201
            traceback.print_exc()
    threads = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
    if threads:
        # A lock that such a thread holds during a fork stays locked in the replica.
        print(  # noqa: T201
            f"a preloaded module has started threads ({', '.join(threads)}); "
            "replicas may hang: take it off the list of modules to preload",
            file=sys.stderr,
        )


def is_installed(name: str) -> bool:
    """Whether a module can be found without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def receive(connection: socket.socket, decoder: FrameDecoder[ForkReplica]) -> list[Fork]:
    """Wait for requests; an empty list means that the agent closed its end."""
    descriptors: list[int] = []
    while True:
        data, passed, _flags, _address = socket.recv_fds(
            connection, READ_BYTES, 8 * DESCRIPTORS_PER_FORK
        )
        descriptors += passed
        for descriptor in passed:
            os.set_inheritable(descriptor, False)
        if not data:
            return []
        requests = decoder.feed(data)
        if requests and len(descriptors) >= DESCRIPTORS_PER_FORK * len(requests):
            pairs = zip(descriptors[::2], descriptors[1::2], strict=True)
            return [Fork(r, *pair) for r, pair in zip(requests, pairs, strict=True)]


def fork_replica(fork: Fork) -> bool:
    """Fork twice. True in the replica, False in the template."""
    middle = os.fork()
    if middle:
        os.close(fork.link)
        os.close(fork.log)
        os.waitpid(middle, 0)
        return False
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        traceback.print_exc()
        os._exit(1)
    return True


def die_with(agent_pid: int) -> None:
    """Wait to be adopted by the agent, then have the system kill this process when it dies.

    Raises RuntimeError when the agent never becomes the parent: it died, or is no sub-reaper.
    """
    for _ in range(ADOPTION_MS):
        if os.getppid() == agent_pid:
            break
        select.select([], [], [], 0.001)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")
    # The agent may have died before the line above: then nobody would send the signal.
    if os.getppid() != agent_pid:
        raise RuntimeError(
            f"the replica's parent is process {os.getppid()}, not the host agent {agent_pid}"
        )


def search_path(current: Sequence[str], old_entries: str, new_entries: str) -> list[str]:
    """`sys.path` as a fresh interpreter with the PYTHONPATH `new_entries` would have it.

    Entries that only the template's own PYTHONPATH brought (our package, in an interpreter where it
    is not installed) stay, but last.
    """
    new = [entry for entry in new_entries.split(os.pathsep) if entry]
    ours = [e for e in old_entries.split(os.pathsep) if e and e not in new]
    middle = [entry for entry in current if entry not in new and entry not in ours]
    return [*new, *middle, *(entry for entry in ours if entry in current)]


def enter(fork: Fork) -> LaunchReplica:
    """Make this process look like one started with the replica's environment and folder.

    A pre-warmed one first waits until it is told which replica to be; its launch is returned.
    """
    request = fork.request
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    die_with(request.agent_pid)
    with Path(os.devnull).open("rb") as null:
        os.dup2(null.fileno(), 0)
    log_to(fork.log)
    launch = request.launch or wait_for_launch(fork.link)
    replace_environment(launch.env)
    try:
        os.chdir(launch.cwd)
    except OSError as error:
        home = str(Path.home())
        print(  # noqa: T201 — stderr is the replica's log
            f"the notebook's folder {launch.cwd} cannot be entered ({error.strerror}); "
            f"the replica starts in {home} instead",
            file=sys.stderr,
        )
        os.chdir(home)
    sys.argv = [sys.argv[0]]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        # `random` reseeds itself after a fork; torch starts from a constant in every process.
        numpy.random.seed()
    return launch


def log_to(descriptor: int) -> None:
    """Let what is printed go there."""
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def wait_for_launch(link: int) -> LaunchReplica:
    """Say that this pre-warmed replica is there, and wait for its launch.

    Ends the process when the agent closes the link instead: nobody needs it.
    """
    decoder: FrameDecoder[BecomeReplica] = FrameDecoder(BecomeReplica)
    connection = socket.socket(fileno=link)
    # Until its launch comes it has no terminal to be interrupted from.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        hello = FromReplica(0, ReplicaHello(os.getpid(), sys.executable, ""))
        connection.sendall(encode_frame(hello))
        while True:
            data, passed, _flags, _address = socket.recv_fds(connection, READ_BYTES, 1)
            for descriptor in passed:
                log_to(descriptor)
            if not data:
                break
            if told := decoder.feed(data):
                signal.signal(signal.SIGINT, signal.default_int_handler)
                return told[0].launch
    except OSError:
        pass
    finally:
        connection.detach()
    os._exit(0)


def replace_environment(env: Mapping[str, str]) -> None:
    """Replace `os.environ`; the hash seed stays, since the process already runs with it."""
    seed = os.environ.get("PYTHONHASHSEED")
    old_path = os.environ.get("PYTHONPATH", "")
    os.environ.clear()
    os.environ.update(env)
    if seed is not None:
        os.environ["PYTHONHASHSEED"] = seed
    sys.path[:] = search_path(sys.path, old_path, env.get("PYTHONPATH", ""))


def serve(connection: socket.socket) -> Fork | None:
    """Fork replicas until the agent closes the socket; in a replica, return what it is to be."""
    decoder: FrameDecoder[ForkReplica] = FrameDecoder(ForkReplica)
    while forks := receive(connection, decoder):
        for place, fork in enumerate(forks):
            if fork_replica(fork):
                for later in forks[place + 1 :]:
                    os.close(later.link)
                    os.close(later.log)
                return fork
    return None


def main(arguments: Sequence[str]) -> None:
    """Run the template; in each fork, run its replica."""
    # `python -m` puts the agent's working directory first; user code must not import from there.
    del sys.path[0]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(arguments[0]))
    os.set_inheritable(connection.fileno(), False)
    replica = importlib.import_module(REPLICA)
    preload([name for name in ALWAYS if is_installed(name)])
    preload(arguments[1:])
    gc.collect()
    gc.freeze()
    fork = serve(connection)
    if fork is None:
        return
    connection.close()
    launch = enter(fork)
    replica.run_replica(launch, fork.request.socket_folder, fork.link)


if __name__ == "__main__":
    main(sys.argv[1:])
