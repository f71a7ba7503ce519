"""What user code changes in IPython itself: magics, aliases, extensions, callbacks, printing.

Only what was added or set since the shell started is captured. A magic or callback that is a
function of the notebook travels as that function.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

_TRAITS = ("ast_node_interactivity", "autocall", "automagic")
_EVENTS = ("pre_execute", "post_execute", "pre_run_cell", "post_run_cell")


def _is_notebooks(function: Any) -> bool:
    """Whether a function was made in the notebook: library callbacks come with their extension."""
    # ipykernel registers bound methods of its own: their module decides, not the name in it.
    inner = getattr(function, "__func__", function)
    module = sys.modules.get(getattr(inner, "__module__", None) or "")
    return isinstance(inner, types.FunctionType) and (
        module is None or module.__name__ == "__main__"
    )


class IPythonState:
    """The sections of one shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._magics = self._all_magics()
        self._aliases = dict(self._user_aliases())
        self.sections: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
            "ipython.extensions": (self._extensions, self._set_extensions),
            "ipython.settings": (self._settings, self._set_settings),
            "ipython.magics": (self._new_magics, self._set_magics),
            "ipython.aliases": (self._new_aliases, self._set_aliases),
            "ipython.callbacks": (self._callbacks, self._set_callbacks),
            "ipython.formatters": (self._formatters, self._set_formatters),
        }

    # ------------------------------------------------------------- extensions

    def _extensions(self) -> list[str]:
        manager = getattr(self._shell, "extension_manager", None)
        return sorted(manager.loaded) if manager is not None else []

    def _set_extensions(self, names: list[str]) -> None:
        for name in names:
            if name not in self._shell.extension_manager.loaded:
                self._shell.extension_manager.load_extension(name)

    # ------------------------------------------------------------- settings

    def _settings(self) -> dict[str, Any]:
        shell = self._shell
        found: dict[str, Any] = {
            name: getattr(shell, name) for name in _TRAITS if hasattr(shell, name)
        }
        if hasattr(shell, "InteractiveTB"):
            # `%xmode` leaves the trait of that name as it was.
            found["xmode"] = shell.InteractiveTB.mode
        if hasattr(shell, "compile") and hasattr(shell.compile, "flags"):
            found["flags"] = shell.compile.flags
        plain = getattr(getattr(shell, "display_formatter", None), "formatters", {}).get(
            "text/plain"
        )
        if plain is not None:
            found["pprint"] = plain.pprint
            found["precision"] = plain.float_precision
        if "_dh" in getattr(shell, "user_ns", {}):
            found["directories"] = list(map(str, shell.user_ns["_dh"]))
        return found

    def _set_settings(self, settings: dict[str, Any]) -> None:
        shell = self._shell
        formatters = getattr(getattr(shell, "display_formatter", None), "formatters", {})
        plain: Any = formatters.get("text/plain")
        for name, value in settings.items():
            if name == "flags":
                shell.compile.flags = value
            elif name == "xmode":
                shell.InteractiveTB.set_mode(value)
            elif name == "pprint":
                plain.pprint = value
            elif name == "precision":
                if plain.float_precision != value:
                    plain.float_precision = value
            elif name == "directories":
                # Paths, as IPython keeps them; text is what travels.
                shell.user_ns["_dh"][:] = map(Path, value)
            elif getattr(shell, name) != value:
                setattr(shell, name, value)

    # ------------------------------------------------------------- magics and aliases

    def _all_magics(self) -> dict[str, set[str]]:
        manager = getattr(self._shell, "magics_manager", None)
        return {kind: set(table) for kind, table in manager.magics.items()} if manager else {}

    def _new_magics(self) -> dict[str, dict[str, Any]]:
        manager = getattr(self._shell, "magics_manager", None)
        return {
            kind: {
                name: function
                for name, function in (manager.magics[kind] if manager else {}).items()
                if isinstance(function, types.FunctionType) and _is_notebooks(function)
            }
            for kind in self._magics
        }

    def _set_magics(self, magics: dict[str, dict[str, Any]]) -> None:
        for kind, table in magics.items():
            for name, function in table.items():
                self._shell.register_magic_function(function, kind, name)

    def _user_aliases(self) -> list[tuple[str, str]]:
        manager = getattr(self._shell, "alias_manager", None)
        return list(manager.aliases) if manager is not None else []

    def _new_aliases(self) -> list[tuple[str, str]]:
        return [pair for pair in self._user_aliases() if self._aliases.get(pair[0]) != pair[1]]

    def _set_aliases(self, aliases: list[tuple[str, str]]) -> None:
        for name, command in aliases:
            self._shell.alias_manager.soft_define_alias(name, command)

    # ------------------------------------------------------------- callbacks and formatters

    def _callbacks(self) -> dict[str, list[Any]]:
        events = getattr(self._shell, "events", None)
        if events is None:
            return {}
        return {
            name: [each for each in events.callbacks[name] if _is_notebooks(each)]
            for name in _EVENTS
        }

    def _set_callbacks(self, callbacks: dict[str, list[Any]]) -> None:
        events = self._shell.events
        for name, wanted in callbacks.items():
            for each in [each for each in events.callbacks[name] if _is_notebooks(each)]:
                if each not in wanted:
                    events.unregister(name, each)
            for each in wanted:
                if each not in events.callbacks[name]:
                    events.register(name, each)

    def _formatters(self) -> dict[str, dict[Any, Any]]:
        formatters = getattr(getattr(self._shell, "display_formatter", None), "formatters", {})
        return {
            mime: found
            for mime, formatter in formatters.items()
            if (
                found := {
                    kind: printer
                    for kind, printer in formatter.type_printers.items()
                    if _is_notebooks(printer)
                }
            )
        }

    def _set_formatters(self, printers: dict[str, dict[Any, Any]]) -> None:
        formatters = self._shell.display_formatter.formatters
        for mime, table in printers.items():
            for kind, printer in table.items():
                formatters[mime].for_type(kind, printer)
