"""Who watches the scheduler of a cluster: its account, its metrics, and its journal if wanted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry

from notebookos_ext.cluster.scheduler import Scheduler
from notebookos_ext.live.accounting import Accounting
from notebookos_ext.live.journaling import Journaling
from notebookos_ext.live.metrics import Metrics
from notebookos_ext.live.ports import Observer
from notebookos_ext.live.state_folder import StateFolder
from notebookos_ext.settings import Settings
from notebookos_ext.storage.journal import VERSION, JournalHead, JournalWriter


class Observers:
    """Built before the controller, closed after it."""

    def __init__(
        self,
        settings: Settings,
        folder: StateFolder,
        scheduler: Scheduler,
        *,
        private: bool,
        user: str,
        now: float,
        warn: Callable[[str], None],
    ) -> None:
        """Raises StorageError when the journal that is wanted cannot be written.

        A private cluster, which leaves nothing behind, keeps no account.
        """
        self.metrics = CollectorRegistry()
        self.accounting: Accounting | None = None
        self._journaling: Journaling | None = None
        quantities = Metrics(scheduler.view, self.metrics)
        self.note_members = quantities.note_members
        self.all: list[Observer] = [quantities]
        if settings.journal_file:
            head = JournalHead(
                version=VERSION,
                policy=settings.policy,
                max_hosts=settings.max_hosts,
                options=scheduler.view.options,
                started_at=now,
            )
            path = Path(settings.journal_file).expanduser().absolute()
            self._journaling = Journaling(JournalWriter(path, head), warn=warn)
            self.all.append(self._journaling)
        if not private:
            self.accounting = Accounting(
                folder.path / "usage.sqlite3", view=scheduler.view, user=user, warn=warn
            )
            self.all.append(self.accounting)

    def close(self, at: float) -> None:
        """Everything up to the time `at` is written when this returns."""
        if self.accounting is not None:
            self.accounting.close(at)
        if self._journaling is not None:
            self._journaling.close()
