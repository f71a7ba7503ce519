"""GET notebookos/api/usage: what cells took, how long they waited, and what was saved.

`?since=` and `?until=` are seconds since the Unix epoch (all, up to now), `?by=` is user, notebook
or kernel. GET notebookos/api/usage/timeline: GPUs that were there and that were bound, in so many
`?points=` of the window.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec
from jupyter_server.auth.decorator import authorized
from tornado import web

from notebookos_ext.errors import InvalidRequest, NotFound
from notebookos_ext.handlers.base import NotebookOSHandler
from notebookos_ext.handlers.models import (
    GpuPointView,
    TimelineView,
    UsageSumView,
    UsageView,
)
from notebookos_ext.live.accounting import Accounting
from notebookos_ext.live.cluster_runtime import server_runtime
from notebookos_ext.storage.usage import WAIT_BOUNDS_MS, UsageSum

By = Literal["user", "notebook", "kernel"]


POINTS = 120
POINTS_MOST = 1_000


class _AccountHandler(NotebookOSHandler):
    """What both questions share."""

    @property
    def accounting(self) -> Accounting:
        """The cluster's account. Raises NotFound where there is none."""
        accounting = server_runtime().observers.accounting
        if accounting is None:
            raise NotFound("this cluster keeps no account")
        return accounting

    def window(self) -> tuple[float, float]:
        """`since` and `until`. Raises InvalidRequest."""
        since = self._seconds("since", 0.0)
        until = self._seconds("until", server_runtime().now())
        if since > until:
            raise InvalidRequest("since is later than until; the window holds nothing")
        return since, until

    def _seconds(self, name: str, default: float) -> float:
        asked = self.get_query_argument(name, "")
        if not asked:
            return default
        try:
            value = float(asked)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InvalidRequest(f"{name} is {asked!r}; it must be seconds since the Unix epoch")
        return value


class UsageHandler(_AccountHandler):
    """Usage of this server's cluster, kept over restarts."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with a UsageView; 400 for a window or a grouping that is none."""
        accounting = self.accounting
        by = self._by()
        since, until = self.window()
        total, *groups = await self.asked(accounting.sums(since=since, until=until, by=by))
        self.answer(
            UsageView(
                since=since,
                until=until,
                by=by,
                wait_bounds_ms=WAIT_BOUNDS_MS,
                total=_view(total),
                groups=tuple(_view(group) for group in groups),
            )
        )

    def _by(self) -> By:
        asked = self.get_query_argument("by", "notebook")
        for known in get_args(By):
            if asked == known:
                return known  # type: ignore[no-any-return]  # one of the literal's own values
        raise InvalidRequest(f"by is {asked!r}; it must be one of {', '.join(get_args(By))}")


class TimelineHandler(_AccountHandler):
    """How many GPUs there were and how many were bound, over time."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with a TimelineView; 400 for a window or a number of points that is none."""
        accounting = self.accounting
        since, until = self.window()
        points = self._points()
        found = await self.asked(accounting.timeline(since=since, until=until, points=points))
        self.answer(
            TimelineView(
                since=found[0].since if found else since,
                until=until,
                points=tuple(GpuPointView(*msgspec.structs.astuple(point)) for point in found),
            )
        )

    def _points(self) -> int:
        asked = self.get_query_argument("points", str(POINTS))
        count = int(asked) if asked.isdecimal() and len(asked) <= len(str(POINTS_MOST)) else 0
        if not 1 <= count <= POINTS_MOST:
            raise InvalidRequest(
                f"points is {asked!r}; it must be a whole number from 1 to {POINTS_MOST}"
            )
        return count


def _view(found: UsageSum) -> UsageSumView:
    return UsageSumView(**msgspec.structs.asdict(found), gpu_seconds_saved=found.gpu_seconds_saved)
