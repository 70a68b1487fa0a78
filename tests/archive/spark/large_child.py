"""A process of its own in which a live query starts Spark, and Spark then ends: prints the rows and what was said.

python large_child.py DIRECTORY ADDRESS [KILLS...]: the address of Spark, or "-" for none; for each live match how often
Java is killed while it searches.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from datetime import datetime, timedelta
from typing import Any

import hybrid
from archive.spark import search

QUERY = """SELECT pl.n AS p, pa.n FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES P.n AS n, P.ts AS at PATTERN (P)
    DEFINE P AS s = 'p') AS pl
JOIN HISTORY OF e FROM pl.at - INTERVAL 1 HOUR TO pl.at
    MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES U.n AS n PATTERN (U) DEFINE U AS n % 3 = 0) AS pa ON TRUE"""
COLUMNS = {"ts": "TIMESTAMP", "n": "BIGINT", "k": "VARCHAR", "s": "VARCHAR"}
START = datetime(2024, 1, 2)


def at(n: int) -> datetime:
    return START + timedelta(seconds=n)


def pushed(turn: int) -> list[dict[str, Any]]:
    """Twenty events, of which the last one is a live match."""
    ns = range(20 * turn, 20 * turn + 20)
    return [{"ts": at(n), "n": n, "k": "ab"[n % 2], "s": "p" if n % 20 == 19 else "q"} for n in ns]


def main(directory: str, address: str, *kills: str) -> None:
    left, ask = 0, search._ask
    killed: list[int] = []

    def killing(*given: Any) -> Any:
        """Asks Spark, whose Java is killed at that moment as often as is left to do."""
        nonlocal left
        if left:
            left -= 1
            from pyspark import SparkContext

            killed.append(SparkContext._gateway.proc.pid)
            os.kill(killed[-1], 9)
        return ask(*given)

    search._ask = killing  # type: ignore[assignment]
    spark = {} if address == "-" else {"spark": address, "spark_events": 3}
    with warnings.catch_warnings(record=True) as said, hybrid.connect(directory, **spark) as db:  # type: ignore[arg-type]
        warnings.simplefilter("always")
        db.create_stream("e", COLUMNS, time="ts")
        alerts, rows = db.watch(QUERY), []
        for turn, times in enumerate(kills):
            left = int(times)
            db.push("e", pushed(turn))
            db.advance("e", at(20 * turn + 20))
            rows.append(alerts.fetch().to_pylist())
        stats = alerts.stats()
    told = [str(w.message) for w in said if issubclass(w.category, hybrid.HybridWarning)]
    sys.stdout.write(json.dumps({"rows": rows, "stats": stats, "told": told, "killed": killed}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
