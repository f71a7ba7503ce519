"""Who holds which GPU: arithmetic over device ids, for the whole cluster.

A device is known by its id, not by a host: several virtual hosts of one machine list the same real
device, and once it is bound through one of them it is taken on all (docs/decisions/0003).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from notebookos_ext.cluster.model import CellId, DeviceId, DeviceSpec, HostId, KernelId, ReplicaId
from notebookos_ext.errors import Defect

RESERVED = 0
"""The number of no attempt: devices that are bound under it are set apart for their kernel."""


class Binding(msgspec.Struct, frozen=True):
    """Who holds a device, since when, and since when it is being given back.

    Under attempt `RESERVED` it is set apart for a cell that is on its way, or for a session's life.
    """

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

    @property
    def reserved(self) -> bool:
        """No attempt uses it; only its kernel can."""
        return self.attempt == RESERVED


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
        self._by_free: dict[int, dict[HostId, None]] = {}
        """Living hosts by how many of their devices are free."""
        self._counted: dict[HostId, int] = {}
        """Under which number each is there."""

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

    @property
    def is_shared(self) -> bool:
        """Whether hosts list the same devices: virtual hosts of one machine with real GPUs."""
        return any(len(hosts) > 1 for hosts in self._hosts_of.values())

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

    def holds_any(self, kernel: KernelId) -> bool:
        """Whether any attempt of the kernel has devices that it has not given back."""
        return any(key[0] == kernel for key in self._held)

    def reserved_for(self, kernel: KernelId, host: HostId) -> tuple[DeviceId, ...]:
        """The devices of the host that are set apart for a kernel."""
        devices = self._held.get((kernel, RESERVED), ())
        return devices if devices and self._bindings[devices[0]].host == host else ()

    def bound_on(self, host: HostId) -> bool:
        """Whether a device is bound through the host."""
        return any(
            binding.host == host
            for spec in self._listed.get(host, ())
            if (binding := self._bindings.get(spec.device)) is not None
        )

    def hosts_with(self, least: int) -> Iterator[HostId]:
        """Living hosts with at least so many free devices, those with the fewest first."""
        for count in sorted(count for count in self._by_free if count >= least):
            yield from self._by_free[count]

    def most_free(self) -> int:
        """The most free devices that one host has."""
        return max(self._by_free, default=0)

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
        self._note(host)

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
        self._uncount(host)
        self._touched.discard(host)

    def bind(self, devices: Collection[DeviceId], binding: Binding) -> None:
        """Take devices that are free on the binding's host or reserved there for its kernel.

        Raises Defect when one is neither.
        """
        if not devices:
            return
        reserved = self.reserved_for(binding.kernel, binding.host)
        free = self._free.get(binding.host, ())
        taken = [device for device in devices if device not in free and device not in reserved]
        if taken:
            raise Defect(f"{', '.join(taken)} on {binding.host} is not free to be bound")
        if reserved:
            self._hold((binding.kernel, RESERVED), tuple(d for d in reserved if d not in devices))
        for device in devices:
            self._bindings[device] = binding
        self._hold((binding.kernel, binding.attempt), tuple(devices))
        self._mark([device for device in devices if device not in reserved], free=False)

    def reserve(
        self, kernel: KernelId, host: HostId, devices: Collection[DeviceId], at: float
    ) -> None:
        """Set free devices of one host apart for a kernel, beside those that already are there."""
        before = self.reserved_for(kernel, host)
        if len(before) != len(self.held_by(kernel, RESERVED)):
            raise Defect(f"kernel {kernel} has GPUs reserved on another host than {host}")
        binding = Binding(kernel, CellId(""), RESERVED, ReplicaId(""), host, at)
        self.bind(devices, binding)
        self._hold((kernel, RESERVED), (*before, *devices))

    def keep_reserved(self, kernel: KernelId, attempt: int, at: float) -> None:
        """The attempt is over, and its devices are its kernel's for the next one."""
        devices = self._held.pop((kernel, attempt), ())
        if not devices:
            return
        host = self._bindings[devices[0]].host
        binding = Binding(kernel, CellId(""), RESERVED, ReplicaId(""), host, at)
        for device in devices:
            self._bindings[device] = binding
        others = self.held_by(kernel, RESERVED)
        order = {spec.device: spec.index for spec in self._listed[host]}
        self._hold((kernel, RESERVED), tuple(sorted((*devices, *others), key=order.__getitem__)))

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
        aside = self._aside_until
        self._mark([d for d in devices if d not in aside] if aside else devices, free=True)
        return devices

    def set_aside(self, devices: Iterable[DeviceId], until: float) -> None:
        """Leave devices alone for a while: a process that is not ours uses them."""
        for device in devices:
            if device in self._hosts_of:
                self._aside_until[device] = until
                self._mark([device], free=False)

    def end_aside(self, at: float) -> None:
        """Devices whose time is over can be tried again."""
        for device in [d for d, until in self._aside_until.items() if until <= at]:
            del self._aside_until[device]
            if device not in self._bindings:
                self._mark([device], free=True)

    def drain_touched(self) -> set[HostId]:
        """Hosts on which what is free has changed since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    def _hold(self, key: tuple[KernelId, int], devices: tuple[DeviceId, ...]) -> None:
        if devices:
            self._held[key] = devices
        else:
            self._held.pop(key, None)

    def _mark(self, devices: Iterable[DeviceId], *, free: bool) -> None:
        hosts: set[HostId] = set()
        for device in devices:
            for host in self._hosts_of.get(device, ()):
                if free:
                    self._free[host].add(device)
                else:
                    self._free[host].discard(device)
                hosts.add(host)
        for host in hosts:
            self._note(host)

    def _note(self, host: HostId) -> None:
        """What is free on the host has changed."""
        self._touched.add(host)
        count = len(self._free[host])
        before = self._counted.get(host)
        if before != count:
            self._uncount(host)
            self._counted[host] = count
            self._by_free.setdefault(count, {})[host] = None

    def _uncount(self, host: HostId) -> None:
        count = self._counted.pop(host, None)
        if count is not None:
            hosts = self._by_free[count]
            del hosts[host]
            if not hosts:
                del self._by_free[count]

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
        counted = {host: n for n, hosts in self._by_free.items() for host in hosts}
        if counted != {host: len(free) for host, free in self._free.items()}:
            found.append("hosts are counted under a wrong number of free devices")
        if sum(len(devices) for devices in self._held.values()) != len(self._bindings):
            found.append("the devices held by attempts are not those that are bound")
        return found
