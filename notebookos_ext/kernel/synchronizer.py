"""Keeps the replicas' namespaces alike: what changed goes out as a delta, deltas of others come in.

`collect` runs on the executor after user code, `apply` on the standbys. Both sides remember, for
each component, a fingerprint of what all replicas have; a standby takes its own as soon as it has
applied a delta, so that it can become executor without looking at everything.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from notebookos_ext.cluster.entries import Block, Component, Delta
from notebookos_ext.cluster.model import HeldName
from notebookos_ext.kernel import frames
from notebookos_ext.kernel.blocks import ChunkShelf, fingerprints
from notebookos_ext.kernel.components import Dumped, Group, survey, survey_one
from notebookos_ext.kernel.definitions import Definition, Definitions
from notebookos_ext.kernel.environment import PREFIX, Environment
from notebookos_ext.kernel.gpu_reach import gpu_names
from notebookos_ext.kernel.held import Leaf, Tombstone
from notebookos_ext.kernel.history import History, HistoryRecord
from notebookos_ext.kernel.serializer import (
    Loading,
    NamespaceUnpickler,
    SurveySession,
    load_streams,
)
from notebookos_ext.kernel.specials import special_objects

OUT_LIMIT_BYTES = 8 * 1024 * 1024
"""A value of `Out` that is no variable's travels up to this size."""

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, type(Ellipsis)})


class SyncOptions(msgspec.Struct, frozen=True):
    """Sizes in bytes."""

    inline_bytes: int = 256 * 1024
    """How much of a delta may stand in the log entry itself."""
    block_bytes: int = 64 * 1024
    """Buffers from this size on are kept out of the pickles."""
    early_bytes: int = 8 * 1024 * 1024
    """How much goes to the store before the reply; components beyond it follow late."""


class LateParts(NamedTuple):
    """Copies of large components, to be shipped after the reply."""

    components: tuple[Dumped, ...]


class Collected(NamedTuple):
    """What a collect found."""

    delta: Delta
    """The log part; all chunks it names were put."""
    late: LateParts | None
    """What to give to `ship_late`; its names are in `delta.pending`."""
    notes: tuple[str, ...]
    """Sentences for the user: what cannot travel and why, as far as it is new."""


class EnvironmentRecord(msgspec.Struct, frozen=True):
    """`Delta.environment`: sections of the environment as components, and IPython's history."""

    components: tuple[Component, ...] = ()
    history: HistoryRecord | None = None


class _Known(NamedTuple):
    fingerprint: bytes
    references: frozenset[str]
    leaves: tuple[tuple[str, Leaf], ...]


