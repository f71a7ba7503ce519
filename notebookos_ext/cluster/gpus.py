"""Who holds which GPU: arithmetic over device ids, for the whole cluster.

A device is known by its id, not by a host: several virtual hosts of one machine list the same real
device, and once it is bound through one of them it is taken on all (docs/decisions/0003).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

import msgspec

from notebookos_ext.cluster.model import CellId, DeviceId, DeviceSpec, HostId, KernelId, ReplicaId
from notebookos_ext.errors import Defect


class Binding(msgspec.Struct, frozen=True):
    """Who holds a device, since when, and since when it is being given back."""

    kernel: KernelId
    cell: CellId
    attempt: int
    replica: ReplicaId
    host: HostId
    since: float
    releasing_since: float | None = None

    @property
    def releasing(self) -> bool:
        """The cell has ended; the device is taken until its memory is free."""
        return self.releasing_since is not None


class GpuPool:
    """The devices that living hosts list, which of them are bound, and which are set aside."""

    def __init__(self) -> None:
        self._listed: dict[HostId, tuple[DeviceSpec, ...]] = {}
        self._hosts_of: dict[DeviceId, set[HostId]] = {}
        self._free: dict[HostId, set[DeviceId]] = {}
        self._bindings: dict[DeviceId, Binding] = {}
        self._held: dict[tuple[KernelId, int], tuple[DeviceId, ...]] = {}
        self._aside_until: dict[DeviceId, float] = {}
        self._touched: set[HostId] = set()

    # ---- questions

    @property
    def bindings(self) -> Mapping[DeviceId, Binding]:
        """Every bound device and who holds it."""
        return MappingProxyType(self._bindings)

    @property
    def aside(self) -> Mapping[DeviceId, float]:
        """Devices that somebody outside the cluster uses, and until when they are left alone."""
        return MappingProxyType(self._aside_until)

    def devices(self, host: HostId) -> tuple[DeviceSpec, ...]:
        """The devices that a living host lists; none for others."""
        return self._listed.get(host, ())

    def hosts_of(self, device: DeviceId) -> frozenset[HostId]:
        """The living hosts that list the device."""
        return frozenset(self._hosts_of.get(device, ()))

    def free_count(self, host: HostId) -> int:
        """How many devices of the host could be bound now."""
        return len(self._free.get(host, ()))

    def free(self, host: HostId, without: Collection[DeviceId] = ()) -> list[DeviceId]:
        """The devices of the host that could be bound now, lowest index first."""
        free = self._free.get(host)
        if not free:
            return []
        return [
            spec.device
            for spec in self._listed[host]
            if spec.device in free and spec.device not in without
        ]

    def held_by(self, kernel: KernelId, attempt: int) -> tuple[DeviceId, ...]:
        """The devices that an attempt has bound and not yet given back."""
        return self._held.get((kernel, attempt), ())

    # ---- changes

    def list_host(self, host: HostId, devices: Iterable[DeviceSpec]) -> None:
        """A host is there with these devices."""
        specs = tuple(sorted(devices, key=lambda spec: (spec.index, spec.device)))
        self._listed[host] = specs
        for spec in specs:
            self._hosts_of.setdefault(spec.device, set()).add(host)
        self._free[host] = {
            spec.device
            for spec in specs
            if spec.device not in self._bindings and spec.device not in self._aside_until
        }
        self._touched.add(host)

    def unlist_host(self, host: HostId) -> None:
        """A host is gone, and with it every binding that was made through it."""
        for key in {(b.kernel, b.attempt) for b in self._bindings.values() if b.host == host}:
            self.release(*key)
        for spec in self._listed.pop(host, ()):
            others = self._hosts_of[spec.device]
            others.discard(host)
            if not others:
                del self._hosts_of[spec.device]
                self._aside_until.pop(spec.device, None)
        self._free.pop(host, None)
        self._touched.discard(host)

    def bind(self, devices: Collection[DeviceId], binding: Binding) -> None:
        """Take devices. Raises Defect when one is not free on the binding's host."""
        taken = [device for device in devices if device not in self._free.get(binding.host, ())]
        if taken:
            raise Defect(f"{', '.join(taken)} on {binding.host} is not free to be bound")
        if not devices:
            return
        for device in devices:
            self._bindings[device] = binding
            self._mark(device, free=False)
        self._held[binding.kernel, binding.attempt] = tuple(devices)

    def begin_release(self, kernel: KernelId, attempt: int, at: float) -> None:
        """The attempt is over; its devices stay taken until `release`."""
        for device in self.held_by(kernel, attempt):
            binding = self._bindings[device]
            self._bindings[device] = msgspec.structs.replace(binding, releasing_since=at)

    def release(self, kernel: KernelId, attempt: int) -> tuple[DeviceId, ...]:
        """The attempt's devices are free again; returns them."""
        devices = self._held.pop((kernel, attempt), ())
        for device in devices:
            del self._bindings[device]
            if device not in self._aside_until:
                self._mark(device, free=True)
        return devices

    def set_aside(self, devices: Iterable[DeviceId], until: float) -> None:
        """Leave devices alone for a while: a process that is not ours uses them."""
        for device in devices:
            if device in self._hosts_of:
                self._aside_until[device] = until
                self._mark(device, free=False)

    def end_aside(self, at: float) -> None:
        """Devices whose time is over can be tried again."""
        for device in [d for d, until in self._aside_until.items() if until <= at]:
            del self._aside_until[device]
            if device not in self._bindings:
                self._mark(device, free=True)

    def drain_touched(self) -> set[HostId]:
        """Hosts on which what is free has changed since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    def _mark(self, device: DeviceId, *, free: bool) -> None:
        for host in self._hosts_of.get(device, ()):
            if free:
                self._free[host].add(device)
            else:
                self._free[host].discard(device)
            self._touched.add(host)

    # ---- self-examination

    def problems(self) -> list[str]:
        """What contradicts itself in these tables; empty when all is well."""
        found = []
        for host, specs in self._listed.items():
            for spec in specs:
                usable = spec.device not in self._bindings and spec.device not in self._aside_until
                if usable != (spec.device in self._free[host]):
                    found.append(f"{spec.device} is counted wrongly among the free of {host}")
        for device, binding in self._bindings.items():
            if device not in self._held.get((binding.kernel, binding.attempt), ()):
                found.append(f"{device} is bound by an attempt that does not hold it")
            if binding.host not in self._hosts_of.get(device, ()):
                found.append(f"{device} is bound through {binding.host}, which does not list it")
        if sum(len(devices) for devices in self._held.values()) != len(self._bindings):
            found.append("the devices held by attempts are not those that are bound")
        return found
