"""GET notebookos/api/usage: what cells took, how long they waited, and what was saved.

`?since=` and `?until=` are seconds since the Unix epoch (all, up to now), `?by=` is user, notebook
or kernel.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec
from jupyter_server.auth.decorator import authorized
from tornado import web

from notebookos_ext.errors import InvalidRequest, NotFound
from notebookos_ext.handlers.base import NotebookOSHandler
from notebookos_ext.handlers.models import UsageSumView, UsageView
from notebookos_ext.live.cluster_runtime import server_runtime
from notebookos_ext.storage.usage import WAIT_BOUNDS_MS, UsageSum

By = Literal["user", "notebook", "kernel"]


class UsageHandler(NotebookOSHandler):
    """Usage of this server's cluster, kept over restarts."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with a UsageView; 400 for a window or a grouping that is none."""
        accounting = server_runtime().observers.accounting
        if accounting is None:
            raise NotFound("this cluster keeps no account")
        by = self._by()
        since = self._seconds("since", 0.0)
        until = self._seconds("until", server_runtime().now())
        if since > until:
            raise InvalidRequest("since is later than until; the window holds nothing")
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


def _view(found: UsageSum) -> UsageSumView:
    return UsageSumView(**msgspec.structs.asdict(found), gpu_seconds_saved=found.gpu_seconds_saved)
