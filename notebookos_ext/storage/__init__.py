"""Keeps: logs and checkpoints on disk."""
