"""The exception that programs written for raftos may name."""

from __future__ import annotations


class NotALeaderException(Exception):
    """raftos raises it for whoever is not the leader; here every node takes writes and reads."""
