"""What `jupyter notebookos usage --since` takes for a time."""

from __future__ import annotations

import datetime as dt

import pytest

from notebookos_ext.errors import InvalidRequest
from notebookos_ext.live.cli.usage import since

NOW = 1_800_000_000.0


def test_durations_count_back_from_now_and_dates_are_of_this_time_zone() -> None:
    assert since("90m", NOW) == NOW - 5_400
    assert since("2w", NOW) == NOW - 14 * 86_400
    local = dt.datetime(2026, 11, 30).astimezone()
    assert since("2026-11-30", NOW) == local.timestamp()


@pytest.mark.parametrize("text", ["999999999w", "1900-01-01"])
def test_what_lies_before_all_records_is_all(text: str) -> None:
    assert since(text, NOW) == 0.0


@pytest.mark.parametrize(
    "text",
    ["now", "-1d", "7 d", "2026-02-30", "1e9", "9" * 5_000 + "d", "0001-01-01T00:00+23:59"],
)
def test_what_is_no_time_is_said(text: str) -> None:
    with pytest.raises(InvalidRequest, match="give a date such as"):
        since(text, NOW)
