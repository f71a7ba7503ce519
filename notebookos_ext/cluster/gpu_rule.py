"""How many GPUs a cell gets, and why: what its author wrote, else a simple rule.

In this order: `%%gpu N` as the cell's first line; `{"notebookos": {"gpus": N, "replica": k}}` in
its metadata; and, where the notebook asks for GPUs per cell, whether the code imports a GPU
framework or names a global through which it reaches one. The reason is shown to the user, who can
overrule it. Works from text alone: it runs and imports nothing, and wrong code is no error here.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping

import msgspec

from notebookos_ext.errors import InvalidRequest

GPU_FRAMEWORKS = frozenset(
    {
        "accelerate",
        "cucim",
        "cudf",
        "cugraph",
        "cuml",
        "cupy",
        "cupyx",
        "deepspeed",
        "diffusers",
        "fastai",
        "flax",
        "jax",
        "keras",
        "lightning",
        "mxnet",
        "numba.cuda",
        "paddle",
        "pycuda",
        "pytorch_lightning",
        "tensorflow",
        "torch",
        "torchaudio",
        "torchvision",
        "transformers",
        "triton",
        "vllm",
    }
)
"""Modules whose import makes a cell of a GPU notebook a GPU cell."""

_ROOTS = frozenset(name.partition(".")[0] for name in GPU_FRAMEWORKS)
_WORD = re.compile(r"[^\W\d]\w*")
_GPU_LINE = re.compile(r"%%gpu(?![\w.])\s*(?P<count>[^#]*?)\s*(?:#.*)?$")
_CELL_MAGIC = re.compile(r"%%(?P<name>\w+)")
_LINE_MAGIC = re.compile(r"^(?P<indent>\s*)(?:[^\W\d][\w,. ]*=\s*)?(?P<mark>%|!)(?P<rest>.*)$")
_HELP = re.compile(r"^\s*(?:\?{1,2}[\w.*]+|[\w.*]+\?{1,2})\s*$")
_IMPORT_TEXT = re.compile(r"^\s*(?:import|from)\s+(?P<modules>[\w., ]+)", re.MULTILINE)
_OTHER_LANGUAGES = frozenset(
    {"bash", "cmd", "css", "file", "html", "javascript", "js", "latex", "markdown", "perl"}
    | {"ruby", "script", "sh", "svg", "sx", "system", "writefile"}
)
"""Cell magics whose body is not Python that runs here."""


class GpuNeed(msgspec.Struct, frozen=True):
    """What a cell gets while it runs, the words for its user, and the replica the user chose."""

    gpus: int
    reason: str
    replica_number: int | None = None


def needed_gpus(
    code: str,
    cell_metadata: Mapping[str, object],
    gpus_per_cell: int,
    gpu_names: frozenset[str] = frozenset(),
) -> GpuNeed:
    """Read a cell. `gpu_names` are globals that reach a GPU framework, as the executor reported.

    Raises InvalidRequest when the `%%gpu` line or the metadata makes no sense.
    """
    asked, replica_number = _from_metadata(cell_metadata)
    in_line = _from_first_line(code)
    if in_line is not None:
        return GpuNeed(in_line, f"%%gpu {in_line}", replica_number)
    if asked is not None:
        return GpuNeed(asked, f"the cell's metadata asks for {asked}", replica_number)
    if gpus_per_cell <= 0:
        return GpuNeed(0, "the notebook asks for no GPUs", replica_number)
    found = reaches_gpu(code, gpu_names)
    if found is not None:
        return GpuNeed(gpus_per_cell, found, replica_number)
    return GpuNeed(0, "the code reaches no GPU framework", replica_number)


def reaches_gpu(code: str, gpu_names: frozenset[str] = frozenset()) -> str | None:
    """Why the code may use a GPU, in words, or None. Below 1 ms for usual cells."""
    words = set(_WORD.findall(code))
    if words.isdisjoint(_ROOTS) and words.isdisjoint(gpu_names):
        return None
    python, magics = _split_magics(code)
    try:
        with warnings.catch_warnings():
            # The user's own odd escapes are warned about when the cell runs.
            warnings.simplefilter("ignore")
            tree = ast.parse(python)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _in_text(code, gpu_names)
    for node in ast.walk(tree):
        # Walked once and no further than to the first find: this is on the way of every cell.
        reason = _reason(node, gpu_names)
        if reason is not None:
            return reason
    return _in_text(magics, gpu_names) if magics else None


# ---- what the author wrote


def _from_first_line(code: str) -> int | None:
    """The number on a `%%gpu` line, which only blank lines and comments may precede."""
    for line in code.splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _GPU_LINE.match(text)
        if match is None:
            return None
        count = match["count"]
        if not (count.isascii() and count.isdigit() and len(count) <= 6):
            raise InvalidRequest(
                f"%%gpu must be followed by a number of GPUs, not {count or 'nothing'!r}",
                hint="write for example %%gpu 1, or %%gpu 0 for a cell that needs none",
            )
        return int(count)
    return None


def _from_metadata(metadata: Mapping[str, object]) -> tuple[int | None, int | None]:
    """GPUs and replica number that the cell's metadata asks for."""
    ours = metadata.get("notebookos")
    if ours is None:
        return None, None
    if not isinstance(ours, Mapping):
        raise InvalidRequest(
            "the cell's metadata has a `notebookos` entry that is not an object",
            hint='write for example {"notebookos": {"gpus": 1}}',
        )
    return _number(ours, "gpus", 0), _number(ours, "replica", 1)


