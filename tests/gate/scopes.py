"""What is searched: in every test run, and what takes longer (`make raft-search`)."""

from __future__ import annotations

from gate.bounds import Bounds

SHORT: dict[str, Bounds] = {
    "one member": Bounds(names="a", crashes=2, duplicates=0, in_flight=1, slow_disks=True),
    "four members": Bounds(names="abcd", terms=1, commands=1, crashes=0, in_flight=2),
    "elections": Bounds(commands=0, duplicates=0, in_flight=2),
    "pre-votes": Bounds(terms=1, commands=0, crashes=0, in_flight=2, asks_first=True),
    "heartbeats": Bounds(commands=0, duplicates=0, in_flight=1, beats=1),
    "replication": Bounds(in_flight=1),
    "disorder": Bounds(commands=1, crashes=0, duplicates=0, in_flight=2),
    "three terms": Bounds(
        terms=3, commands=1, crashes=0, duplicates=0, in_flight=1, one_entry_each=True
    ),
    "slow disks": Bounds(commands=0, crashes=0, duplicates=0, in_flight=1, slow_disks=True),
    "reads": Bounds(commands=0, crashes=0, duplicates=0, in_flight=2, reads=1),
    "proposals repeated": Bounds(
        commands=1, repeats=1, crashes=0, duplicates=0, in_flight=1, forwards=True
    ),
    "snapshots": Bounds(commands=0, duplicates=0, in_flight=1, compactions=1),
    "a snapshot among entries": Bounds(
        begun=True,
        terms=1,
        crashes=0,
        duplicates=0,
        in_flight=2,
        beats=1,
        compactions=1,
    ),
    "identities forgotten": Bounds(
        terms=1, repeats=1, crashes=0, duplicates=0, in_flight=1, compactions=1, identities=0
    ),
    "members change": Bounds(commands=0, duplicates=0, in_flight=1, changes=1),
    "a member joins": Bounds(
        names="abcd", founders=3, commands=0, crashes=0, duplicates=0, in_flight=1, changes=2
    ),
    "two members": Bounds(names="ab", terms=3, commands=0, duplicates=0, in_flight=1, changes=2),
}
"""Within a minute in all on an idle core."""

LONG: dict[str, Bounds] = {
    "all of two terms": Bounds(in_flight=2),
    "three terms, one crash": Bounds(
        terms=3, commands=1, duplicates=0, in_flight=1, one_entry_each=True
    ),
    "three in flight": Bounds(commands=1, crashes=0, duplicates=0, in_flight=3, states=6_000_000),
    "pre-votes, long": Bounds(commands=0, in_flight=2, asks_first=True, states=6_000_000),
    "slow disks, one crash": Bounds(
        commands=1, duplicates=0, in_flight=1, slow_disks=True, states=6_000_000
    ),
    "reads and heartbeats": Bounds(
        commands=1, duplicates=0, in_flight=2, reads=1, beats=1, states=6_000_000
    ),
    "handover": Bounds(commands=1, crashes=0, in_flight=1, transfers=1, states=6_000_000),
    "snapshots and commands": Bounds(
        commands=1, duplicates=0, in_flight=1, compactions=1, states=6_000_000
    ),
    "snapshots in disorder": Bounds(
        commands=0, crashes=0, in_flight=2, compactions=1, states=6_000_000
    ),
    "members change, long": Bounds(
        names="abcd", founders=3, commands=1, in_flight=1, changes=2, states=6_000_000
    ),
    "members change and forget": Bounds(
        commands=0, duplicates=0, in_flight=1, changes=2, compactions=1, states=6_000_000
    ),
}
"""As far as memory goes: each stops at its bound or when there is nothing new."""
