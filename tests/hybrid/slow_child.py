"""A process whose history never answers: says that it is ready, and goes on as it is told.

python slow_child.py DIRECTORY fetch|with|keeper
"""

from __future__ import annotations

import sys
import threading
import time
from datetime import datetime, timedelta
from typing import Any

import hybrid
from archive.keeper import Keeper
from hybrid.join.driver import Driver

QUERY = """SELECT pl.v AS p, pa.v FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES P.v AS v, P.ts AS at PATTERN (P)
    DEFINE P AS v = 9) AS pl
JOIN HISTORY OF e FROM pl.at - INTERVAL 1 HOUR TO pl.at
    MATCH_RECOGNIZE (ORDER BY ts MEASURES U.v AS v PATTERN (U)) AS pa ON TRUE"""
asked = threading.Event()


def never(*_: Any) -> Any:
    asked.set()
    time.sleep(3600)


def main(directory: str, then: str) -> None:
    setattr(*((Keeper, "_tend", never) if then == "keeper" else (Driver, "_answered", never)))
    db = hybrid.connect(directory)
    db.create_stream("e", {"ts": "TIMESTAMP", "v": "BIGINT"}, time="ts")
    alerts = db.watch(QUERY)
    db.push("e", [{"ts": datetime(2024, 1, 1) + timedelta(seconds=i), "v": i} for i in range(10)])
    db.advance("e", "2024-01-01 00:01:00")
    asked.wait()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if then == "fetch":
        alerts.fetch()
    elif then == "with":
        with db:
            time.sleep(3600)
    time.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:])