def _number(ours: Mapping[object, object], key: str, least: int) -> int | None:
    value = ours.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidRequest(
            f"`{key}` in the cell's metadata must be a whole number from {least}, not {value!r}",
            hint="correct or remove it in the cell's metadata",
        )
    return value


# ---- what the code reaches


def _split_magics(code: str) -> tuple[str, str]:
    """The code with IPython's lines blanked, and the text of the magics, which may hold code."""
    python: list[str] = []
    magics: list[str] = []
    lines = code.splitlines()
    for number, line in enumerate(lines):
        cell_magic = _CELL_MAGIC.match(line)
        if cell_magic is not None and cell_magic["name"] in _OTHER_LANGUAGES:
            break
        special = _LINE_MAGIC.match(line)
        if cell_magic is not None:
            magics.append(line)
            python.append("")
        elif special is not None and not _continues(lines, number):
            if special["mark"] == "%":
                magics.append(special["rest"])
            python.append(special["indent"] + "pass")
        elif _HELP.match(line):
            python.append("")
        else:
            python.append(line)
    return "\n".join(python), "\n".join(magics)


def _continues(lines: list[str], number: int) -> bool:
    """Whether `%` at the start of a line is an operator that goes on from the line before."""
    before = lines[number - 1].rstrip() if number else ""
    return before.endswith(("\\", "(", "[", "{", ","))


def _reason(node: ast.AST, gpu_names: frozenset[str]) -> str | None:
    """Why this part of the code may use a GPU. A name that it only assigns is a new one."""
    if isinstance(node, ast.Name):
        is_read = node.id in gpu_names and not isinstance(node.ctx, ast.Store)
        return _uses(node.id) if is_read else None
    if isinstance(node, ast.AugAssign):
        target = node.target
        changes = isinstance(target, ast.Name) and target.id in gpu_names
        return _uses(ast.unparse(target)) if changes else None
    for module in _imported(node):
        framework = _framework(module)
        if framework is not None:
            return f"the cell imports {framework}"
    return None


def _imported(node: ast.AST) -> list[str]:
    """Modules that a statement or call imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        if not node.module or node.level:
            return []
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
        if name in {"import_module", "__import__"}:
            return [str(node.args[0].value)]
    return []


def _framework(module: str) -> str | None:
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        name = ".".join(parts[:length])
        if name in GPU_FRAMEWORKS:
            return name
    return None


def _in_text(text: str, gpu_names: frozenset[str]) -> str | None:
    """The same from words alone, for text that Python cannot parse."""
    for match in _IMPORT_TEXT.finditer(text):
        for part in match["modules"].split(","):
            framework = _framework(part.split()[0]) if part.split() else None
            if framework is not None:
                return f"the cell imports {framework}"
    name = next((word for word in _WORD.findall(text) if word in gpu_names), None)
    return _uses(name) if name is not None else None


def _uses(name: str) -> str:
    return f"the cell uses `{name}`, which reaches a GPU framework"
