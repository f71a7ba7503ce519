"""Tables of text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable


def table(heading: tuple[str, ...], rows: list[tuple[str, ...]], *, empty: str) -> Iterable[str]:
    """The lines of a table, or the line `empty` when it has no rows."""
    if not rows:
        yield empty
        return
    widths = [max(len(row[i]) for row in (heading, *rows)) for i in range(len(heading))]
    for row in (heading, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
