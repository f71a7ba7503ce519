"""What a notebook file asks for: the `notebookos` part of its metadata, read at kernel start."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec

from notebookos_ext.errors import UNREADABLE, InvalidRequest
from notebookos_ext.notebook_settings import NotebookSettings, asked_by, checked

_VARIABLES = {
    "replica_count": "NOTEBOOKOS_REPLICAS",
    "gpus_per_cell": "NOTEBOOKOS_GPUS_PER_CELL",
}


class _Notebook(msgspec.Struct):
    """Only the metadata: cells and outputs are skipped, not decoded."""

    metadata: dict[str, Any] = {}


_decoder = msgspec.json.Decoder(_Notebook)


def read_settings(path: Path) -> NotebookSettings:
    """The notebook's settings; those of a file that is none, or cannot be read, are empty.

    Raises InvalidSettings that names the notebook and the wrong value.
    """
    if path.suffix != ".ipynb" or not path.is_file():
        return NotebookSettings()
    try:
        notebook = _decoder.decode(path.read_bytes())
    except (OSError, *UNREADABLE):
        # Jupyter itself says what is wrong with the file; its kernel can start all the same.
        return NotebookSettings()
    return asked_by(notebook.metadata, where=path.name)


def overridden(settings: NotebookSettings, env: dict[str, str]) -> NotebookSettings:
    """The same with NOTEBOOKOS_REPLICAS and NOTEBOOKOS_GPUS_PER_CELL of a headless run.

    Raises InvalidSettings for values that cannot be.
    """
    for name, variable in _VARIABLES.items():
        if said := env.get(variable):
            value = getattr(checked({name: _number(said)}, where=variable), name)
            settings = dataclasses.replace(settings, **{name: value})
    return settings


def preference(env: dict[str, str], default: str) -> str:
    """NOTEBOOKOS_EXECUTOR of a headless run, else the default. Raises InvalidRequest."""
    chosen = env.get("NOTEBOOKOS_EXECUTOR") or default
    if chosen not in ("last", "rotate"):
        raise InvalidRequest(f"NOTEBOOKOS_EXECUTOR is {chosen!r}; it must be last or rotate")
    return chosen


def _number(text: str) -> object:
    return int(text) if text.strip().isdecimal() else text
