"""Runs in the environment of `make peers`: answers statements with pandas_match_recognize.

    pandas_engine.py < JOBS > ANSWERS

JOBS is a JSON list of {"tables": {name: {"columns": [[name, type], ...], "rows": [[cell, ...], ...]}}, "query": text};
a cell is a JSON value, times are seconds. ANSWERS is {"version": ..., "answers": [...]} with one answer a job:
{"columns": [...], "rows": [...]} or {"error": text}. Nothing of ours is imported.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import sys
from importlib.metadata import version
from typing import Any

import pandas
from pandas_match_recognize import match_recognize

Job = dict[str, Any]
DTYPES = {"INTEGER": "int64", "BIGINT": "int64", "DOUBLE": "float64", "VARCHAR": "object"}


def frame(columns: list[list[str]], rows: list[list[Any]]) -> pandas.DataFrame:
    """A table as a frame. Numbers with nulls are floats with NaN, as pandas reads them from a file."""
    made = {}
    for at, (name, type) in enumerate(columns):
        values = [row[at] for row in rows]
        if type == "TIMESTAMP":
            made[name] = pandas.to_datetime(pandas.Series(values, dtype="object"), unit="s")
        elif None in values and DTYPES[type] != "object":
            made[name] = pandas.Series(values, dtype="float64")
        else:
            made[name] = pandas.Series(values, dtype=DTYPES[type])
    return pandas.DataFrame(made)


def cell(value: Any) -> Any:
    if value is None or value is pandas.NaT or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, pandas.Timestamp):
        micros = value.value // 1_000
        return micros // 1_000_000 if micros % 1_000_000 == 0 else micros / 1_000_000
    return value.item() if hasattr(value, "item") else value


def answer(job: Job) -> dict[str, Any]:
    query = job["query"]
    name = re.search(r"\bFROM\s+(\w+)", query)
    assert name
    table = job["tables"][name[1]]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            found = match_recognize(query, frame(table["columns"], table["rows"]))
    except Exception as error:  # noqa: BLE001  (whatever it raises is its answer)
        return {"error": f"{type(error).__name__}: {error}"}
    rows = [[cell(value) for value in row] for row in found.itertuples(index=False, name=None)]
    return {"columns": [str(column) for column in found.columns], "rows": rows}


def main() -> None:
    logging.disable(logging.CRITICAL)
    answers = [answer(job) for job in json.load(sys.stdin)]
    json.dump({"version": version("pandas_match_recognize"), "answers": answers}, sys.stdout)


if __name__ == "__main__":
    main()
