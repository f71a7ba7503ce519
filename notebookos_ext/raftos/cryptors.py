"""Names that programs written for raftos may configure; connections are encrypted in any case."""

from __future__ import annotations


class Cryptor:
    """raftos's choice of its own encryption; it needs nothing to be done here."""


class DummyCryptor:
    """raftos's choice of no encryption, which cannot be had here."""


default_cryptor = Cryptor
