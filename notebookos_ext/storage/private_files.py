"""Files that only their owner can read, written whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from notebookos_ext.storage.durable import flush_folder


def write_private(path: Path, text: str) -> None:
    """Return when a file that only its owner can read is on disk, in the place of what was there.

    Raises OSError: what was there is as before, unless nothing but its folder's flush failed.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        # Without it a power cut may bring the former file back, whatever was done since.
        flush_folder(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
