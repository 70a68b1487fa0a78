"""Hints about operators that have another meaning in DuckDB than in other languages."""

from __future__ import annotations

import re

#: The units of an INTERVAL.
_UNIT = "((?:MICROSECOND|MILLISECOND|SECOND|MINUTE|HOUR|DAY|WEEK|MONTH|YEAR)S?)"
OF_LISTS = "write AND: && compares two lists"


def operator_hint(message: str, text: str) -> str:
    """Returns a hint for an error of DuckDB that `&&` for AND, `+` between texts, or `1 HOUR` has caused in a text;
    empty for others."""
    if message.startswith("Chained comparisons") and "&&" in text:
        return OF_LISTS
    unit = re.search(r'at or near "(\w+)"', message)
    if unit is not None and (amount := re.search(rf"([0-9.]+)\s+{_UNIT}\b", text, re.IGNORECASE)):
        return f"write INTERVAL {amount[1]} {amount[2]}" if amount[2].lower() == unit[1].lower() else ""
    found = re.search(r"Could not convert string '(.*)' to ", message)
    if found is None:
        return ""
    literal = re.escape("'" + found[1].replace("'", "''") + "'")
    return "join texts with ||: + adds numbers" if re.search(rf"{literal}\)*\s*\+|\+\s*\(*{literal}", text) else ""
