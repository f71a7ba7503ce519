"""What one notebook may ask for: the `notebookos` part of its metadata, checked value by value.

The same checks hold for a notebook file, for the environment of a headless run and for a request of
the browser. Every setting may be left out, which leaves the choice to the cluster.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

from notebookos_ext.errors import InvalidSettings
from notebookos_ext.settings import REPLICA_COUNTS, SYNCS

KEY = "notebookos"
GIB = 1024**3
GIB_MOST = 1024.0**2
GPU_WAIT_MOST_S = 30 * 86_400.0
TYPE_CHARACTERS = 80


@dataclasses.dataclass(frozen=True)
class NotebookSettings:
    """What one notebook asks for; None where it leaves the choice to the cluster."""

    replica_count: int | None = None
    gpus_per_cell: int | None = None
    gpu_type: str | None = None
    """Only hosts whose GPUs are of this type; empty: any."""
    gpu_memory_gib: float | None = None
    """How much memory each of its GPUs must have; 0: any."""
    memory_gib: float | None = None
    """How much memory the host of each replica must have; 0: any."""
    sync: str | None = None
    """What is committed before a cell's reply goes out; empty: as the cluster does."""
    gpu_wait_s: float | None = None
    """The longest that a cell stands in line for GPUs before it is given up; 0: without limit."""

    @property
    def gpu_memory_bytes(self) -> int | None:
        """The same in bytes."""
        return _bytes(self.gpu_memory_gib)

    @property
    def memory_bytes(self) -> int | None:
        """The same in bytes."""
        return _bytes(self.memory_gib)

    def news(self, before: NotebookSettings) -> NotebookSettings:
        """Only what is another than before, or was not said before."""
        return NotebookSettings(
            **{
                name: value
                for name, value in vars(self).items()
                if value is not None and value != getattr(before, name)
            }
        )


def asked_by(metadata: Mapping[str, object], *, where: str) -> NotebookSettings:
    """Read a notebook's metadata. Raises InvalidSettings that names `where` and the value."""
    raw = metadata.get(KEY)
    if raw is None:
        return NotebookSettings()
    if not isinstance(raw, Mapping):
        raise InvalidSettings(
            f"the {KEY} metadata of {where} is {raw!r}; it must be an object "
            "with settings such as replica_count and gpus_per_cell"
        )
    return checked(raw, where=where)


def checked(values: Mapping[str, object], *, where: str) -> NotebookSettings:
    """The settings among `values`; None leaves one out. Raises InvalidSettings for a wrong one."""
    return NotebookSettings(
        **{
            name: check(value, where)  # type: ignore[arg-type]  # each check answers its own type
            for name, check in _CHECKS.items()
            if (value := values.get(name)) is not None
        }
    )


def _replica_count(value: object, where: str) -> int:
    # 3.0 is in the tuple too, and notebook files may have it.
    if isinstance(value, bool) or not isinstance(value, int) or value not in REPLICA_COUNTS:
        raise InvalidSettings(
            f"{where} asks for {value!r} replicas; a kernel can have 1, 3 or 5 of them"
        )
    return value


def _gpus_per_cell(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidSettings(
            f"{where} asks for {value!r} GPUs per cell; it must be a whole number from 0"
        )
    return value


def _gpu_type(value: object, where: str) -> str:
    if not isinstance(value, str) or len(value) > TYPE_CHARACTERS or not value.isprintable():
        raise InvalidSettings(
            f"{where} asks for GPUs of the type {value!r}; it must be a name such as H200"
        )
    return value.strip()


def _sync(value: object, where: str) -> str:
    if value not in ("", *SYNCS) or not isinstance(value, str):
        raise InvalidSettings(
            f"{where} asks for sync {value!r}; it must be one of {', '.join(SYNCS)}"
        )
    return value


def _amount(what: str, most: float, unit: str) -> Callable[[object, str], float]:
    def check(value: object, where: str) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not 0 <= value <= most:  # type: ignore[arg-type,operator]
            raise InvalidSettings(
                f"{where} asks for {value!r} {unit} of {what}; it must be from 0 to {most:g} {unit}"
            )
        return float(value)  # type: ignore[arg-type]  # a number

    return check


_CHECKS: dict[str, Callable[[object, str], object]] = {
    "replica_count": _replica_count,
    "gpus_per_cell": _gpus_per_cell,
    "gpu_type": _gpu_type,
    "gpu_memory_gib": _amount("GPU memory", GIB_MOST, "GiB"),
    "memory_gib": _amount("memory", GIB_MOST, "GiB"),
    "sync": _sync,
    "gpu_wait_s": _amount("waiting for GPUs", GPU_WAIT_MOST_S, "seconds"),
}


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * GIB)
