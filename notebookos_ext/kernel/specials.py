"""Objects that every replica has of its own: they travel as names, not as contents."""

from __future__ import annotations

import os
import random
import sys
from typing import Any

_OF_SHELL = (
    "kernel",
    "events",
    "display_formatter",
    "display_pub",
    "displayhook",
    "history_manager",
    "magics_manager",
    "alias_manager",
    "extension_manager",
    "compile",
    "Completer",
)


def special_objects(shell: Any, namespace: dict[str, Any]) -> dict[str, Any]:
    """Such objects of this process by their names, the same names in the same order everywhere."""
    history = getattr(shell, "history_manager", None)
    found: dict[str, Any] = {
        "namespace": namespace,
        "stdout": sys.stdout,
        "stderr": sys.stderr,
        "stdin": sys.stdin,
        "environ": os.environ,
        "path": sys.path,
        "modules": sys.modules,
        "inputs": getattr(history, "input_hist_parsed", None),
        "raw inputs": getattr(history, "input_hist_raw", None),
        "outputs": getattr(history, "output_hist", None),
        "shown": getattr(history, "outputs", None),
        "directories": getattr(history, "dir_hist", None),
        "random": random._inst,  # noqa: SLF001
    }
    for name in _OF_SHELL:
        found[f"shell.{name}"] = getattr(shell, name, None)
    # A name without an object still takes its place in the memo.
    return {name: value if value is not None else _Absent() for name, value in found.items()}


class _Absent:
    """What this shell does not have."""
