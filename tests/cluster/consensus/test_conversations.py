"""The consensus core against whole conversations, tests/testdata/consensus/*.txt."""

from __future__ import annotations

from pathlib import Path

import goldens
import pytest
from consensus_talk import Conversation

FOLDER = Path(__file__).resolve().parent.parent.parent / "testdata" / "consensus"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_conversation(path: Path, rewrite: bool) -> None:
    goldens.hold(path, Conversation(), rewrite=rewrite)
