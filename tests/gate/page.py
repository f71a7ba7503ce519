"""The tables of docs/consensus.md that commands write."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "consensus.md"


def read(command: str, page: Path = PAGE) -> str:
    """What stands between the marks of this command."""
    return _parts(command, page)[1]


def write(command: str, text: str, page: Path = PAGE) -> None:
    """Put `text` between the marks of this command."""
    before, _, after = _parts(command, page)
    page.write_text(f"{before}\n{text.strip()}\n{after}", encoding="utf-8")


def _parts(command: str, page: Path) -> tuple[str, str, str]:
    text = page.read_text(encoding="utf-8")
    begin, end = f"<!-- begin: {command} -->\n", f"<!-- end: {command} -->\n"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{page} has no single place for what `{command}` writes")
    before, _, rest = text.partition(begin)
    within, _, after = rest.partition(end)
    return before + begin, within, end + after
