"""The original's workload templates in JSON, both dialects of its keys.

The newer keys are `cpus`, `memory`, `gpus`, the older `millicpus`, `mem_usage_mb`, `num_gpus`;
times are in ticks of 60 s; the GPUs that count are the entries of `gpu_utilizations`; hand-made
templates give millicpus and MB where those derived from traces give cores and GB. Small numbers
alone do not tell them apart: hand-made ones of the original ask for 100 millicpus.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from notebookos_ext.errors import InvalidRequest
from notebookos_ext.simulation.delays import Delays
from notebookos_ext.simulation.faults import Faults
from notebookos_ext.simulation.workload import (
    MOST_BYTES,
    PlannedSession,
    Workload,
    check_workload,
    close_loop,
)

TICK_S = 60.0
CORES_BELOW = 256
"""Cores and GB it is when no `cpus` reaches this, and they are not whole or sessions say their most
as those from traces do; else millicpus and MB.
"""


class Utilization(msgspec.Struct, frozen=True):
    """One GPU of a training; that it is listed is what counts."""

    utilization: float = 0.0


class Resources(msgspec.Struct, frozen=True):
    """What trace-derived templates say of a session."""

    cpus: float = 0.0
    memory: float = 0.0
    gpus: int = 0


class Training(msgspec.Struct, frozen=True):
    """One cell, in either dialect. Unknown keys (state of a user interface) are left alone."""

    start_tick: float
    duration_in_ticks: float
    gpu_utilizations: tuple[Utilization, ...] = ()
    cpus: float = 0.0
    memory: float = 0.0
    gpus: int | None = None
    millicpus: float = 0.0
    mem_usage_mb: float = 0.0
    num_gpus: int | None = None

    @property
    def gpu_count(self) -> int:
        """How many GPUs the training uses."""
        return len(self.gpu_utilizations) or self.gpus or self.num_gpus or 0


class TemplateSession(msgspec.Struct, frozen=True):
    """One session of a template."""

    id: str
    start_tick: float
    stop_tick: float
    trainings: tuple[Training, ...] = ()
    max_resource_request: Resources | None = None


class RemoteStorage(msgspec.Struct, frozen=True, rename="camel"):
    """The store a template asks for, rates in bytes/s; 0 where it does not say."""

    name: str = ""
    download_rate: float = 0.0
    upload_rate: float = 0.0
    download_rate_variance_percentage: float = 0.0
    upload_rate_variance_percentage: float = 0.0
    read_failure_chance_percentage: float = 0.0
    write_failure_chance_percentage: float = 0.0


class Template(msgspec.Struct, frozen=True):
    """The file; its top level is written in camelCase or in snake_case."""

    sessions: tuple[TemplateSession, ...]
    title: str = msgspec.field(default="", name="workloadTitle")
    title_snake: str = msgspec.field(default="", name="workload_title")
    store: RemoteStorage | None = msgspec.field(default=None, name="remoteStorageDefinition")
    store_snake: RemoteStorage | None = msgspec.field(
        default=None, name="remote_storage_definition"
    )


def read_template(path: Path) -> Workload:
    """The workload of a template file. Raises InvalidRequest."""
    try:
        template = msgspec.json.decode(path.read_bytes(), type=Template)
    except OSError as problem:
        raise InvalidRequest(f"cannot read {path}: {problem.strerror}") from problem
    except msgspec.DecodeError as problem:
        raise InvalidRequest(f"{path} is not a workload template: {problem}") from problem
    if not template.sessions:
        raise InvalidRequest(f"{path} has no sessions; a workload needs at least one")
    cores = _gives_cores(template)
    sessions = sorted(
        (_session(path, session, cores=cores) for session in template.sessions),
        key=lambda session: session.start_s,
    )
    title = template.title or template.title_snake or path.stem
    horizon_s = max(session.end_s for session in sessions)
    return check_workload(
        Workload(path.stem, horizon_s, tuple(sessions), f"{title} (the original's template)")
    )


def read_store(path: Path) -> RemoteStorage | None:
    """The store that the template asks for, if it names one. Raises InvalidRequest."""
    try:
        template = msgspec.json.decode(path.read_bytes(), type=Template)
    except (OSError, msgspec.DecodeError) as problem:
        raise InvalidRequest(f"{path} is not a workload template: {problem}") from problem
    return template.store or template.store_snake


def with_store(delays: Delays, store: RemoteStorage) -> Delays:
    """The delays with what the template says of its store. Raises InvalidRequest."""
    spreads = (store.download_rate_variance_percentage, store.upload_rate_variance_percentage)
    spread = max(spreads)
    if not (
        0 <= min(spreads) <= spread < 100 and store.download_rate >= 0 and store.upload_rate >= 0
    ):
        raise InvalidRequest(
            f"the template's store {store.name!r} has rates of {store.download_rate:g} and "
            f"{store.upload_rate:g} bytes/s that vary by {spread:g} %; rates must be 0 or more "
            "and vary by less than 100 %"
        )
    return msgspec.structs.replace(
        delays,
        store_download_bytes_per_s=store.download_rate or delays.store_download_bytes_per_s,
        store_upload_bytes_per_s=store.upload_rate or delays.store_upload_bytes_per_s,
        store_rate_spread=spread / 100 or delays.store_rate_spread,
    )


def with_store_failures(faults: Faults, store: RemoteStorage) -> Faults:
    """The faults with the share of transfers that the template lets fail. Raises InvalidRequest."""
    chances = (store.read_failure_chance_percentage, store.write_failure_chance_percentage)
    percentage = max(chances)
    if not 0 <= min(chances) <= percentage < 100:
        raise InvalidRequest(
            f"the template's store {store.name!r} fails for {min(chances):g} to "
            f"{percentage:g} % of transfers; it is tried until it works, so use 0 to below 100"
        )
    return msgspec.structs.replace(faults, store_failure_share=percentage / 100)


def _gives_cores(template: Template) -> bool:
    all_cpus = [training.cpus for s in template.sessions for training in s.trainings]
    from_trace = any(s.max_resource_request is not None for s in template.sessions) or any(
        not cpus.is_integer() for cpus in all_cpus
    )
    return from_trace and max(all_cpus, default=0.0) < CORES_BELOW


def _session(path: Path, session: TemplateSession, *, cores: bool) -> PlannedSession:
    trainings = sorted(session.trainings, key=lambda training: training.start_tick)
    for training in trainings:
        if training.duration_in_ticks <= 0:
            raise InvalidRequest(
                f"{path}: a training of session {session.id} lasts "
                f"{training.duration_in_ticks} ticks; use 1 or more"
            )
    cells = close_loop(
        [(t.start_tick * TICK_S, t.duration_in_ticks * TICK_S, t.gpu_count) for t in trainings]
    )
    cpus, memory_bytes = _host_needs(trainings, session.max_resource_request, cores=cores)
    most = session.max_resource_request
    gpus = max([t.gpu_count for t in trainings] + [most.gpus if most is not None else 0])
    start_s, end_s = session.start_tick * TICK_S, session.stop_tick * TICK_S
    return PlannedSession(session.id, start_s, end_s, gpus, cells, cpus, memory_bytes)


def _host_needs(
    trainings: list[Training], most: Resources | None, *, cores: bool
) -> tuple[float, int]:
    """Cores and bytes that the session needs at most."""
    older = max((t.millicpus for t in trainings), default=0.0) / 1000
    older_bytes = max((t.mem_usage_mb for t in trainings), default=0.0) * 1e6
    cpus = max([t.cpus for t in trainings] + [most.cpus if most is not None else 0.0])
    memory = max([t.memory for t in trainings] + [most.memory if most is not None else 0.0])
    per_core, unit_bytes = (1.0, 1e9) if cores else (1000.0, 1e6)
    return max(older, cpus / per_core), round(
        min(MOST_BYTES, max(older_bytes, memory * unit_bytes))
    )
