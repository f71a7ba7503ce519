"""State of the process that the standard library keeps and user code sets.

Logging, the garbage collector, signal handlers, the locale, the mode of new files. Where something
of the machinery's own stands beside it, only what differs from how the process began travels.
"""

from __future__ import annotations

import gc
import logging
import re
import signal
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_UMASK = re.compile(r"^Umask:\s*([0-7]+)$", re.MULTILINE)
_NOT_THE_USERS = {signal.SIGINT, signal.SIGCHLD}
"""The kernel sets the first for the time of a cell; asyncio takes the second."""
_NUMBERS = tuple(int(number) for number in signal.Signals if number not in _NOT_THE_USERS)
_handler_of: Callable[[int], Any] = vars(sys.modules["_signal"])["getsignal"]
"""As `signal.getsignal`, but without making members of enums: it is asked after every cell."""


class ProcessState:
    """The sections of this process, and how it began."""

    def __init__(self) -> None:
        self._signals = dict(_signal_handlers())
        self._handlers = {name: list(each.handlers) for name, each in _loggers()}
        self.sections: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
            "logging": (self._logging, self._set_logging),
            "signals": (self._changed_signals, self._set_signals),
            "garbage": (_garbage, _set_garbage),
            "locale": (_locale, _set_locale),
            "umask": (_umask, _set_umask),
            "sockets": (_socket_timeout, _set_socket_timeout),
        }

    # ------------------------------------------------------------- logging

    def _logging(self) -> dict[str, Any]:
        manager = logging.root.manager
        levels = {
            name: (logger.level, logger.disabled, logger.propagate)
            for name, logger in list(manager.loggerDict.items())
            if isinstance(logger, logging.Logger)
            and (logger.level or logger.disabled or not logger.propagate)
        }
        handlers = {
            name: added for name, logger in _loggers() if (added := self._added(name, logger))
        }
        return {
            "root": logging.root.level,
            "disable": manager.disable,
            "loggers": levels,
            "handlers": handlers,
        }

    def _added(self, name: str, logger: logging.Logger) -> list[Any]:
        began_with = self._handlers.get(name, [])
        return [each for each in logger.handlers if each not in began_with]

    def _set_logging(self, state: dict[str, Any]) -> None:
        logging.root.setLevel(state["root"])
        logging.disable(state["disable"])
        for name, (level, disabled, propagate) in state["loggers"].items():
            logger = logging.getLogger(name)
            logger.setLevel(level)
            logger.disabled, logger.propagate = disabled, propagate
        wanted = state["handlers"]
        for name in {*wanted, *(name for name, _ in _loggers())}:
            logger = logging.getLogger(name or None)
            kept = [each for each in logger.handlers if each not in self._added(name, logger)]
            logger.handlers[:] = [*kept, *wanted.get(name, ())]

    # ------------------------------------------------------------- signals

    def _changed_signals(self) -> dict[int, Any]:
        began_with = self._signals
        return {
            number: handler
            for number, handler in _signal_handlers()
            if handler is not began_with.get(number)
            and (isinstance(handler, int) or _is_notebooks(handler))
        }

    def _set_signals(self, wanted: dict[int, Any]) -> None:
        for number in self._changed_signals():
            if number not in wanted:
                signal.signal(number, self._signals[number])
        for number, handler in wanted.items():
            signal.signal(number, handler)


def _loggers() -> Iterator[tuple[str, logging.Logger]]:
    """The root logger, under an empty name, and those that no library has for itself."""
    yield "", logging.root
    for name, logger in list(logging.root.manager.loggerDict.items()):
        owner = name.partition(".")[0]
        if isinstance(logger, logging.Logger) and (owner == "__main__" or owner not in sys.modules):
            yield name, logger


def _is_notebooks(handler: Any) -> bool:
    return isinstance(handler, types.FunctionType) and handler.__module__ == "__main__"


def _signal_handlers() -> Iterator[tuple[int, Any]]:
    return ((number, _handler_of(number)) for number in _NUMBERS)


def _garbage() -> tuple[bool, tuple[int, ...]]:
    return gc.isenabled(), gc.get_threshold()


def _set_garbage(state: tuple[bool, tuple[int, ...]]) -> None:
    enabled, threshold = state
    gc.set_threshold(*threshold)
    (gc.enable if enabled else gc.disable)()


def _locale() -> str | None:
    module = sys.modules.get("locale")
    return module.setlocale(module.LC_ALL) if module is not None else None


def _set_locale(name: str) -> None:
    import locale  # noqa: PLC0415 - only where user code has it, too

    if locale.setlocale(locale.LC_ALL) != name:
        locale.setlocale(locale.LC_ALL, name)


def _umask() -> int | None:
    # Asking the system for it would set it, which other threads would notice.
    try:
        found = _UMASK.search(Path("/proc/self/status").read_text(encoding="ascii"))
    except OSError:
        return None
    return int(found[1], 8) if found else None


def _set_umask(mode: int) -> None:
    if _umask() != mode:
        __import__("os").umask(mode)


def _socket_timeout() -> tuple[float | None] | None:
    # Inside a tuple: None as a section is nothing to say.
    module = sys.modules.get("socket")
    return (module.getdefaulttimeout(),) if module is not None else None


def _set_socket_timeout(state: tuple[float | None]) -> None:
    __import__("socket").setdefaulttimeout(state[0])
