"""Giving an object its state without asking it: its hooks may need what is not there yet."""

from __future__ import annotations

from typing import Any


def fill(value: Any, state: dict[str, Any]) -> None:
    """Set the attributes without asking the object, whose hooks may need what is not there yet."""
    vars(value).update(state)


def fill_slots(value: Any, state: Any) -> None:
    """Set `__dict__` and slots without asking the object."""
    attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if attributes:
        vars(value).update(attributes)
    for key, item in (slots or {}).items():
        object.__setattr__(value, key, item)
