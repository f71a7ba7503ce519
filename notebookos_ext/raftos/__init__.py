"""The public API of raftos, on this package's own consensus core.

A program that was written for raftos 0.2.6 runs with `import notebookos_ext.raftos as raftos`. What
raftos promises and does not keep is kept here; docs/consensus.md lists the differences.
"""

from __future__ import annotations

from notebookos_ext.raftos import cryptors, exceptions, serializers
from notebookos_ext.raftos.conf import config, configure
from notebookos_ext.raftos.replicator import Replicated, ReplicatedDict, ReplicatedList
from notebookos_ext.raftos.server import get_leader, register, stop, wait_until_leader

__all__ = [
    "Replicated",
    "ReplicatedDict",
    "ReplicatedList",
    "config",
    "configure",
    "register",
    "stop",
    "get_leader",
    "wait_until_leader",
    "cryptors",
    "exceptions",
    "serializers",
]
