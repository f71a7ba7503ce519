"""The composition root: configuration to `Settings`, then build, start and stop the cluster.

The only file that reads configuration. A cluster that cannot start takes the server down with it in
no case: the REST API and every kernel start then say why.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_data_dir
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from prometheus_client import REGISTRY
from traitlets import Bool, Dict, Float, Int, List, Unicode

from notebookos_ext.errors import InvalidSettings, NotebookOSError
from notebookos_ext.handlers.base import REQUEST_SCHEMA_FILE
from notebookos_ext.handlers.cluster import ClusterHandler
from notebookos_ext.handlers.hosts import HostDrainHandler, HostsHandler
from notebookos_ext.handlers.kernels import (
    KernelExecutorHandler,
    KernelHandler,
    KernelMigrationHandler,
    KernelUnprotectedHandler,
)
from notebookos_ext.handlers.sessions import (
    REVIVAL,
    KernelsHandler,
    OneSessionHandler,
    SessionsHandler,
)
from notebookos_ext.handlers.specification import SpecificationHandler
from notebookos_ext.handlers.state_files import (
    ExportHandler,
    ImportHandler,
    InspectionHandler,
)
from notebookos_ext.handlers.store import StoreSweepHandler
from notebookos_ext.handlers.usage import TimelineHandler, UsageHandler
from notebookos_ext.live import cluster_runtime
from notebookos_ext.live.cluster_runtime import ClusterRuntime
from notebookos_ext.live.revival import Revival
from notebookos_ext.live.telemetry import SCHEMA_FILE, SCHEMA_ID, Telemetry
from notebookos_ext.live.websocket import NoDelayWebsocketConnection
from notebookos_ext.settings import SERVER_LEASE_S, Settings, names, reject_unknown

_DEFAULTS = Settings()
_HOST_ID = r"(?P<host_id>[^/]+)"
_SESSION_ID = r"(?P<session_id>\w+-\w+-\w+-\w+-\w+)"
_KERNEL_ID = r"(?P<kernel_id>[^/]+)"


class _CheckedLater:
    """Takes any value: `Settings.validate` says in one sentence what is wrong with it.

    A trait that refuses a value makes the server log where in traitlets that happened.
    """

    def validate(self, _obj: object, value: Any) -> Any:
        return value


class WholeNumber(_CheckedLater, Int[Any, Any]):
    """A whole number."""


class Number(_CheckedLater, Float[Any, Any]):
    """A number."""


class Text(_CheckedLater, Unicode[Any, Any]):
    """Text."""


class YesOrNo(_CheckedLater, Bool[Any, Any]):
    """True or False."""


class Names(_CheckedLater, List[Any]):
    """A list of names."""

    def from_string(self, s: str) -> Any:
        """One name needs no brackets on a command line; traitlets reads it as nothing at all."""
        return super().from_string(s) if s.strip()[:1] in ("[", "(") else [s]


class Choices(_CheckedLater, Dict):
    """Options by name; on the command line as a JSON object, or one by one: `a.b=1`."""

    def from_string(self, s: str) -> Any:
        """A single text of the command line."""
        return self.from_string_list([s])

    def from_string_list(self, s_list: Sequence[str]) -> Any:
        """Every text of the command line; a list of what is neither, which is refused later."""
        found: dict[str, Any] = {}
        for text in s_list:
            try:
                given = json.loads(text) if text.lstrip().startswith("{") else _one_choice(text)
            except ValueError:
                return list(s_list)
            _merge(found, given)
        return found


def _one_choice(text: str) -> dict[str, Any]:
    """`a.b=1` as `{"a": {"b": 1}}`. Raises ValueError when it is not of that form."""
    path, equals, value = text.partition("=")
    names = path.strip().split(".")
    if not equals or not all(names):
        raise ValueError(text)
    try:
        found = json.loads(value)
    except ValueError:
        found = value
    for name in reversed(names):
        found = {name: found}
    return dict(found)


def _merge(into: dict[str, Any], given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if isinstance(value, Mapping) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = value


class NotebookOSApp(ExtensionApp):
    """The server extension. Values are checked by `Settings.validate`, with a sentence each."""

    name = "notebookos_ext"
    load_other_extensions = True

    hosts = WholeNumber(_DEFAULTS.hosts, config=True, help="Virtual hosts at the start.")
    max_hosts = WholeNumber(_DEFAULTS.max_hosts, config=True, help="As many hosts as there may be.")
    replica_count = WholeNumber(
        _DEFAULTS.replica_count,
        config=True,
        help="Replicas of a kernel whose notebook does not say otherwise: 1, 3 or 5.",
    )
    gpus_per_cell = WholeNumber(
        _DEFAULTS.gpus_per_cell,
        config=True,
        help="GPUs of a GPU cell in a notebook that does not say otherwise.",
    )
    gpus = Text(
        _DEFAULTS.gpus,
        config=True,
        help="auto (real GPUs when there are any, else simulated ones), simulated, or none.",
    )
    simulated_gpus_per_host = WholeNumber(
        _DEFAULTS.simulated_gpus_per_host, config=True, help="Simulated GPUs of a virtual host."
    )
    policy = Text(
        _DEFAULTS.policy,
        config=True,
        help="replicated (GPUs bound while a cell runs), pooled (one replica, which goes where GPUs"
        " are free, out of a pool of pre-warmed ones), reservation (one replica keeps them) or "
        "batch (a fresh replica for every cell).",
    )
    scheduling = Choices(
        config=True,
        help="What the scheduler may do beyond its policy, as options by name: autoscaler (hosts "
        "come and go), prewarm (replicas that have started before anybody needs them), quota, "
        "quotas, weights and priorities (of users), subscription_limit, rebalance, consolidate, "
        "hints. "
        "In a file: scheduling = {'quota': 4, 'autoscaler': {'least_hosts': 2}}; on the command "
        "line: --NotebookOSApp.scheduling autoscaler.least_hosts=2. The README lists them all.",
    )
    executor_preference = Text(
        _DEFAULTS.executor_preference,
        config=True,
        help="last: the replica that ran the last cell; rotate: another one for every cell.",
    )
    sync = Text(
        _DEFAULTS.sync,
        config=True,
        help="What is committed before a reply: log-before-reply, after-reply, all-before-reply.",
    )
    consensus_engine = Text(
        _DEFAULTS.consensus_engine,
        config=True,
        help="raft, or raftos: the published package, which is not durable, for comparison.",
    )
    reply_budget_ms = WholeNumber(
        _DEFAULTS.reply_budget_ms,
        config=True,
        help="How long a reply may wait for its commit, in milliseconds; then it goes and says so.",
    )
    preload = Names(
        Unicode(), config=True, help="Modules to import before replicas are forked, such as numpy."
    )
    state_folder = Text(
        config=True, help="Logs, keys, store; empty: notebookos in Jupyter's data folder."
    )
    checkpoint_store = Text(
        config=True,
        help="Checkpoint store: a folder, or s3://bucket/prefix?…; empty: in the state folder.",
    )
    sweep_hours = Number(
        _DEFAULTS.sweep_hours,
        config=True,
        help="How often chunks that nothing names go from the store, in hours; 0: when asked.",
    )
    sweep_spared_hours = Number(
        _DEFAULTS.sweep_spared_hours,
        config=True,
        help="Chunks that were put or looked for within so many hours are not swept.",
    )
    compact_entries = WholeNumber(
        _DEFAULTS.compact_entries,
        config=True,
        help="A kernel's log becomes a snapshot when it has grown by so many entries, …",
    )
    compact_bytes = WholeNumber(_DEFAULTS.compact_bytes, config=True, help="… or by so many bytes.")
    stopped_replica_s = Number(
        _DEFAULTS.stopped_replica_s,
        config=True,
        help="A replica whose process stands still (SIGSTOP) for so long is ended; 0: never.",
    )
    journal_file = Text(
        config=True,
        help="Write every event of the scheduler there, for replay in the simulator.",
    )
    keep_kernels_days = Number(
        _DEFAULTS.keep_kernels_days,
        config=True,
        help="How long kernels are kept after the end of their server, in days; 0: not at all.",
    )
    idle_minutes = Number(
        _DEFAULTS.idle_minutes,
        config=True,
        help="A kernel that nobody uses for so many minutes goes into the checkpoint store, from "
        "where it comes back with its variables when it is used again; 0: never.",
    )
    user = Text(
        config=True,
        help="Whose kernels and usage it is where Jupyter knows nobody by name; empty: that of "
        "JupyterHub, else of the operating system.",
    )
    lease_s = Number(
        SERVER_LEASE_S,
        config=True,
        help="How long host agents live on when the server is gone, in seconds.",
    )
    poll_s = Number(
        _DEFAULTS.poll_s, config=True, help="How often the use of the GPUs is read, in seconds."
    )
    tcp_nodelay = YesOrNo(
        True,
        config=True,
        help="Send small WebSocket frames of every kernel at once (40 ms less per cell).",
    )

    _runtime: ClusterRuntime | None = None
    _telemetry: Telemetry | None = None

    def initialize_settings(self) -> None:
        """Build the cluster and start it; it comes up while the server goes on."""
        send_small_frames_at_once(self._server.web_app.settings, wanted=self.tcp_nodelay is True)
        self._server.event_logger.register_event_schema(SCHEMA_FILE)
        self._server.event_logger.register_event_schema(REQUEST_SCHEMA_FILE)
        try:
            self._telemetry = Telemetry(
                # Extensions are loaded before the server's loop runs.
                loop=self._server.io_loop.asyncio_loop,
                emit=self._emit,
            )
            self._runtime = ClusterRuntime(self._settings(), on_change=self._telemetry.changed)
            # A server without a terminal ends on Ctrl-C without stopping its extensions.
            atexit.register(self._end_cluster)
            self._runtime.start()
            REGISTRY.register(self._runtime.observers.metrics)
        except NotebookOSError as error:
            # The sentence is for people; where it was raised helps none of them.
            self.log.error("NotebookOS does not run in this server: %s", error)  # noqa: TRY400
            cluster_runtime.install(None, error)
        else:
            cluster_runtime.install(self._runtime)
            revival = Revival(self._server)
            self._server.web_app.settings[REVIVAL] = revival
            self._server.io_loop.add_callback(revival.run, self._runtime)

    def initialize_handlers(self) -> None:
        """The URL table."""
        self.handlers.extend(
            [
                (r"/notebookos/api/cluster", ClusterHandler),
                (rf"/notebookos/api/kernels/{_KERNEL_ID}", KernelHandler),
                (rf"/notebookos/api/kernels/{_KERNEL_ID}/migration", KernelMigrationHandler),
                (
                    rf"/notebookos/api/kernels/{_KERNEL_ID}/continue-unprotected",
                    KernelUnprotectedHandler,
                ),
                (rf"/notebookos/api/kernels/{_KERNEL_ID}/executor", KernelExecutorHandler),
                (r"/notebookos/api/hosts", HostsHandler),
                (rf"/notebookos/api/kernels/{_KERNEL_ID}/export", ExportHandler),
                (r"/notebookos/api/state-files/inspection", InspectionHandler),
                (r"/notebookos/api/state-files/import", ImportHandler),
                (rf"/notebookos/api/hosts/{_HOST_ID}/drain", HostDrainHandler),
                (r"/notebookos/api/store/sweep", StoreSweepHandler),
                (r"/notebookos/api/usage", UsageHandler),
                (r"/notebookos/api/usage/timeline", TimelineHandler),
                (r"/notebookos/api/spec\.json", SpecificationHandler),
                (r"/api/kernels", KernelsHandler),
                (r"/api/sessions", SessionsHandler),
                (rf"/api/sessions/{_SESSION_ID}", OneSessionHandler),
            ]
        )

    async def stop_extension(self) -> None:
        """End the cluster with the server: agents, replicas, sockets."""
        if self._telemetry is not None:
            self._telemetry.close()
        await asyncio.to_thread(self._end_cluster)
        cluster_runtime.install(None)

    def _end_cluster(self) -> None:
        """Once; from any thread."""
        atexit.unregister(self._end_cluster)
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            # Nothing to take back when the start failed before it was registered.
            with contextlib.suppress(KeyError):
                REGISTRY.unregister(runtime.observers.metrics)
            runtime.stop()

    @property
    def _server(self) -> Any:
        """The server that this extends; there is one whenever our methods are called."""
        return self.serverapp

    def _settings(self) -> Settings:
        """Checked settings. Raises InvalidSettings for a wrong value or a name that is none."""
        section = type(self).__name__
        reject_unknown(self.config.get(section, {}), self.traits(config=True), where=section)
        values = {name: getattr(self, name) for name in names()}
        if isinstance(self.preload, list):
            values["preload"] = tuple(self.preload)
        if isinstance(self.scheduling, Mapping):
            # A part of the configuration that was merged from several files is no plain dict.
            values["scheduling"] = _plain(self.scheduling)
        if self.state_folder == "":
            values["state_folder"] = str(Path(jupyter_data_dir()) / "notebookos")
        if not isinstance(self.tcp_nodelay, bool):
            raise InvalidSettings(f"tcp_nodelay is {self.tcp_nodelay!r}; it must be True or False")
        return Settings(**values).validate()

    def _emit(self, data: dict[str, str | None]) -> None:
        self._server.event_logger.emit(schema_id=SCHEMA_ID, data=data)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return value


def send_small_frames_at_once(settings: dict[str, Any], *, wanted: bool) -> None:
    """Turn on TCP_NODELAY for every kernel, where nobody has chosen another connection class."""
    default = settings.get("kernel_websocket_connection_class")
    if wanted and default is ZMQChannelsWebsocketConnection:
        settings["kernel_websocket_connection_class"] = NoDelayWebsocketConnection
