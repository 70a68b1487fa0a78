"""Hints about operators that have another meaning in DuckDB than in other languages."""

from __future__ import annotations

import re

#: The units of an INTERVAL.
_UNIT = "(?:MICROSECOND|MILLISECOND|SECOND|MINUTE|HOUR|DAY|WEEK|MONTH|YEAR)S?"
OF_LISTS = "write AND: && compares two lists"


def operator_hint(message: str, text: str) -> str:
    """Returns a hint for an error of DuckDB that `&&` for AND, `+` between texts, or `1 HOUR` has caused in a text;
    empty for others."""
    if message.startswith("Chained comparisons") and "&&" in text:
        return OF_LISTS
    unit = re.search(rf'at or near "({_UNIT})"', message, re.IGNORECASE)
    if unit is not None and (found := re.search(rf"(?<!INTERVAL )\b([0-9.]+\s+{unit[1]})\b", text, re.IGNORECASE)):
        return f"write INTERVAL {found[1]}"
    found = re.search(r"Could not convert string '(.*)' to ", message)
    if found is None:
        return ""
    literal = re.escape("'" + found[1].replace("'", "''") + "'")
    return "join texts with ||: + adds numbers" if re.search(rf"{literal}\)*\s*\+|\+\s*\(*{literal}", text) else ""
