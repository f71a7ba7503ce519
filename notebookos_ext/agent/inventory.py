"""Which GPUs this host may bind: the machine's real ones, else simulated ones that say so."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from notebookos_ext.agent.nvml import DeviceReader, find_nvml
from notebookos_ext.cluster.messages.control import DeviceUse
from notebookos_ext.cluster.model import DeviceId, DeviceKind, DeviceSpec, HostId
from notebookos_ext.errors import InvalidSettings

SIMULATED_NAME = "Simulated GPU"
SIMULATED_MEMORY_BYTES = 16 * 1024**3


class HostInventory:
    """The devices of one host. `reader` is None where they are simulated (or there are none)."""

    def __init__(self, devices: tuple[DeviceSpec, ...], reader: DeviceReader | None = None) -> None:
        self.devices = devices
        self._reader = reader
        self._by_id = {spec.device: spec for spec in devices}

    @property
    def gpu_type(self) -> str:
        """What the devices are called, such as `H200`; empty where they are of several types."""
        names = {spec.name.removeprefix("NVIDIA ") for spec in self.devices}
        return names.pop() if len(names) == 1 else ""

    def spec(self, device: DeviceId) -> DeviceSpec | None:
        """The device of that id, if this host has it."""
        return self._by_id.get(device)

    def use(self) -> tuple[DeviceUse, ...]:
        """A reading of every device; blocks. A simulated device measures nothing and says so."""
        if self._reader is None:
            return tuple(
                DeviceUse(
                    device=spec.device,
                    memory_used_bytes=None,
                    utilization_percent=None,
                    temperature_c=None,
                    power_w=None,
                )
                for spec in self.devices
            )
        return tuple(self._reader.use(spec.device) for spec in self.devices)

    def owners(self, device: DeviceId) -> Mapping[int, int | None]:
        """Processes that compute on a real device, with the bytes they hold; blocks."""
        return {} if self._reader is None else self._reader.owners(device)


def open_inventory(
    host: HostId,
    *,
    gpus: str,
    simulated_gpus: int,
    find: Callable[[], DeviceReader | None] = find_nvml,
) -> HostInventory:
    """The inventory that `AgentConfig.gpus` asks for. Raises InvalidSettings."""
    if gpus not in ("auto", "simulated", "none"):
        raise InvalidSettings(f'gpus is "{gpus}"; choose "auto", "simulated" or "none"')
    if simulated_gpus < 0:
        raise InvalidSettings(f"simulated_gpus is {simulated_gpus}; it cannot be negative")
    if gpus == "none":
        return HostInventory(())
    reader = find() if gpus == "auto" else None
    if reader is not None:
        return HostInventory(reader.devices, reader)
    return HostInventory(
        tuple(
            DeviceSpec(
                device=DeviceId(f"SIM-{host}-{index}"),
                index=index,
                kind=DeviceKind.SIMULATED,
                name=SIMULATED_NAME,
                memory_bytes=SIMULATED_MEMORY_BYTES,
            )
            for index in range(simulated_gpus)
        )
    )
