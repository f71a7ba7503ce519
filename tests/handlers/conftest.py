"""A server with the extension on an own state folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import notebookos_ext


@pytest.fixture
def notebookos_settings() -> dict[str, Any]:
    """Settings of the test; override where others are wanted."""
    return {"hosts": 1, "max_hosts": 3, "replica_count": 1}


@pytest.fixture
def jp_server_config(
    tmp_path: Path, jp_data_dir: Path, notebookos_settings: dict[str, Any]
) -> dict[str, Any]:
    # pytest-jupyter hides what is installed; the server must find our kernelspec all the same.
    spec = Path(notebookos_ext.__file__).parent / "kernelspec"
    shutil.copytree(spec, jp_data_dir / "kernels" / "notebookos")
    state = {"state_folder": str(tmp_path / "state"), **notebookos_settings}
    return {
        "ServerApp": {"jpserver_extensions": {"notebookos_ext": True}},
        "NotebookOSApp": state,
    }
