"""Jupyter's `KernelProvisioner`: one distributed kernel where Jupyter expects one process.

Every jupyter_client user goes through here: the server, nbclient, papermill, consoles. Their event
loops come and go, so nothing of asyncio is kept between calls: all work is on the controller's
thread, and these methods only await its futures (findings on Jupyter, 4.3 and 5.1).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import Any, cast

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase
from tornado import web

from notebookos_ext.cluster.model import ExecutorPreference, KernelId, KernelSpec
from notebookos_ext.errors import NotebookOSError
from notebookos_ext.live import cluster_runtime
from notebookos_ext.live.cluster_runtime import ClusterRuntime
from notebookos_ext.live.identity import asking_user
from notebookos_ext.live.kernel_records import LaunchPlan
from notebookos_ext.live.kernelspecs import check_interpreter, interpreter
from notebookos_ext.live.notebook_file import overridden, preference, read_settings
from notebookos_ext.notebook_settings import NotebookSettings
from notebookos_ext.settings import Settings

LOOK_S = 0.1
SHUTDOWN_WAIT_S = 10.0
_NOT_FOR_REPLICAS = ("JPY_PARENT_PID", "PYTHONHASHSEED")
_PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")

log = logging.getLogger(__name__)


class KernelNotStarted(web.HTTPError):
    """In a server: the sentence, with the HTTP status that belongs to it."""

    def __init__(self, error: NotebookOSError) -> None:
        super().__init__(error.status, error.message)
        self.sentence = f"{error.message} {error.hint}".strip()

    def __str__(self) -> str:
        return self.sentence


class NotebookOSProvisioner(KernelProvisionerBase):
    """Stands for the kernel's process: alive while the kernel lives or can be brought back."""

    _runtime: ClusterRuntime | None = None
    _launched = False
    _cwd = ""
    _asked: NotebookSettings | None = None
    """What notebook and environment asked for at the last launch."""

    @property
    def _kernel(self) -> KernelId:
        return KernelId(str(self.kernel_id))

    @property
    def has_process(self) -> bool:
        """True from launch until the end was waited for."""
        return self._launched

    async def poll(self) -> int | None:
        """None while the kernel lives: lost replicas, hosts and agents are brought back."""
        if not self._launched or self._runtime is None:
            return 0
        return self._runtime.controller.exit_code(self._kernel)

    async def wait(self) -> int | None:
        """Until the kernel was shut down or killed; there are no pipes to close."""
        # No event can wake this: whose loop would it be?
        while (code := await self.poll()) is None:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        self._launched = False
        return code

    async def send_signal(self, signum: int) -> None:
        """SIGINT interrupts what waits or runs; SIGTERM and SIGKILL end the kernel."""
        if signum == signal.SIGINT:
            if self._launched and self._runtime is not None:
                future = self._runtime.controller.interrupt_soon(self._kernel)
                await self._quietly(asyncio.wrap_future(future))
        elif signum in (signal.SIGTERM, signal.SIGKILL):
            self._end(-signum)
        elif signum:
            log.warning("signal %d does not reach a NotebookOS kernel; it was ignored", signum)

    async def kill(self, restart: bool = False) -> None:  # noqa: ARG002 - what comes next decides
        """From now on it counts as dead; `cleanup` or the next launch does the rest."""
        self._end(-signal.SIGKILL)

    async def terminate(self, restart: bool = False) -> None:  # noqa: ARG002 - as for kill
        """The same, more politely."""
        self._end(-signal.SIGTERM)

    async def shutdown_requested(self, restart: bool = False) -> None:
        """The manager has sent shutdown_request: end the kernel, or begin to restart it."""
        if self._launched and self._runtime is not None:
            future = self._runtime.controller.shutdown(self._kernel, restart=restart)
            await self._quietly(asyncio.wrap_future(future))

    async def cleanup(self, restart: bool = False) -> None:
        """Without `restart`: nothing of the kernel is left, ports included."""
        if restart or self._runtime is None:
            return
        runtime, self._runtime = self._runtime, None
        self._launched = False
        try:
            await self._quietly(asyncio.wrap_future(runtime.controller.stop_kernel(self._kernel)))
            try:
                runtime.router.close_kernel(self._kernel)
            except NotebookOSError as error:
                log.debug("the router is gone: %s", error)
        finally:
            cluster_runtime.release(runtime)

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Find or start the cluster and bind the kernel's front ports, before anything else."""
        try:
            if self._runtime is None:
                self._runtime = cluster_runtime.acquire(_private_settings())
            command = self._open_front(**kwargs)
        except NotebookOSError as error:
            await self._undo(error)
        kwargs.pop("extra_arguments", None)
        return await super().pre_launch(cmd=command, **kwargs)

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Ask for the kernel; done when it is accepted, its replicas follow.

        The same again for a kernel that runs: a restart, with an empty namespace.
        """
        try:
            spec, plan, changes = self._plan(cmd, **kwargs)
            assert self._runtime is not None  # noqa: S101 - pre_launch came before
            if plan.python != sys.executable:
                await asyncio.to_thread(check_interpreter, plan.python)
            await asyncio.wrap_future(self._runtime.controller.start_kernel(spec, plan, changes))
        except NotebookOSError as error:
            await self._undo(error)
        self._cwd = plan.cwd
        self._launched = True
        return self.connection_info

    async def get_provisioner_info(self) -> dict[str, Any]:
        """What a later manager needs to find the kernel."""
        info = await super().get_provisioner_info()
        info["cwd"] = self._cwd
        return info

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """The inverse; the cluster must be the one of this process."""
        await super().load_provisioner_info(provisioner_info)
        self._cwd = str(provisioner_info.get("cwd", ""))

    def get_shutdown_wait_time(self, recommended: float = 5.0) -> float:
        """Several processes take longer to end than one."""
        return max(recommended, SHUTDOWN_WAIT_S)

    def resolve_path(self, path: str) -> str | None:
        """An existing file, relative to the kernel's working directory."""
        found = Path(path).expanduser()
        if not found.is_absolute() and self._cwd:
            found = (Path(self._cwd) / found).resolve()
        return found.as_posix() if found.exists() else None

    # ---- inside -----------------------------------------------------------------------------

    def _end(self, code: int) -> None:
        if self._runtime is not None:
            self._runtime.controller.kill(self._kernel, code)

    @staticmethod
    async def _quietly(future: asyncio.Future[None]) -> None:
        """The cluster may have been stopped before the kernel's owner; that is no error then."""
        try:
            await future
        except NotebookOSError as error:
            log.debug("%s", error)

    async def _undo(self, error: NotebookOSError) -> None:
        """Leave nothing half-done, then raise the sentence in the form its hearer understands."""
        in_server = cluster_runtime.in_server()
        await self.cleanup(restart=False)
        if self.parent is not None:
            self.parent.cleanup_connection_file()
        if in_server:
            raise KernelNotStarted(error) from error
        raise error

    def _open_front(self, **kwargs: Any) -> list[str]:
        """Bind the ports, write the connection file, format the command."""
        assert self._runtime is not None  # noqa: S101 - the caller has set it
        manager = self.parent
        if manager is None:
            info = self._runtime.router.open_kernel(
                self._kernel, session_key=secrets.token_bytes(32)
            )
            self.connection_info = cast("KernelConnectionInfo", info)
            return [*self.kernel_spec.argv, *kwargs.get("extra_arguments", [])]
        info = self._runtime.router.open_kernel(
            self._kernel,
            session_key=manager.session.key,
            signature_scheme=manager.session.signature_scheme,
            ip=manager.ip,
            transport=manager.transport,
            ipc_folder=str(self._runtime.folder.sockets),
        )
        manager.ip = info["ip"]
        for port in _PORTS:
            setattr(manager, port, info[port])
        session = kwargs.get("env", {}).get("JPY_SESSION_NAME", "")
        manager.write_connection_file(jupyter_session=session)
        self.connection_info = manager.get_connection_info()
        command: list[str] = manager.format_kernel_cmd(
            extra_arguments=kwargs.get("extra_arguments", [])
        )
        return command

    def _plan(
        self, cmd: list[str], **kwargs: Any
    ) -> tuple[KernelSpec, LaunchPlan, NotebookSettings]:
        """What the notebook, the environment and the settings ask for; and what of it is new.

        A restart keeps what the user set meanwhile, unless the file says something else than at
        the last launch. Raises InvalidRequest.
        """
        assert self._runtime is not None  # noqa: S101 - pre_launch came before
        settings = self._runtime.settings
        env = {k: v for k, v in kwargs["env"].items() if k not in _NOT_FOR_REPLICAS}
        name = getattr(self.parent, "kernel_name", "") or self.kernel_spec.display_name
        session = env.get("JPY_SESSION_NAME", "")
        asked = overridden(read_settings(Path(session)), env)
        spec = KernelSpec(
            kernel=self._kernel,
            replica_count=settings.replica_count
            if asked.replica_count is None
            else asked.replica_count,
            gpus_per_cell=settings.gpus_per_cell
            if asked.gpus_per_cell is None
            else asked.gpus_per_cell,
            notebook_path=self._relative(session),
            display_name=self.kernel_spec.display_name,
            executor_preference=ExecutorPreference(preference(env, settings.executor_preference)),
            memory_bytes=asked.memory_bytes or 0,
            gpu_memory_bytes=asked.gpu_memory_bytes or 0,
            gpu_type=asked.gpu_type or "",
            gpu_wait_s=asked.gpu_wait_s or 0.0,
            user=asking_user() or self._runtime.user,
        )
        plan = LaunchPlan(
            name=name,
            python=interpreter(cmd, name=name),
            env=env,
            cwd=str(kwargs.get("cwd") or Path.cwd()),
            session_key=cast("bytes", self.connection_info["key"]),
            sync=asked.sync or "",
        )
        before, self._asked = self._asked or asked, asked
        return spec, plan, asked.news(before)

    def _relative(self, session: str) -> str:
        """The notebook's path as the server's users know it."""
        root = getattr(getattr(self.parent, "parent", None), "root_dir", "")
        path = Path(session)
        if session and root and path.is_relative_to(root):
            return path.relative_to(root).as_posix()
        return session


def _private_settings() -> Settings:
    """A cluster of its own needs no more hosts than its first kernel has replicas."""
    replicas = overridden(NotebookSettings(), dict(os.environ)).replica_count
    defaults = Settings()
    return dataclasses.replace(defaults, hosts=replicas or defaults.replica_count)
