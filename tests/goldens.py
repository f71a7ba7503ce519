"""Conversations in text files: a command, `----`, the whole expected answer.

    # Comments explain; they stay where they are.
    submit k/c1 gpus=2
    ----
    start-attempt k/c1 attempt=1 on k:1

A block ends at an empty line (two dashes-lines in a row cannot occur in an answer). `--rewrite`, or
REWRITE_GOLDENS=1 in the environment, writes what the code answers now; review the difference and
accept it only when every changed line can be explained.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RULE = "----"


@dataclass
class Block:
    """One command with the comments above it and its answer."""

    comments: list[str]
    command: str
    answer: list[str]
    line: int


def parse(text: str) -> list[Block]:
    """Split a file into its blocks. Raises ValueError, with the line, for a malformed one."""
    blocks: list[Block] = []
    comments: list[str] = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        if not line.strip():
            if comments and comments[-1]:
                comments.append("")
        elif line.startswith("#"):
            comments.append(line)
        else:
            start = number + 1
            if number + 1 >= len(lines) or lines[number + 1] != RULE:
                raise ValueError(f"line {start}: the command {line!r} has no {RULE} below it")
            number += 2
            answer = []
            while number < len(lines) and lines[number].strip():
                answer.append(lines[number])
                number += 1
            blocks.append(Block(comments, line, answer, start))
            comments = []
        number += 1
    return blocks


def render(blocks: list[Block]) -> str:
    """The inverse of `parse`."""
    return (
        "\n\n".join(
            "\n".join([*block.comments, block.command, RULE, *block.answer]) for block in blocks
        )
        + "\n"
    )


def hold(path: Path, interpret: Callable[[str], list[str]], *, rewrite: bool = False) -> None:
    """Say every command of the file to `interpret` and compare its answers with the file's."""
    blocks = parse(path.read_text(encoding="utf-8"))
    assert blocks, f"{path.name} holds no conversation"
    answered = [Block(b.comments, b.command, interpret(b.command), b.line) for b in blocks]
    if rewrite or os.environ.get("REWRITE_GOLDENS"):
        path.write_text(render(answered), encoding="utf-8")
        return
    for expected, actual in zip(blocks, answered, strict=True):
        assert actual.answer == expected.answer, (
            f"{path.name}, line {expected.line}: {expected.command}"
        )
