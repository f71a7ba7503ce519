"""ARCHITECTURE.md's tables against the tree, so that the page cannot rot.

A table of files has backticked paths in its first column, relative to `notebookos_ext/` or, when
they end in .ts or .tsx, to `src/`. All rows in reading order are the layering: a file imports only
files above its own row. A table whose first heading is "library" names each outside library's home.
"""

from __future__ import annotations

import ast
import fnmatch
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "notebookos_ext"
SRC = ROOT / "src"
PAGE = ROOT / "ARCHITECTURE.md"

FOLDER_MAY_IMPORT = {
    "cluster": {"cluster"},
    "storage": {"cluster", "storage"},
    "kernel": {"cluster", "storage", "kernel"},
    "agent": {"cluster", "storage", "agent"},
    "raftos": {"cluster", "storage", "agent", "raftos"},
    "live": {"cluster", "storage", "live"},
    "simulation": {"cluster", "storage", "simulation"},
    "handlers": {"cluster", "storage", "live", "handlers"},
}
"""Which folders a folder may import; files that lie in none (errors, clock, settings) are apart."""

ACTING = {
    "asyncio",
    "concurrent",
    "ctypes",
    "datetime",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
}
"""Standard modules that act, read a clock or draw chance: not for `cluster/`."""


def rows() -> Iterator[tuple[str, list[str]]]:
    """Each table row of the page: the heading of its first column, and its cells."""
    heading = None
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if not line.lstrip().startswith("|"):
            heading = None
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if heading is None:
            heading = cells[0].lower()
        elif not set(cells[0]) <= set("-: "):
            yield heading, cells


def listed(suffixes: tuple[str, ...]) -> list[str]:
    """Paths of the page with one of these suffixes, lowest layer first."""
    return [
        path
        for heading, cells in rows()
        if heading != "library"
        for path in re.findall(r"`([^`]+)`", cells[0])
        if path.endswith(suffixes)
    ]


def homes() -> dict[str, list[str]]:
    """Outside library to the patterns of the files that may import it."""
    return {
        library: re.findall(r"`([^`]+)`", cells[1])
        for heading, cells in rows()
        if heading == "library"
        for library in re.findall(r"`([^`]+)`", cells[0])
    }


def python_imports(path: Path) -> set[str]:
    """Dotted names that a file imports anywhere, `from a import b` as `a.b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def own_file(name: str) -> str | None:
    """The file of the package that a dotted name is in, relative to it."""
    parts = name.split(".")
    if parts[0] != PACKAGE.name:
        return None
    for length in range(len(parts), 0, -1):
        base = PACKAGE.joinpath(*parts[1:length])
        if length > 1 and base.with_suffix(".py").is_file():
            return str(base.with_suffix(".py").relative_to(PACKAGE))
        if (base / "__init__.py").is_file():
            return str((base / "__init__.py").relative_to(PACKAGE))
    return name


def python_files() -> list[str]:
    """Files that must have a row: not generated ones, nor an `__init__` that imports nothing."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name == "_version.py" or name.startswith("labextension/"):
            continue
        if path.name == "__init__.py" and not own_imports(name):
            continue
        found.append(name)
    return found


def own_imports(file: str) -> set[str]:
    """Files of the package that a file of the package imports."""
    targets = {own_file(name) for name in python_imports(PACKAGE / file)}
    return {t for t in targets if t not in (None, file, "_version.py")}  # type: ignore[misc]


def folder(file: str) -> str | None:
    return file.split("/", maxsplit=1)[0] if "/" in file else None


def typescript_files() -> list[str]:
    return sorted(
        str(path.relative_to(SRC))
        for pattern in ("*.ts", "*.tsx")
        for path in SRC.rglob(pattern)
        if "__tests__" not in path.parts
    )


def typescript_imports(file: str) -> set[str]:
    """Files under src/ that a file under src/ imports."""
    here = SRC / file
    found = set()
    text = here.read_text(encoding="utf-8")
    for target in re.findall(r"""(?:from|import)\s*\(?\s*['"](\.[^'"]*)['"]""", text):
        base = (here.parent / target).resolve()
        candidates = [base.with_name(base.name + end) for end in (".ts", ".tsx")]
        candidates += [base / "index.ts", base]
        file_found = next((c for c in candidates if c.is_file()), None)
        assert file_found, f"src/{file} imports {target}, which does not exist"
        if file_found.suffix in (".ts", ".tsx"):
            found.add(str(file_found.relative_to(SRC)))
    return found


