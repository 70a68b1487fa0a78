"""README's first example: nine prices of nine days, and the valley among them."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa

import hybrid
from hybrid.rows.result import Result

QUERY = (Path(__file__).parent / "valley.sql").read_text(encoding="utf-8")
FIRST_DAY = datetime(2024, 3, 4)
PRICES = (10, 11, 9, 7, 8, 10, 12, 11, 12)


def run() -> Result:
    """Returns the valley of README, from an Arrow table of the prices of its frame."""
    days = [FIRST_DAY + timedelta(days=n) for n in range(len(PRICES))]
    return hybrid.sql(QUERY, prices=pa.table({"day": days, "price": PRICES}))
