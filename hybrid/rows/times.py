"""Parses and formats times and durations; the values are int64 microseconds."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from query.errors import DataError

_UNITS_US = {
    "us": 1, "microsecond": 1, "microseconds": 1,
    "ms": 1_000, "millisecond": 1_000, "milliseconds": 1_000,
    "s": 1_000_000, "sec": 1_000_000, "second": 1_000_000, "seconds": 1_000_000,
    "m": 60_000_000, "min": 60_000_000, "minute": 60_000_000, "minutes": 60_000_000,
    "h": 3_600_000_000, "hour": 3_600_000_000, "hours": 3_600_000_000,
    "d": 86_400_000_000, "day": 86_400_000_000, "days": 86_400_000_000,
    "w": 604_800_000_000, "week": 604_800_000_000, "weeks": 604_800_000_000,
}  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class BadTime(DataError):
    """Raised for a value that is no time, no duration, or not an allowed one. what: its name. reason: the end of the
    message, after `WHAT is VALUE`."""

    def __init__(self, what: str, value: Any, reason: str, hint: str) -> None:
        super().__init__(f"{what} is {value!r}{reason}", hint)
        self.what, self.value, self.reason = what, value, reason

    def _arguments(self) -> tuple[object, ...]:
        return self.what, self.value, self.reason, self.hint


class NotADuration(BadTime):
    """Raised for a value that is no duration of fixed length."""


def duration_us(value: Any, what: str) -> int:
    """Returns a duration in microseconds. value: "2s", "1.5 hours", "400 days", a timedelta, or 0. Raises
    NotADuration."""
    if isinstance(value, timedelta):
        us = value // _MICROSECOND
    elif isinstance(value, str) and (m := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*", value)):
        unit = _UNITS_US.get(m[2].lower())
        exact = Decimal(m[1]) * unit if unit else None
        if exact is None or exact != int(exact):
            raise _bad_duration(value, what)
        us = int(exact)
    elif (isinstance(value, int | float) and value == 0) or (isinstance(value, str) and value.strip() == "0"):
        us = 0
    else:
        raise _bad_duration(value, what)
    if us < 0:
        raise _bad_duration(value, what)
    return us


def positive_us(value: Any, what: str) -> int:
    """Returns a duration in microseconds as duration_us does. Raises BadTime also for 0."""
    us = duration_us(value, what)
    if not us:
        raise BadTime(what, value, ", but must be positive", "write a duration such as '10s', or leave it out")
    return us


def show_duration(us: int | None) -> str:
    """Formats a duration for duration_us, in the largest unit that needs no fraction."""
    if us is None:
        return "none"
    unit = next((u for u in ("d", "h", "min", "s", "ms") if us and us % _UNITS_US[u] == 0), "us")
    return f"{us // _UNITS_US[unit]} {unit}" if us else "0 s"


def _bad_duration(value: Any, what: str) -> NotADuration:
    return NotADuration(
        what, value, ", not a duration",
        "write a number and a unit of fixed length, such as '500 ms', '2s' or '400 days', or pass a timedelta",
    )  # fmt: skip


def instant_us(value: Any, what: str) -> int:
    """Returns a time in microseconds since 1970. value: ISO text, a datetime or date (naive is UTC), a numpy or pandas
    time, or int microseconds.

    Raises BadTime, also for a time that is not a whole microsecond."""
    if getattr(value, "nanosecond", 0):
        raise BadTime(what, value, ", not a whole microsecond", "round it")
    if isinstance(value, bool):
        raise _bad_instant(value, what)
    if isinstance(value, int):
        return value
    if type(value).__module__ == "numpy" and hasattr(value, "astype"):
        us = value.astype("datetime64[us]")
        if us != value:
            raise BadTime(what, value, ", not a whole microsecond", "round it")
        return int(us.astype("int64"))
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise _bad_instant(value, what) from None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        raise _bad_instant(value, what)
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).__sub__(_EPOCH) // _MICROSECOND


def _bad_instant(value: Any, what: str) -> BadTime:
    return BadTime(
        what, value, ", not a point in time",
        "write it as '2024-01-02 10:00', or pass a datetime (naive is UTC) or microseconds since 1970",
    )  # fmt: skip


def show_us(us: int | None) -> str | None:
    """Formats a time as text, UTC; None for None."""
    if us is None:
        return None
    try:
        return (_EPOCH + timedelta(microseconds=us)).replace(tzinfo=None).isoformat(" ")
    except OverflowError:
        return f"{us} us"
