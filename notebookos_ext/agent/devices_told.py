"""`python -m notebookos_ext.agent.devices_told`: the machine's GPUs as a host agent finds them.

For `jupyter notebookos doctor`, which asks in a process of its own: a driver that hangs or crashes
takes nothing with it.
"""

from __future__ import annotations

import json
import sys

from notebookos_ext.agent.nvml import find_nvml


def main() -> int:
    """Print one JSON object: the devices, none where there is no driver."""
    reader = find_nvml()
    devices = () if reader is None else reader.devices
    told = [{"index": d.index, "name": d.name, "memory_bytes": d.memory_bytes} for d in devices]
    sys.stdout.write(json.dumps({"devices": told}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
