"""Runs in the environment of `make flink`: answers statements with Flink SQL, many in one job.

    flink_engine.py < JOBS > ANSWERS

JOBS is a JSON list of {"tables": {name: {"columns": [[name, type], ...], "rows": [[cell, ...], ...]}}, "query": text};
a cell is a JSON value, times are seconds. ANSWERS is {"version": ..., "answers": [...]} with one answer a job:
{"columns": [...], "rows": [...]} or {"error": text}. Nothing of ours is imported.

A table is a bounded source of JSON lines, read in streaming mode with event time: the column of ORDER BY is its
rowtime, a millisecond behind which its watermark stays, and rows are written in its order, so that none is late. Each
statement is planned alone, and those that Flink can plan run together, as a UNION ALL of (number of the job, row as
JSON text).
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyflink.table import EnvironmentSettings, TableEnvironment

Job = dict[str, Any]
Answer = dict[str, Any]
BATCH = 20
TYPES = {"VARCHAR": "STRING", "TIMESTAMP": "TIMESTAMP(3)", "INTEGER": "INT", "BIGINT": "BIGINT", "DOUBLE": "DOUBLE"}


def environment() -> Any:
    env = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    env.get_config().set("parallelism.default", "1")
    env.get_config().set("table.local-time-zone", "UTC")
    return env


def written(value: Any, type: str) -> Any:
    if value is None or type != "TIMESTAMP":
        return value
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=value)
    return time.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def create(env: Any, folder: Path, number: int, job: Job) -> str:
    """Makes the tables of a job, named apart from those of other jobs; returns its statement over them."""
    query = job["query"]
    by = re.search(r"ORDER\s+BY\s+(\w+)", query)
    assert by, "a statement has an ORDER BY"
    for name, table in job["tables"].items():
        own = f"{name}_{number}"
        path = folder / f"{own}.json"
        names = [column for column, _ in table["columns"]]
        time = names.index(by[1])
        with path.open("w") as file:
            for row in sorted(table["rows"], key=lambda row: row[time]):
                cells = [written(value, type) for value, (_, type) in zip(row, table["columns"])]
                file.write(json.dumps(dict(zip(names, cells))) + "\n")
        columns = ", ".join(f"`{column}` {TYPES[type]}" for column, type in table["columns"])
        env.execute_sql(
            f"CREATE TABLE {own} ({columns}, WATERMARK FOR {by[1]} AS {by[1]} - INTERVAL '0.001' SECOND)"
            f" WITH ('connector' = 'filesystem', 'path' = 'file://{path}', 'format' = 'json')"
        )
        query = re.sub(rf"\bFROM\s+{name}\b", f"FROM {own}", query)
    return query


def is_time(type: str) -> bool:
    """Whether a type, as PyFlink shows it (`DataType(timestamp)`), is one of times."""
    return "timestamp" in type.lower()


def cell(value: Any, type: str) -> Any:
    """A cell of JSON text; a time becomes seconds."""
    if value is None or not is_time(type):
        return value
    time = datetime.fromisoformat(value.ljust(26, "0") if "." in value else value).replace(tzinfo=UTC)
    micros = (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return micros // 1_000_000 if micros % 1_000_000 == 0 else micros / 1_000_000


def planned(env: Any, number: int, query: str) -> tuple[str, list[tuple[str, str]]]:
    """The statement as (number, JSON text), and the columns and types of its answer. Raises what Flink raises."""
    schema = env.sql_query(query).get_resolved_schema()
    columns = [(c.get_name(), repr(c.get_data_type())) for c in schema.get_columns()]
    texts = [f"CAST(`{name}` AS STRING)" if is_time(type) else f"`{name}`" for name, type in columns]
    wrapped = f"SELECT {number} AS job, JSON_ARRAY({', '.join(texts)} NULL ON NULL) AS cells FROM ({query})"
    env.explain_sql(wrapped)
    return wrapped, columns


def run(env: Any, texts: list[str]) -> Iterator[tuple[int, list[Any]]]:
    with env.execute_sql(" UNION ALL ".join(texts)).collect() as rows:
        for row in rows:
            yield row[0], json.loads(row[1])


def complaint(error: Exception) -> dict[str, str]:
    """What Flink says, without the stack of the JVM: the innermost cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.strip().startswith("at ")]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return {"error": (causes[-1] if causes else " ".join(lines[1:] or lines))[:300]}


def answers(jobs: list[Job]) -> list[Answer]:
    env = environment()
    found: dict[int, Answer] = {}
    texts: dict[int, str] = {}
    columns: dict[int, list[tuple[str, str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, job in enumerate(jobs):
            try:
                texts[number], columns[number] = planned(env, number, create(env, Path(folder), number, job))
            except Exception as error:  # noqa: BLE001  (whatever it raises is its answer)
                found[number] = complaint(error)
        numbers = list(texts)
        for start in range(0, len(numbers), BATCH):
            together(env, numbers[start : start + BATCH], texts, columns, found)
    return [found[number] for number in range(len(jobs))]


def together(
    env: Any,
    numbers: list[int],
    texts: dict[int, str],
    columns: dict[int, list[tuple[str, str]]],
    found: dict[int, Answer],
) -> None:
    """Runs these jobs as one; where that fails, by halves, until the one that fails stands alone."""
    rows: dict[int, list[list[Any]]] = {number: [] for number in numbers}
    try:
        for number, cells in run(env, [texts[number] for number in numbers]):
            rows[number].append([cell(value, type) for value, (_, type) in zip(cells, columns[number])])
    except Exception as error:  # noqa: BLE001  (whatever it raises is its answer)
        if len(numbers) == 1:
            found[numbers[0]] = complaint(error)
            return
        half = len(numbers) // 2
        together(env, numbers[:half], texts, columns, found)
        together(env, numbers[half:], texts, columns, found)
        return
    for number in numbers:
        found[number] = {"columns": [name for name, _ in columns[number]], "rows": rows[number]}


def main() -> None:
    done = answers(json.load(sys.stdin))
    sys.stdout.write(json.dumps({"version": version("apache-flink"), "answers": done}) + "\n")


if __name__ == "__main__":
    main()
