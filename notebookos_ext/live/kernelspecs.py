"""Kernelspecs: what an interpreter must have to run replicas, and making one replicated."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

from notebookos_ext.errors import InvalidRequest, NotFound

NEEDED = ("ipykernel", "cloudpickle", "msgspec", "xxhash", "blake3")
"""What the kernel side of the package imports; the rest of it never gets into a replica."""
LEAST_PYTHON = (3, 11)
PROBE_S = 60.0
PROVISIONER = "notebookos"

_PROBE = """
import importlib.util, json, sys
missing = [n for n in sys.argv[1:] if importlib.util.find_spec(n) is None]
print(json.dumps({"version": sys.version_info[:2], "missing": missing}))
"""


@functools.lru_cache(maxsize=64)
def check_interpreter(python: str) -> None:
    """Make sure that replicas can run on it. Raises InvalidRequest saying what is missing."""
    try:
        done = subprocess.run(
            [python, "-c", _PROBE, *NEEDED],
            capture_output=True,
            text=True,
            timeout=PROBE_S,
            check=True,
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise InvalidRequest(
            f"{python} is not a Python interpreter that works ({error}); "
            "reinstall the kernel's environment"
        ) from error
    version = tuple(found["version"])
    if version < LEAST_PYTHON:
        raise InvalidRequest(
            f"{python} is Python {version[0]}.{version[1]}; replicated kernels need "
            f"Python {LEAST_PYTHON[0]}.{LEAST_PYTHON[1]} or later"
        )
    if found["missing"]:
        names = ", ".join(found["missing"])
        raise InvalidRequest(
            f"{python} lacks {names}; install with: "
            f"{python} -m pip install {' '.join(found['missing'])}"
        )


def interpreter(argv: list[str], *, name: str) -> str:
    """The interpreter of a kernelspec's command. Raises InvalidRequest when it cannot be found.

    `python` means the one that runs this, as everywhere in Jupyter.
    """
    first = argv[0] if argv else ""
    if first in ("python", "python3", f"python3.{sys.version_info[1]}"):
        return sys.executable
    python = shutil.which(first) if first else None
    if python is None:
        raise InvalidRequest(
            f"the kernelspec {name} starts {first or 'nothing'}, which does not exist; "
            "install its environment again or remove the kernelspec"
        )
    return python


def install_replicated(
    source: str,
    *,
    name: str | None = None,
    user: bool = False,
    prefix: str | None = None,
) -> tuple[str, Path]:
    """Make a replicated kernelspec out of an installed one; return its name and folder.

    Raises NotFound for an unknown kernelspec, InvalidRequest for one that cannot be replicated.
    """
    manager = KernelSpecManager()
    try:
        spec = manager.get_kernel_spec(source)
    except NoSuchKernel as error:
        there = ", ".join(sorted(manager.find_kernel_specs())) or "none"
        raise NotFound(f"there is no kernelspec {source!r}; installed are {there}") from error
    if spec.language.lower() != "python":
        raise InvalidRequest(
            f"the kernelspec {source!r} is for {spec.language}; only Python kernels are replicated"
        )
    if PROVISIONER in json.dumps(spec.metadata.get("kernel_provisioner", {})):
        raise InvalidRequest(f"the kernelspec {source!r} is replicated already")
    python = interpreter(spec.argv, name=source)
    check_interpreter(python)
    made: dict[str, Any] = spec.to_dict()
    made["argv"] = [python, "-m", "notebookos_ext.kernel", "-f", "{connection_file}"]
    made["display_name"] = f"{spec.display_name} (NotebookOS)"
    made["metadata"] = {
        **spec.metadata,
        "kernel_provisioner": {"provisioner_name": PROVISIONER},
    }
    chosen = name or f"{source}-notebookos"
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "spec"
        shutil.copytree(spec.resource_dir, work)
        (work / "kernel.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        try:
            where = manager.install_kernel_spec(
                str(work), kernel_name=chosen, user=user, prefix=prefix
            )
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                f"the kernelspec {chosen!r} could not be written ({error}); "
                "use --user, or --prefix with a folder of yours"
            ) from error
    return chosen, Path(where)
