"""Of a log only our own sentences are shown, and nothing of a user's that was put into them."""

from __future__ import annotations

from pathlib import Path

import pytest

from notebookos_ext.live.log_sentences import Sentences

KERNEL = "8f0fdb47-7525-4332-a01d-fdd45eafd82e"
SOURCE = """
log.warning("replica %s (process %d) %s", replica, pid, words)
raise StorageError(f"the store at {path} is full; free {count} bytes")
"killed by signal 9"
"%s: %s"
"""


@pytest.fixture
def sentences(tmp_path: Path) -> Sentences:
    (tmp_path / "module.py").write_text(SOURCE)
    return Sentences(tmp_path)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"replica {KERNEL}:2 (process 12) killed by signal 9",) * 2,
        (f"replica {KERNEL}:2 (process 12) said hunter2",
         f"replica {KERNEL}:2 (process 12) …"),
        ("the store at /home/ada/x is full; free 12 bytes",
         "the store at … is full; free 12 bytes"),
        ("replica x (process 1) the store at /home/ada is full; free 1 bytes",
         "replica … (process 1) the store at … is full; free 1 bytes"),
        ("password: hunter2", None),
        ("the store at hunter2", None),
        ("0123456789abcdef0123456789abcdef", None),
        ("4111111111111111", None),
    ],
)  # fmt: skip
def test_gaps_are_closed(sentences: Sentences, text: str, shown: str | None) -> None:
    assert sentences.shown(text) == shown


def test_lines_that_are_not_ours_are_counted(sentences: Sentences) -> None:
    at = "2026-11-30 12:00:00,123"
    log = [
        f"{at} WARNING notebookos_ext.agent.host: killed by signal 9",
        f"{at} INFO somebody.else: hunter2",
        "Traceback (most recent call last):",
        '  File "/home/ada/lib/notebookos_ext/agent/host.py", line 12, in run',
        "    secret = 'hunter2'",
        '  File "/home/ada/hunter2.py", line 3, in hunter2',
        "ValueError: hunter2",
        "hunter2.Error: killed by signal 9",
        "notebookos_ext.errors.StorageError: the store at /home/ada is full; free 3 bytes",
    ]
    assert list(sentences.lines(log)) == [
        f"{at} WARNING notebookos_ext.agent.host: killed by signal 9",
        f"{at} INFO …: …",
        "  (1 left out)",
        "  notebookos_ext/agent/host.py:12 in run",
        "  (2 left out)",
        "  ValueError: …",
        "  (1 left out)",
        "  notebookos_ext.errors.StorageError: the store at … is full; free 3 bytes",
    ]