def upward_errors(order: list[str], edges: dict[str, set[str]]) -> list[str]:
    """Imports that do not point to a row above."""
    place = {file: index for index, file in enumerate(order)}
    return [
        f"{file} imports {target}, which is not above it in ARCHITECTURE.md"
        for file, targets in sorted(edges.items())
        for target in sorted(targets)
        if file in place and place.get(target, len(order)) >= place[file]
    ]


def listing_errors(listed_files: list[str], real_files: list[str]) -> list[str]:
    twice = {file for file in listed_files if listed_files.count(file) > 1}
    return (
        [f"{f} has no row in ARCHITECTURE.md" for f in real_files if f not in listed_files]
        + [
            f"{f} has a row in ARCHITECTURE.md but does not exist"
            for f in listed_files
            if f not in real_files
        ]
        + [f"{f} has two rows in ARCHITECTURE.md" for f in sorted(twice)]
    )


def check(errors: list[str]) -> None:
    """Fail with all of them, one a line."""
    assert not errors, "\n" + "\n".join(errors)


def test_every_python_file_has_a_row() -> None:
    optional = [f for f in listed((".py",)) if f.endswith("__init__.py") and (PACKAGE / f).exists()]
    required = python_files()
    check(listing_errors(listed((".py",)), required + [f for f in optional if f not in required]))


def test_python_imports_point_upwards() -> None:
    edges = {file: own_imports(file) for file in python_files()}
    check(upward_errors(listed((".py",)), edges))


def test_every_typescript_file_has_a_row() -> None:
    check(listing_errors(listed((".ts", ".tsx")), typescript_files()))


def test_typescript_imports_point_upwards() -> None:
    edges = {file: typescript_imports(file) for file in typescript_files()}
    check(upward_errors(listed((".ts", ".tsx")), edges))


def test_folders_import_only_the_folders_below() -> None:
    wrong = [
        f"{file} imports {target}"
        for file in python_files()
        for target in sorted(own_imports(file))
        if (here := folder(file)) in FOLDER_MAY_IMPORT
        and (
            folder(target) not in FOLDER_MAY_IMPORT[here]
            if folder(target)
            else target not in {"errors.py", "clock.py", "settings.py", "notebook_settings.py"}
        )
    ]
    check(wrong)


def test_cluster_imports_nothing_that_acts() -> None:
    wrong = []
    for file in python_files():
        if folder(file) != "cluster":
            continue
        for name in sorted(python_imports(PACKAGE / file)):
            top = name.split(".")[0]
            if top in ACTING or (top == "random" and name not in {"random", "random.Random"}):
                wrong.append(f"{file} imports {name}")
        wrong += [f"{file} imports {t}" for t in own_imports(file) & {"clock.py", "settings.py"}]
    check(wrong)


def test_each_outside_library_has_its_home() -> None:
    known = homes()
    wrong = []
    for file in python_files():
        for name in sorted({n.split(".")[0] for n in python_imports(PACKAGE / file)}):
            if (name in sys.stdlib_module_names and name not in known) or name == PACKAGE.name:
                continue
            if name not in known:
                wrong.append(f"{file} imports {name}, which has no home in ARCHITECTURE.md")
            elif not any(fnmatch.fnmatch(file, pattern) for pattern in known[name]):
                wrong.append(f"{file} imports {name}, whose home is {', '.join(known[name])}")
    check(wrong)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (["a.py", "b.py"], []),
        (["b.py", "a.py"], ["b.py imports a.py"]),
        (["b.py"], ["b.py imports a.py"]),
    ],
)
def test_the_layering_check_itself(order: list[str], expected: list[str]) -> None:
    found = upward_errors(order, {"b.py": {"a.py"}, "a.py": set()})
    assert [line.split(",")[0] for line in found] == expected
