"""What a cell can change that is not in the namespace: random states, working directory, options.

Each section is one plain value with a name; sections are surveyed like variables, and only changed
ones travel. A section of a library exists only while the library is loaded, and nothing here loads
one on the executor. Applying a section replaces that part of the process's state.
"""

from __future__ import annotations

import decimal
import importlib
import os
import random
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from notebookos_ext.cluster.entries import EARLY_SECTIONS
from notebookos_ext.kernel import ipython_state, library_state
from notebookos_ext.kernel.helper_state import Fingerprint, HelperState
from notebookos_ext.kernel.module_state import ModuleState
from notebookos_ext.kernel.process_state import ProcessState

PREFIX = "env:"
"""Before a section's name among the names of roots; no identifier contains a colon."""

_OURS = re.compile(r"(NVIDIA_|NOTEBOOKOS_|JPY_)|(CUDA_VISIBLE_DEVICES|PWD|OLDPWD|_)\Z")
"""Environment variables that tell replicas apart, or belong to the machinery."""


class Environment:
    """Captures and applies the sections of one replica. `shell` is IPython's, or None.

    `fingerprint` tells values apart, see `helper_state`.
    """

    def __init__(
        self,
        shell: Any,
        *,
        variables: Mapping[str, str] | None = None,
        fingerprint: Fingerprint = lambda _: None,
    ) -> None:
        self._shell = shell
        self._inherited = dict(os.environ if variables is None else variables)
        history = getattr(shell, "history_manager", None)
        self._modules = ModuleState(lambda: getattr(history, "input_hist_parsed", []))
        self._helpers = HelperState(fingerprint)
        self._ipython = ipython_state.IPythonState(shell) if shell is not None else None
        self._sections: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
            "directory": (_directory, _set_directory),
            "variables": (self._variables, self._set_variables),
            "path": (_search_path, _set_search_path),
            "decimal": (_decimal_context, _set_decimal_context),
            "recursion": (sys.getrecursionlimit, sys.setrecursionlimit),
            **self._modules.sections,
            "helpers": (self._helpers.capture, self._helpers.apply),
            **ProcessState().sections,
            **library_state.SECTIONS,
            **(self._ipython.sections if self._ipython is not None else {}),
            # After what may import something: modules add filters, and some draw random numbers.
            "warnings": (_warning_filters, _set_warning_filters),
            "random": (random.getstate, random.setstate),
            **library_state.RANDOM,
        }

    def capture(self, namespace: Mapping[str, Any]) -> dict[str, Any]:
        """The sections as they are now, by the names of their roots; None is nothing to say."""
        self._modules.look(namespace)
        return {PREFIX + name: read() for name, (read, _) in self._sections.items()}

    def prepare(self, sections: Mapping[str, Any]) -> list[str]:
        """Apply what imports depend on; before anything else of a delta is loaded."""
        importlib.invalidate_caches()
        return self.apply(
            {name: value for name, value in sections.items() if name in EARLY_SECTIONS}
        )

    def apply(self, sections: Mapping[str, Any]) -> list[str]:
        """Make this process's state that of `sections`; returns a sentence for each that failed."""
        failed = []
        for name, (_, write) in self._sections.items():
            value = sections.get(PREFIX + name)
            if value is None:
                continue
            try:
                write(value)
            except Exception as error:  # noqa: BLE001 - one option must not keep the others away
                failed.append(f"{name} could not be set on this replica: {error}")
        return failed

    # ------------------------------------------------------------- variables and search path

    def _changed_variables(self) -> dict[str, str | None]:
        now = {key: value for key, value in os.environ.items() if not _OURS.match(key)}
        changed: dict[str, str | None] = {
            key: value for key, value in now.items() if self._inherited.get(key) != value
        }
        gone = (key for key in self._inherited if key not in now and not _OURS.match(key))
        return changed | dict.fromkeys(gone)

    def _variables(self) -> dict[str, str | None]:
        """What the user changed since the start, never what was inherited."""
        return self._changed_variables()

    def _set_variables(self, wanted: dict[str, str | None]) -> None:
        restored = {key: self._inherited.get(key) for key in self._changed_variables()}
        for key, value in (restored | wanted).items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def _directory() -> str | None:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return None


def _set_directory(folder: str) -> None:
    if _directory() != folder:
        os.chdir(folder)


def _search_path() -> list[str]:
    return list(map(str, sys.path))


def _warning_filters() -> list[Any]:
    return list(warnings.filters)


def _set_search_path(path: list[str]) -> None:
    if sys.path != path:
        sys.path[:] = path
        importlib.invalidate_caches()


def _set_warning_filters(filters: list[Any]) -> None:
    if list(warnings.filters) != filters:
        warnings.filters[:] = filters  # type: ignore[index]
        getattr(
            warnings, "_filters_mutated", getattr(warnings, "_filters_mutated_lock_held", int)
        )()


def _decimal_context() -> Any:
    context = decimal.getcontext()
    return (
        context.prec,
        context.rounding,
        context.Emin,
        context.Emax,
        context.capitals,
        context.clamp,
        sorted(signal.__name__ for signal, on in context.flags.items() if on),
        sorted(signal.__name__ for signal, on in context.traps.items() if on),
    )


def _set_decimal_context(state: Any) -> None:
    *numbers, flags, traps = state
    signals = [[getattr(decimal, name) for name in names] for names in (flags, traps)]
    decimal.setcontext(decimal.Context(*numbers, *signals))