class Synchronizer:
    """The namespace of one replica. All methods but `ship_late` belong to the main thread.

    `shell` is IPython's shell (its `user_ns` is the namespace); an object with a `user_ns` only will
    do. `put_chunk` and `fetch_chunk` reach the checkpoint store; what they raise passes through.
    """

    def __init__(
        self,
        shell: Any,
        *,
        options: SyncOptions,
        put_chunk: Callable[[str, bytes], None],
        fetch_chunk: Callable[[str], bytes],
    ) -> None:
        self.held: tuple[HeldName, ...] = ()
        """Names that cannot travel, as of the last collect or apply."""
        self.gpu_names: tuple[str, ...] = ()
        """Names that reach a GPU framework, as of the last collect or apply."""
        self._shell = shell
        self._namespace: dict[str, Any] = shell.user_ns
        self._options = options
        self._shelf = ChunkShelf(put_chunk, fetch_chunk)
        self._initial = dict(self._namespace)
        self._definitions = Definitions(self._namespace)
        self._history = History(shell)
        self._environment = Environment(shell if hasattr(shell, "magics_manager") else None)
        self._specials = special_objects(shell, self._namespace)
        self._known: dict[Group, _Known | None] = {}
        self._home: dict[str, Group] = {}
        self._atoms: dict[str, Any] = {}
        self._missing: set[str] = set()
        """Names whose deletion the other replicas may not know of."""
        self._simple: dict[str, tuple[Any, ...]] = {}
        self._told: set[tuple[str, str]] = set()

    # ------------------------------------------------------------- what there is

    def _roots(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Atoms and other values by the names of their roots."""
        atoms: dict[str, Any] = {}
        values: dict[str, Any] = {}
        initial, derived = self._initial, self._history.is_derived
        for name, value in list(self._namespace.items()):
            if not isinstance(name, str):
                continue
            if name in initial and initial[name] is value and name not in self._atoms:
                continue
            if name[:1] == "_" and derived(name, value):
                continue
            (atoms if type(value) in _ATOMS else values)[name] = value
        for name, value in self._history.roots().items():
            (atoms if type(value) in _ATOMS else values)[name] = value
        return atoms, values

    def _session(self) -> SurveySession:
        travelling = {def_id for group in self._known for def_id in group.definitions}
        return SurveySession(
            self._definitions,
            specials=self._specials,
            shell=self._shell,
            block_bytes=self._options.block_bytes,
            travelling=travelling,
        )

    def _survey(self, values: dict[str, Any]) -> tuple[list[Dumped], set[str]]:
        groups: list[Group] = []
        grouped: set[str] = set()
        present = self._definitions.get
        for group in self._known:
            names = tuple(name for name in group.names if name in values)
            if names:
                ids = tuple(each for each in group.definitions if present(each) is not None)
                groups.append(Group(names, ids))
                grouped.update(names)
        groups += [Group((name,), ()) for name in values if name not in grouped]
        return survey(self._session, values, groups, self._home, self._is_simple)

    def _is_simple(self, def_id: str, definition: Definition) -> bool:
        """Whether a definition is a known function without state that is still the same."""
        group = Group((), (def_id,))
        known = self._known.get(group)
        if known is None or known.references:
            return False
        token = _token(definition)
        return token is not None and _same(self._simple.get(def_id), token)

    # ------------------------------------------------------------- collect

    def collect(self) -> Collected | None:
        """What changed since the last collect or apply; None if nothing did, not even around it.

        Raises what `put_chunk` raises; then nothing counts as sent.
        """
        atoms, values = self._roots()
        values.update(
            (name, value)
            for name, value in self._environment.capture(self._namespace).items()
            if value is not None
        )
        dumps, reached = self._survey(values)
        changed = [each for each in dumps if not self._is_known(each)]
        changed = [self._capped(each, values) for each in changed]
        changed_atoms = {
            name: value for name, value in atoms.items() if self._is_new_atom(name, value)
        }
        if changed_atoms:
            atom_dump, _ = survey(
                self._session,
                dict(changed_atoms),
                [Group(tuple(changed_atoms), ())],
                {},
                self._is_simple,
            )
            changed += atom_dump
        now = atoms.keys() | values.keys()
        before = (
            self._atoms.keys()
            | {name for group in self._known for name in group.names}
            | self._missing
        )
        deleted = tuple(sorted(name for name in before - now if not name.startswith(PREFIX)))
        history = self._history.record()
        held, notes = self._name_held(dumps)
        gpu = gpu_names(self._namespace, [name for name in now if name in self._namespace])
        quiet = not changed and not deleted and history is None
        if quiet and held == self.held and gpu == self.gpu_names:
            return None
        early, late = self._divide(changed)
        try:
            delta = self._delta(early, late, deleted, history)
        except BaseException:
            self._history.forget()
            raise
        self._remember(dumps, changed, reached, atoms, values)
        self.held, self.gpu_names = held, gpu
        delta = msgspec.structs.replace(delta, held=held, gpu_names=gpu)
        staged = LateParts(tuple(map(_staged, late))) if late else None
        return Collected(delta, staged, notes)

    def _is_known(self, dumped: Dumped) -> bool:
        known = self._known.get(dumped.group)
        return known is not None and known.fingerprint == dumped.fingerprint

    def _is_new_atom(self, name: str, value: Any) -> bool:
        known = self._atoms.get(name, self)
        if known is value:
            return False
        if type(known) is not type(value):
            return True
        # repr tells 0.0 from -0.0 and knows NaN.
        return (
            bool(repr(known) != repr(value)) if type(value) in {float, complex} else known != value
        )

    def _capped(self, dumped: Dumped, values: dict[str, Any]) -> Dumped:
        """A large value that only `Out` has is replaced by a tombstone."""
        if not dumped.group.names or not all(
            name.startswith("Out[") for name in dumped.group.names
        ):
            return dumped
        size = len(dumped.skeleton) + sum(block.nbytes for block in dumped.blocks)
        if size <= OUT_LIMIT_BYTES:
            return dumped
        reason = f"a result of {size // 2**20} MiB in Out that no variable holds does not travel"
        tombstones = {
            name: Tombstone(type(values[name]).__name__, reason) for name in dumped.group.names
        }
        (replaced,), _ = survey(
            self._session, tombstones, [Group(dumped.group.names, ())], {}, self._is_simple
        )
        leaves = tuple((name, Leaf("result", reason, held=False)) for name in dumped.group.names)
        return replaced._replace(leaves=leaves)

    def _remember(
        self,
        dumps: list[Dumped],
        changed: list[Dumped],
        reached: set[str],
        atoms: dict[str, Any],
        values: dict[str, Any],
    ) -> None:
        kept = {
            group: known
            for group, known in self._known.items()
            if not group.names and known is not None and reached.issuperset(group.definitions)
        }
        for each in dumps:
            kept[each.group] = _Known(each.fingerprint, each.references, each.leaves)
        self._known = kept
        self._home = {def_id: group for group in kept for def_id in group.definitions}
        self._atoms = atoms
        self._missing.clear()
        for each in changed:
            self._note_simple(each.group)

    def _note_simple(self, group: Group) -> None:
        if not group.names and len(group.definitions) == 1:
            (def_id,) = group.definitions
            definition = self._definitions.get(def_id)
            token = _token(definition) if definition is not None else None
            if token is None:
                self._simple.pop(def_id, None)
            else:
                self._simple[def_id] = token

    # ------------------------------------------------------------- what is held

    def _name_held(self, dumps: list[Dumped]) -> tuple[tuple[HeldName, ...], tuple[str, ...]]:
        found = {
            (name, leaf.type_name): leaf
            for dumped in dumps
            for name, leaf in dumped.leaves
            if leaf.held
        }
        held = [HeldName(name, kind, leaf.reason) for (name, kind), leaf in sorted(found.items())]
        widgets = frames.open_comms(self._shell)
        if widgets and not any(each.reason == frames.OPEN_WIDGET for each in held):
            held.append(HeldName("(display)", "Comm", frames.OPEN_WIDGET))
        leaves = ((name, leaf) for dumped in dumps for name, leaf in dumped.leaves)
        said = {(name, leaf.reason): leaf for name, leaf in leaves}
        notes = [
            f"NotebookOS: {name} ({leaf.type_name}) cannot travel to another replica: {reason}."
            for (name, reason), leaf in sorted(said.items())
            if leaf.held and (name, reason) not in self._told
        ]
        self._told = set(said)
        return tuple(held), tuple(notes)

    # ------------------------------------------------------------- shipping

    def _divide(self, changed: list[Dumped]) -> tuple[list[Dumped], list[Dumped]]:
        """Small components first, large ones late, with all that needs their definitions."""
        room = self._options.early_bytes
        early: list[Dumped] = []
        late: list[Dumped] = []
        for each in sorted(changed, key=_bulk):
            missing = sum(
                self._shelf.missing_bytes(block, prints)
                for block, prints in zip(each.blocks, each.prints, strict=True)
            )
            room -= missing
            (early if room >= 0 or not missing else late).append(each)
        waiting = {def_id for each in late for def_id in each.group.definitions}
        while waiting:
            behind = [each for each in early if each.references & waiting]
            if not behind:
                break
            early = [each for each in early if each not in behind]
            late += behind
            waiting = {def_id for each in behind for def_id in each.group.definitions}
        return early, late

    def _delta(
        self,
        early: list[Dumped],
        late: list[Dumped],
        deleted: tuple[str, ...],
        history: HistoryRecord | None,
    ) -> Delta:
        inline = [self._options.inline_bytes]
        around: list[Component] = []
        components: list[Component] = []
        for each in early:
            names = each.group.names
            is_around = bool(names) and all(name.startswith(PREFIX) for name in names)
            (around if is_around else components).append(self._component(each, inline))
        environment = b""
        if around or history is not None:
            environment = msgspec.msgpack.encode(EnvironmentRecord(tuple(around), history))
        pending = tuple(sorted(name for each in late for name in each.group.names))
        return Delta(
            components=tuple(components), deleted=deleted, environment=environment, pending=pending
        )

    def _component(self, dumped: Dumped, inline: list[int]) -> Component:
        blocks = []
        for view, prints in zip(dumped.blocks, dumped.prints, strict=True):
            if view.nbytes <= inline[0]:
                inline[0] -= view.nbytes
                blocks.append(Block(view.nbytes, inline=bytes(view)))
            else:
                blocks.append(Block(view.nbytes, chunks=self._shelf.put(view, prints)))
        names, skeleton = dumped.group.names, dumped.skeleton
        if len(skeleton) <= inline[0]:
            inline[0] -= len(skeleton)
            return Component(names, skeleton, tuple(blocks))
        view = memoryview(skeleton)
        return Component(names, b"", tuple(blocks), self._shelf.put(view, fingerprints(view)))

    def ship_late(self, late: LateParts) -> Delta:
        """Put the chunks of what `collect` staged, and return the delta for it. Any thread may call.

        Raises what `put_chunk` raises.
        """
        inline = [self._options.inline_bytes]
        return Delta(components=tuple(self._component(each, inline) for each in late.components))

    def forget(self, names: Iterable[str]) -> None:
        """These did not arrive: the next collect sends them again, and all that has no name."""
        lost = set(names)
        for group in list(self._known):
            if not group.names or lost & set(group.names) or group.names[0].startswith(PREFIX):
                self._known[group] = None
        self._missing |= lost
        for name in lost:
            self._atoms.pop(name, None)
        self._simple.clear()
        self._history.forget()

    def forget_all(self) -> None:
        """Nothing counts as sent: the next collect sends everything."""
        self.forget({name for group in self._known for name in group.names} | self._atoms.keys())
        self._shelf.forget()

    # ------------------------------------------------------------- apply

    def apply(self, delta: Delta) -> tuple[str, ...]:
        """Take over what another replica changed; returns sentences about what could not be loaded.

        All chunks are fetched before anything is touched: what `fetch_chunk` raises (or CorruptRecord
        for wrong contents) leaves the namespace as it was. A component that cannot be loaded leaves
        tombstones under its names, since an older value would be wrong without saying so.
        """
        record = EnvironmentRecord()
        if delta.environment:
            record = msgspec.msgpack.decode(delta.environment, type=EnvironmentRecord)
        fetched = [self._fetch(each) for each in (*delta.components, *record.components)]
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
        values = load_streams(unpicklers, failed) | tombstones
        sections = {name: values.pop(name) for name in list(values) if name.startswith(PREFIX)}
        taken = set(values)
        for name in self._history.drop(delta.deleted):
            self._namespace.pop(name, None)
        self._history.take(values)
        self._namespace.update(values)
        if record.history is not None:
            self._history.apply(record.history)
        self._forget_replaced(taken | set(delta.deleted) | sections.keys(), loading.alive)
        self._take_fingerprints(unpicklers, taken)
        # Last: loading may draw random numbers.
        problems += self._environment.apply(sections)
        self._take_section_fingerprints(sections)
        self.held, self.gpu_names = delta.held, delta.gpu_names
        return tuple(problems)

    def _fetch(self, component: Component) -> tuple[bytes | bytearray, list[bytes | bytearray]]:
        skeleton: bytes | bytearray = component.skeleton
        if component.skeleton_chunks:
            skeleton = self._shelf.fetch(component.skeleton_chunks)
        blocks = []
        for block in component.blocks:
            data = self._shelf.read(block)
            if block.chunks:
                self._shelf.note(fingerprints(memoryview(data)), block.chunks)
            blocks.append(data)
        return skeleton, blocks

    def _forget_replaced(self, names: set[str], definitions: Iterable[str]) -> None:
        replaced = set(definitions)
        kept: dict[Group, _Known | None] = {}
        for group, known in self._known.items():
            if names.isdisjoint(group.names) and replaced.isdisjoint(group.definitions):
                kept[group] = known
                continue
            rest = Group(
                tuple(name for name in group.names if name not in names),
                tuple(each for each in group.definitions if each not in replaced),
            )
            if rest.names or rest.definitions:
                kept[rest] = None
        self._known = kept
        self._home = {def_id: group for group in kept for def_id in group.definitions}
        for name in names:
            self._atoms.pop(name, None)

    def _take_fingerprints(self, unpicklers: list[NamespaceUnpickler], taken: set[str]) -> None:
        """Look at the loaded components once, so that this replica knows when they change."""
        atoms, values = self._roots()
        self._atoms.update((name, atoms[name]) for name in taken if name in atoms)
        for unpickler in unpicklers:
            names = tuple(name for name in unpickler.index.names if name in values)
            ids = tuple(def_id for def_id, _ in unpickler.index.definitions)
            present = tuple(each for each in ids if self._definitions.get(each) is not None)
            if names or present:
                self._take_fingerprint(Group(names, present), values)

    def _take_fingerprint(self, group: Group, values: dict[str, Any]) -> None:
        dumped = survey_one(self._session, values, group)
        self._known[dumped.group] = _Known(dumped.fingerprint, dumped.references, dumped.leaves)
        self._home.update(dict.fromkeys(dumped.group.definitions, dumped.group))
        self._note_simple(dumped.group)

    def _take_section_fingerprints(self, sections: dict[str, Any]) -> None:
        if not sections:
            return
        now = self._environment.capture(self._namespace)
        for name in sections:
            if now.get(name) is not None:
                self._take_fingerprint(Group((name,), ()), now)


def _bulk(dumped: Dumped) -> int:
    return len(dumped.skeleton) + sum(block.nbytes for block in dumped.blocks)


def _staged(dumped: Dumped) -> Dumped:
    """With copies of its blocks, since user code goes on with the originals."""
    return dumped._replace(blocks=tuple(memoryview(bytes(block)) for block in dumped.blocks))


def _token(definition: Definition) -> tuple[Any, ...] | None:
    """What a function without state consists of; None for everything that needs a closer look."""
    if not isinstance(definition, types.FunctionType):
        return None
    if definition.__closure__ is not None or definition.__kwdefaults__ or definition.__dict__:
        return None
    defaults = definition.__defaults__ or ()
    annotations = definition.__annotations__
    if any(type(each) not in _ATOMS for each in defaults):
        return None
    if any(getattr(each, "__module__", "") != "builtins" for each in annotations.values()):
        return None
    return (
        definition.__code__,
        definition.__name__,
        definition.__qualname__,
        definition.__doc__,
        definition.__module__,
        *defaults,
        *annotations.values(),
    )


def _same(one: tuple[Any, ...] | None, other: tuple[Any, ...]) -> bool:
    if one is None or len(one) != len(other):
        return False
    return all(a is b for a, b in zip(one, other, strict=True))
