"""Hints about operators that have another meaning in DuckDB than in other languages."""

from __future__ import annotations

import re

OF_LISTS = "write AND: && compares two lists"


def operator_hint(message: str, text: str) -> str:
    """Returns a hint for an error of DuckDB that `&&` for AND, or `+` between texts, has caused in a text; empty for
    others."""
    if message.startswith("Chained comparisons") and "&&" in text:
        return OF_LISTS
    found = re.search(r"Could not convert string '(.*)' to ", message)
    if found is None:
        return ""
    literal = re.escape("'" + found[1].replace("'", "''") + "'")
    return "join texts with ||: + adds numbers" if re.search(rf"{literal}\)*\s*\+|\+\s*\(*{literal}", text) else ""
