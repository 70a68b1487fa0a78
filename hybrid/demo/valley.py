"""README's first example: nine prices of nine days, and the valley among them."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import hybrid
from hybrid.rows.result import Result

QUERY = (Path(__file__).parent / "valley.sql").read_text(encoding="utf-8")
PRICES = {
    "day": [date(2024, 3, day) for day in range(4, 13)],
    "price": [10, 11, 9, 7, 8, 10, 12, 11, 12],
}


def run() -> Result:
    """Returns the valley of README."""
    return hybrid.sql(QUERY, prices=PRICES)
