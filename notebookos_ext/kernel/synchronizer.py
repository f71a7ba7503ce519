"""Keeps the replicas' namespaces alike: what changed goes out as a delta, deltas of others come in.

`collect` runs on the executor after user code, `apply` on the standbys. Both sides remember, for
each component, a fingerprint of what all replicas have; a standby takes its own as soon as it has
applied a delta, so that it can become executor without looking at everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec

from notebookos_ext.cluster.entries import (
    EARLY_SECTIONS,
    Component,
    Delta,
    EnvironmentRecord,
    HistoryRecord,
)
from notebookos_ext.cluster.model import HeldName
from notebookos_ext.kernel import frames
from notebookos_ext.kernel.arrival import Arrival
from notebookos_ext.kernel.blocks import ChunkShelf, fingerprints
from notebookos_ext.kernel.components import Dumped, Found, Survey, survey, survey_one, undisturbed
from notebookos_ext.kernel.definitions import Definition, Definitions
from notebookos_ext.kernel.environment import PREFIX, Environment
from notebookos_ext.kernel.gpu_reach import gpu_names
from notebookos_ext.kernel.grouping import Group
from notebookos_ext.kernel.held import Leaf, Tombstone
from notebookos_ext.kernel.history import History
from notebookos_ext.kernel.loading import Loading, NamespaceUnpickler, load_streams
from notebookos_ext.kernel.pages import PageTracker
from notebookos_ext.kernel.roster import ATOMS, Plan, Roster
from notebookos_ext.kernel.serializer import SurveySession
from notebookos_ext.kernel.shipping import Shipper, Staged, SyncOptions
from notebookos_ext.kernel.specials import special_objects
from notebookos_ext.kernel.watching import BlockWatch

__all__ = ["Collected", "LateParts", "SyncOptions", "Synchronizer"]

OUT_LIMIT_BYTES = 8 * 1024 * 1024
"""A value of `Out` that is no variable's travels up to this size."""


class LateParts(NamedTuple):
    """Copies of large components, to be shipped after the reply."""

    components: tuple[Staged, ...]


class Collected(NamedTuple):
    """What a collect found."""

    delta: Delta
    """The log part; all chunks it names were put."""
    late: LateParts | None
    """What to give to `ship_late`; its names are in `delta.pending`."""
    notes: tuple[str, ...]
    """Sentences for the user: what cannot travel and why, as far as it is new."""


