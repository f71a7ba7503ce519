"""What the parts of the controller work with: hosts, router, records, clock, and a voice.

Each part carries out some of the scheduler's actions. All of them live on the controller's thread.
"""

from __future__ import annotations

import dataclasses

from notebookos_ext.clock import Clock
from notebookos_ext.cluster.model import KernelId
from notebookos_ext.cluster.state import ClusterView
from notebookos_ext.live.chains import Chains
from notebookos_ext.live.fleet import Fleet
from notebookos_ext.live.keeping import Keeper
from notebookos_ext.live.kernel_records import KernelRecord
from notebookos_ext.live.ports import Outlet, RouterCommands


@dataclasses.dataclass(frozen=True, slots=True)
class Shared:
    """One of each for all parts of one controller."""

    fleet: Fleet
    router: RouterCommands
    records: dict[KernelId, KernelRecord]
    chains: Chains
    view: ClusterView
    clock: Clock
    outlet: Outlet
    keeper: Keeper


class Part:
    """A part of the controller."""

    def __init__(self, shared: Shared) -> None:
        self._fleet = shared.fleet
        self._router = shared.router
        self._records = shared.records
        self._chains = shared.chains
        self._view = shared.view
        self._clock = shared.clock
        self._outlet = shared.outlet
        self._keeper = shared.keeper
