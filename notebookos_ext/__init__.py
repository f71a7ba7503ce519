"""NotebookOS for Jupyter: replicated kernels that hold GPUs only while a cell runs.

The two hooks that Jupyter looks for; they import what they need when they are called, so that a
host agent or a replica never loads the server.
"""

from __future__ import annotations


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "notebookos-ext"}]


def _jupyter_server_extension_points() -> list[dict[str, object]]:
    from notebookos_ext.app import NotebookOSApp  # noqa: PLC0415

    return [{"module": "notebookos_ext", "app": NotebookOSApp}]
