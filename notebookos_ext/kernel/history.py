"""`In`, `Out`, `_` and the execution count: IPython's names, which users take like any other.

Inputs travel as what was added. A value of `Out` is a root of its own, called `Out[n]`: one that is
also a variable shares its component. `_`, `__`, `___` and `_n` are derived from `Out` where they
are its values.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from notebookos_ext.cluster.entries import HistoryRecord

_NUMBERED = re.compile(r"_i?[0-9]+\Z")
_OUT = re.compile(r"Out\[([0-9]+)\]\Z")
_LATEST = ("_", "__", "___")
_OVERWRITTEN = -2
"""A result that another one of the same cell replaced in `Out`: it travels as a variable."""
_INPUTS = ("_i", "_ii", "_iii")
_TRACEBACK = ("last_type", "last_value", "last_traceback", "last_exc")


class History:
    """IPython's history of one shell, or nothing when the shell has none (tests)."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._manager = getattr(shell, "history_manager", None)
        self._sent = 0
        self._last: tuple[Any, ...] = ()
        self.inputs: set[str] = set()
        """Globals found to be inputs: always derived, and two more with each cell."""

    def _out(self) -> dict[int, Any]:
        out: dict[int, Any] = self._manager.output_hist if self._manager is not None else {}
        return out

    def is_derived(self, name: str, value: Any) -> bool:
        """Whether a global is IPython's and follows from `In` and `Out`."""
        if self._manager is None or not name.startswith("_"):
            return False
        if name in _LATEST:
            return (isinstance(value, str) and value == "") or self._number(value) >= 0
        if name in _INPUTS:
            return True
        if not _NUMBERED.match(name):
            return False
        if name.startswith("_i"):
            self.inputs.add(name)
            return True
        return self._out().get(int(name[1:]), self) is value

    def _number(self, value: Any) -> int:
        for number in reversed(self._out()):
            if self._out()[number] is value:
                return int(number)
        return -1

    def _latest(self, name: str) -> int:
        value = self._shell.user_ns.get(name, self)
        number = self._number(value)
        ours = getattr(getattr(self._shell, "displayhook", None), name, None)
        return _OVERWRITTEN if number < 0 and ours is value and value != "" else number

    def roots(self) -> dict[str, Any]:
        """The values of `Out` by the names of their roots."""
        return {f"Out[{number}]": value for number, value in self._out().items()}

    def latest_roots(self) -> set[str]:
        """The roots of the results that still have a short name: `_`, `__`, `___`."""
        namespace = getattr(self._shell, "user_ns", {})
        numbers = (self._number(namespace.get(name, self)) for name in _LATEST)
        return {f"Out[{number}]" for number in numbers if number >= 0}

    def record(self) -> HistoryRecord | None:
        """What the history gained; None if nothing."""
        if self._manager is None:
            return None
        latest = tuple(map(self._latest, _LATEST))
        inputs = self._manager.input_hist_parsed
        now = (len(inputs), self._shell.execution_count, latest)
        if now == self._last:
            return None
        self._last = now
        start = min(self._sent, len(inputs))
        self._sent = len(inputs)
        raw = self._manager.input_hist_raw
        return HistoryRecord(
            start, tuple(map(str, inputs[start:])), tuple(map(str, raw[start:])), now[1], latest
        )

    def forget(self) -> None:
        """Send everything again."""
        self._sent = 0
        self._last = ()

    def apply(self, record: HistoryRecord) -> None:
        """Add what another replica's history gained."""
        if self._manager is None:
            return
        namespace = self._shell.user_ns
        for known, new in (
            (self._manager.input_hist_parsed, record.inputs),
            (self._manager.input_hist_raw, record.raw),
        ):
            del known[record.start :]
            known.extend(new)
        for number, text in enumerate(record.raw, start=record.start):
            if number:
                namespace[f"_i{number}"] = text
        # `%debug` and `%tb` must not take an older error of this replica for the latest.
        for name in _TRACEBACK:
            vars(sys).pop(name, None)
        raw = self._manager.input_hist_raw
        # `_i` is the input before the latest: while a cell runs, the latest is the cell itself.
        for name, text in zip(("_i00", *_INPUTS), reversed(raw), strict=False):
            setattr(self._manager, name, text)
            if name in _INPUTS:
                namespace[name] = text
        self._shell.execution_count = record.count
        hook = getattr(self._shell, "displayhook", None)
        hidden = getattr(self._shell, "user_ns_hidden", {})
        for name, number in zip(_LATEST, record.latest, strict=True):
            if number in self._out() or number == _OVERWRITTEN:
                # In all three, else IPython takes the value for the user's and never changes it.
                value = namespace.get(name) if number == _OVERWRITTEN else self._out()[number]
                namespace[name] = hidden[name] = value
                if hook is not None:
                    setattr(hook, name, namespace[name])
        self._sent = len(self._manager.input_hist_parsed)
        latest = tuple(map(self._latest, _LATEST))
        self._last = (self._sent, record.count, latest)

    def take(self, values: dict[str, Any]) -> None:
        """Put the loaded roots called `Out[n]` into `Out` and take them out of `values`."""
        for name in [name for name in values if _OUT.match(name)]:
            value = values.pop(name)
            number = int(name[4:-1])
            self._out()[number] = value
            self._shell.user_ns[f"_{number}"] = value

    def drop(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Delete the `Out` values among `names`; returns the other names."""
        rest = []
        for name in names:
            found = _OUT.match(name)
            if found is None:
                rest.append(name)
            else:
                self._out().pop(int(found[1]), None)
                self._shell.user_ns.pop(f"_{found[1]}", None)
        return tuple(rest)
