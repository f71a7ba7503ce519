"""What every part of the simulated world stands on: time, chance, delays, and a way to be heard."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from notebookos_ext.cluster.events import Event
from notebookos_ext.simulation.agenda import Agenda
from notebookos_ext.simulation.delays import Delays
from notebookos_ext.simulation.faults import Faults
from notebookos_ext.simulation.measures import Recorder


@dataclass(slots=True)
class Ground:
    """See the module. `say` hands an event to the scheduler."""

    agenda: Agenda
    delays: Delays
    faults: Faults
    recorder: Recorder
    rng: random.Random
    say: Callable[[Event], None]

    @property
    def now_s(self) -> float:
        """The virtual time."""
        return self.agenda.now_s

    def happens(self, share: float) -> bool:
        """Whether a fault of that likelihood happens now."""
        return share > 0 and self.rng.random() < share

    def commit_s(self) -> float:
        """How long one entry of a log takes to be on a majority's disks."""
        return self.delays.commit_s.draw(self.rng)

    def upload_s(self, size_bytes: int) -> float:
        """How long the store takes to get so much."""
        return self._transfer_s(size_bytes, self.delays.store_upload_bytes_per_s)

    def download_s(self, size_bytes: int) -> float:
        """How long the store takes to give so much."""
        return self._transfer_s(size_bytes, self.delays.store_download_bytes_per_s)

    def _transfer_s(self, size_bytes: int, bytes_per_s: float) -> float:
        spread = self.delays.store_rate_spread
        rate = bytes_per_s * self.rng.uniform(1 - spread, 1 + spread)
        takes_s = self.delays.store_request_s + size_bytes / rate
        if self.happens(self.faults.store_slow_share):
            takes_s *= 10
        while self.happens(self.faults.store_failure_share):
            takes_s += self.faults.store_retry_s
        return takes_s
