"""JupyterLab's server finds the German texts beside a language pack, and gives them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jupyterlab_server import translation_utils

import notebookos_ext

CATALOGUE = (
    Path(notebookos_ext.__file__).parent / "locale/de_DE/LC_MESSAGES" / "notebookos_ext.json"
)


def test_the_catalogue_is_found_where_the_language_pack_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = str(Path(notebookos_ext.__file__).parent)
    # What the entry points of an installed language pack and of ours would say.
    monkeypatch.setattr(
        translation_utils,
        "_get_installed_language_pack_locales",
        lambda: ({"de_DE": str(tmp_path)}, ""),
    )
    monkeypatch.setattr(
        translation_utils,
        "_get_installed_package_locales",
        lambda: ({"notebookos_ext": package}, ""),
    )
    found: dict[str, Any] = translation_utils.get_language_pack("de_DE")[0]
    assert found["notebookos_ext"] == json.loads(CATALOGUE.read_text(encoding="utf-8"))


def test_the_entry_point_names_the_package() -> None:
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points."jupyterlab.locale"]\nnotebookos_ext = "notebookos_ext"' in text
