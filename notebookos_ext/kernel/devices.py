"""Which devices this process sees, and whether it can lead with those the agent bound.

The CUDA driver reads CUDA_VISIBLE_DEVICES when a process first uses it and never again. So
a replica starts with none visible; the first bind sets them; a replica
whose driver is loaded for others cannot take new ones and asks to be recycled from the log.
Simulated devices are named in NOTEBOOKOS_GPUS only. None of this was run on real hardware so far:
the tests drive it with a process map and a torch that they fake.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from pathlib import Path

from notebookos_ext.cluster.messages.replica import LeadAnswer, Parked, Prepare
from notebookos_ext.kernel.parking import TorchParking

VISIBLE = "CUDA_VISIBLE_DEVICES"
GPUS = "NOTEBOOKOS_GPUS"
GPU_KIND = "NOTEBOOKOS_GPU_KIND"
REPLICA = "NOTEBOOKOS_REPLICA"

HIDDEN_AT_START = {
    VISIBLE: "",
    # CUDA's numbers then agree with NVML's when somebody names devices by number.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    # torch.cuda.is_available() would load the driver while no device is visible, and so keep this
    # process from ever getting one; with this it asks NVML.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    GPUS: "",
    GPU_KIND: "",
}
"""Set in the environment before any user code runs."""


def driver_is_loaded(maps: Path = Path("/proc/self/maps")) -> bool:
    """Whether this process has loaded the CUDA driver, by whichever framework."""
    try:
        return "libcuda.so" in maps.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


class Devices:
    """The devices of this replica; used on the kernel's main thread."""

    def __init__(
        self,
        environ: MutableMapping[str, str],
        parking: TorchParking,
        *,
        driver_is_loaded: Callable[[], bool] = driver_is_loaded,
    ) -> None:
        self._environ = environ
        self._parking = parking
        self._driver_is_loaded = driver_is_loaded
        self._visible = ""

    def prepare(self, request: Prepare) -> LeadAnswer:
        """Make `request.devices` the ones that user code sees, or say why this process cannot."""
        if request.devices and not request.simulated:
            refused = self._show(request.visible)
            if refused is not None:
                return refused
            self._parking.restore()
        elif not request.devices and self._visible and not self._driver_is_loaded():
            self._show("")
        self._environ[GPUS] = ",".join(request.devices)
        if not request.devices:
            self._environ[GPU_KIND] = ""
        else:
            self._environ[GPU_KIND] = "simulated" if request.simulated else "cuda"
        return LeadAnswer(accepted=True)

    def _show(self, visible: str) -> LeadAnswer | None:
        if visible == self._visible:
            return None
        if self._driver_is_loaded():
            shown = self._visible or "no device"
            return LeadAnswer(
                accepted=False,
                reason=f"CUDA was initialised in this replica with {shown} visible and cannot "
                f"change to {visible}",
                recycle=True,
            )
        self._environ[VISIBLE] = visible
        self._visible = visible
        return None

    def park(self) -> Parked:
        """Move what lives on the devices to host memory; report what stays there, in bytes."""
        residual_bytes = self._parking.park()
        self._environ[GPUS] = ""
        self._environ[GPU_KIND] = ""
        return Parked(residual_bytes)