class Synchronizer:
    """The namespace of one replica. All methods but `ship_late` belong to the main thread.

    `shell` is IPython's shell, whose `user_ns` is the namespace; an object with a `user_ns` only
    will do. `put_chunk` and `fetch_chunks` reach the checkpoint store; what they raise passes
    through.
    """

    def __init__(
        self,
        shell: Any,
        *,
        options: SyncOptions,
        put_chunk: Callable[[str, bytes], None],
        fetch_chunks: Callable[[list[str]], Iterable[bytes]],
    ) -> None:
        self.held: tuple[HeldName, ...] = ()
        """Names that cannot travel, as of the last collect or apply."""
        self.gpu_names: tuple[str, ...] = ()
        """Names that reach a GPU framework, as of the last collect or apply."""
        self._shell = shell
        self._namespace: dict[str, Any] = shell.user_ns
        self._options = options
        self._shelf = ChunkShelf(put_chunk, fetch_chunks)
        self._watch = BlockWatch(PageTracker.open())
        self._shipper = Shipper(options, self._shelf)
        self._initial = dict(self._namespace)
        self._definitions = Definitions(self._namespace)
        self._history = History(shell)
        self._environment = Environment(
            shell if hasattr(shell, "magics_manager") else None, fingerprint=self._fingerprint
        )
        self._specials = special_objects(shell, self._namespace)
        self._roster = Roster(self._definitions)
        self._told: set[tuple[str, str]] = set()
        self._awaited: list[dict[str, Definition]] = []
        """Definitions that only what is still to be applied refers to."""

    # ------------------------------------------------------------- what there is

    def _roots(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Atoms and other values by the names of their roots."""
        atoms: dict[str, Any] = {}
        values: dict[str, Any] = {}
        initial, derived, known = self._initial, self._history.is_derived, self._roster.names()
        inputs = self._history.inputs
        for name, value in list(self._namespace.items()):
            if name in inputs or (name in initial and initial[name] is value and name not in known):
                continue
            if name[:1] == "_" and derived(name, value):
                continue
            (atoms if type(value) in ATOMS else values)[name] = value
        for name, value in self._history.roots().items():
            (atoms if type(value) in ATOMS else values)[name] = value
        return atoms, values

    def _sections(self) -> dict[str, Any]:
        captured = self._environment.capture(self._namespace)
        return {name: value for name, value in captured.items() if value is not None}

    def _session(self, *, settled: bool = False) -> SurveySession:
        """`settled`: nobody is about to change what is looked at."""
        watch = self._watch
        return SurveySession(
            self._definitions,
            specials=self._specials,
            shell=self._shell,
            block_bytes=self._options.block_bytes,
            travelling=set(self._roster.home),
            fingerprints=watch.settled_fingerprints if settled else watch.fingerprints,
        )

    def _fingerprint(self, value: Any) -> bytes | None:
        """Tells a value apart from what it was before; None if not all of it can travel."""
        session = self._session()
        session.fingerprints = fingerprints
        try:
            dumped = survey_one(lambda: session, {"": value}, Group(("",), ()))
        except Exception:  # noqa: BLE001 - whatever the user's objects raise, they stay then
            return None
        return None if dumped.leaves else dumped.fingerprint

    # ------------------------------------------------------------- collect

    def collect(self) -> Collected | None:
        """What changed since the last collect or apply; None if nothing did, not even around it.

        Raises what `put_chunk` raises; then nothing counts as sent.
        """
        self._watch.begin()
        atoms, values = self._roots()
        values |= self._sections()
        roster = self._roster
        plan = roster.plan(values)
        run, found = survey(
            self._session, values, plan.alone, roster.home, roster.is_simple, plan.bundles
        )
        had = self._fallen_apart(plan, found, values)
        changed = [
            self._capped(each, values)
            for each in found.dumps
            if not roster.has(each) and each.group not in had
        ]
        new_atoms = {
            name: value for name, value in atoms.items() if not roster.has_atom(name, value)
        }
        if new_atoms:
            changed.append(survey_one(self._session, new_atoms, Group(tuple(new_atoms), ())))
        gone = roster.names() - atoms.keys() - values.keys()
        deleted = tuple(sorted(name for name in gone if not name.startswith(PREFIX)))
        history = self._history.record()
        held, notes = self._name_held(found.dumps)
        gpu = gpu_names(self._namespace, [*atoms, *values])
        nothing_new = not changed and not deleted and history is None
        if nothing_new and held == self.held and gpu == self.gpu_names:
            self._settle(run, found, atoms)
            return None
        early, late = self._shipper.divide(changed)
        try:
            delta = self._delta(early, late, deleted, history)
        except BaseException:
            self._history.forget()
            raise
        self._settle(run, found, atoms)
        self.held, self.gpu_names = held, gpu
        delta = msgspec.structs.replace(delta, held=held, gpu_names=gpu)
        parts = LateParts(tuple(map(self._shipper.stage, late))) if late else None
        return Collected(delta, parts, notes)

    def _fallen_apart(self, plan: Plan, found: Found, values: dict[str, Any]) -> set[Group]:
        """Parts of former components that the others have, since nothing else changed."""
        had: set[Group] = set()
        groups = {each.group for each in found.dumps}
        for loose in plan.loose:
            if loose not in groups and values.keys() >= set(loose.names):
                whole = survey_one(self._session, values, loose)
                had |= self._roster.fell_apart(loose, whole, found.dumps)
        return had

    def _settle(self, run: Survey, found: Found, atoms: dict[str, Any]) -> None:
        """Remember what was sent, and bundle what is small and rests."""
        quiet = self._roster.remember(found.dumps, found.at_rest, run.reached, atoms)
        opened = {each.group for each in found.dumps}
        self._roster.bundles.renew(
            self._roster.small(quiet), opened, lambda groups: run.dump_bundle(groups)[1] or None
        )

    def _capped(self, dumped: Dumped, values: dict[str, Any]) -> Dumped:
        """A large value that only `Out` has is replaced by a tombstone."""
        names, size = dumped.group.names, dumped.size_bytes
        if size <= OUT_LIMIT_BYTES or not names or not all(n.startswith("Out[") for n in names):
            return dumped
        reason = f"a result of {size // 2**20} MiB in Out that no variable holds does not travel"
        stones = {name: Tombstone(type(values[name]).__name__, reason) for name in names}
        return survey_one(self._session, stones, Group(names, ()))

    def _name_held(self, dumps: list[Dumped]) -> tuple[tuple[HeldName, ...], tuple[str, ...]]:
        latest = self._history.latest_roots()
        found: dict[tuple[str, str], Leaf] = {}
        for name, leaf in sorted(pair for dumped in dumps for pair in _named_best(dumped.leaves)):
            # A result that only Out has holds the kernel while it has a short name.
            if leaf.held and (not name.startswith("Out[") or name in latest):
                found[_for_users(name), leaf.type_name] = leaf
        held = [HeldName(name, kind, leaf.reason) for (name, kind), leaf in found.items()]
        if frames.open_comms(self._shell) and not any(
            each.reason == frames.OPEN_WIDGET for each in held
        ):
            held.append(HeldName("(display)", "Comm", frames.OPEN_WIDGET))
        notes = tuple(
            f"NotebookOS: {each.name} ({each.type_name}) cannot travel to another replica: "
            f"{each.reason}."
            for each in held
            if (each.name, each.reason) not in self._told
        )
        self._told = {(each.name, each.reason) for each in held}
        return tuple(held), notes

    def _delta(
        self,
        early: list[Dumped],
        late: list[Dumped],
        deleted: tuple[str, ...],
        history: HistoryRecord | None,
    ) -> Delta:
        packed = self._shipper.pack(early)
        around = tuple(each for each in packed if _is_around(each))
        environment = b""
        if around or history is not None:
            environment = msgspec.msgpack.encode(EnvironmentRecord(around, history))
        return Delta(
            components=tuple(each for each in packed if not _is_around(each)),
            deleted=deleted,
            environment=environment,
            pending=tuple(sorted(name for each in late for name in each.group.names)),
        )

    def ship_late(self, late: LateParts) -> Delta:
        """Put the chunks of what `collect` staged; returns the delta for it. Any thread may call.

        Raises what `put_chunk` raises.
        """
        return Delta(components=tuple(self._shipper.pack(late.components)))

    def forget(self, names: Iterable[str]) -> None:
        """These did not arrive: the next collect sends them again, and all that has no name."""
        self._roster.forget(set(names), PREFIX)
        self._history.forget()

    def forget_chunks(self) -> None:
        """The store may lack chunks: those of all that is sent from now on are put again."""
        self._shelf.forget()

    def forget_all(self) -> None:
        """Nothing counts as sent: the next collect sends everything."""
        self.forget(self._roster.names())
        self._shelf.forget()

    # ------------------------------------------------------------- apply

    def apply(self, delta: Delta) -> tuple[str, ...]:
        """Take over what another replica changed; returns sentences on what could not be loaded.

        All chunks are fetched before anything is touched: what `fetch_chunks` raises (or
        CorruptRecord for wrong contents) leaves the namespace as it was. A component that cannot be
        loaded leaves tombstones under its names, since an older value would be wrong without saying
        so.
        """
        record = delta.around()
        self._watch.begin()
        components = (*delta.components, *record.components)
        arrival = Arrival(self._shelf, self._namespace, self._at_hand(delta))
        fetched = arrival.take(components)
        loading = Loading(self._definitions, self._specials)
        problems: list[str] = []
        tombstones: dict[str, Any] = {}

        def failed(unpickler: NamespaceUnpickler, error: BaseException) -> None:
            reason = f"it could not be loaded here: {type(error).__name__}: {error}"
            names = unpickler.index.names
            tombstones.update((name, Tombstone("value", reason)) for name in names)
            what = ", ".join(names) or "a function or class"
            problems.append(f"{what} could not be loaded on this replica: {error}")

        unpicklers = [NamespaceUnpickler(stream, blocks, loading) for stream, blocks in fetched]
        with undisturbed():
            first = [each for each in unpicklers if EARLY_SECTIONS.intersection(each.index.names)]
            values = load_streams(first, failed)
            problems += self._environment.prepare(values)
            values |= load_streams([each for each in unpicklers if each not in first], failed)
        values |= tombstones
        sections = {name: values.pop(name) for name in list(values) if name.startswith(PREFIX)}
        names = set(values) | set(delta.deleted) | sections.keys()
        self._roster.replace(names, set(loading.alive))
        for name in self._history.drop(delta.deleted):
            self._namespace.pop(name, None)
        self._history.take(values)
        self._namespace.update(values)
        if record.history is not None:
            self._history.apply(record.history)
        # Last: loading may draw random numbers.
        problems += self._environment.apply(sections)
        self._take_fingerprints(unpicklers, names)
        self._awaited = [*self._awaited, loading.alive] if delta.unfinished else []
        self.held, self.gpu_names = delta.held, delta.gpu_names
        return tuple(problems)

    def _at_hand(self, delta: Delta) -> list[Dumped]:
        """Components of this replica with chunks that the delta needs."""
        seen = self._shelf.seen(delta.chunk_refs())
        groups = self._roster.holding(seen) if seen else []
        if not groups:
            return []
        _, values = self._roots()
        found = []
        for group in groups:
            if values.keys() >= set(group.names):
                # Whatever fails here is fetched instead.
                with suppress(Exception):
                    found.append(survey_one(self._session, values, group))
        return found

    def _take_fingerprints(self, unpicklers: list[NamespaceUnpickler], taken: set[str]) -> None:
        """Look at the loaded components once, so that this replica knows when they change."""
        if not taken and not unpicklers:
            return
        atoms, values = self._roots()
        if any(name.startswith(PREFIX) for name in taken):
            values |= self._sections()
        self._roster.atoms.update((name, atoms[name]) for name in taken if name in atoms)
        session = partial(self._session, settled=True)
        for unpickler in unpicklers:
            names = tuple(name for name in unpickler.index.names if name in values)
            ids = (def_id for def_id, _ in unpickler.index.definitions)
            present = tuple(each for each in ids if self._definitions.get(each) is not None)
            if names or present:
                self._roster.note(survey_one(session, values, Group(names, present)))


def _named_best(leaves: Iterable[tuple[str, Leaf]]) -> set[tuple[str, Leaf]]:
    """Without what `Out` has of something that a variable leads to as well."""
    pairs = set(leaves)
    named = {leaf for name, leaf in pairs if not name.startswith("Out[")}
    return {pair for pair in pairs if not pair[0].startswith("Out[") or pair[1] not in named}


def _for_users(name: str) -> str:
    """What is not the namespace's is called by what it is."""
    return f"({name.removeprefix(PREFIX)})" if name.startswith(PREFIX) else name


def _is_around(component: Component) -> bool:
    return bool(component.names) and all(name.startswith(PREFIX) for name in component.names)
