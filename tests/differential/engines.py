"""The other engines: child processes of their own environments that get jobs and give answers, and ours beside them."""

from __future__ import annotations

import json
import re
import subprocess
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import duckdb

import hybrid
from query.errors import DataError, HybridWarning, QueryError
from tests.cases.golden import Cell, Cells, arrow

ROOT = Path(__file__).parents[2]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Engine:
    """name: as a case writes it. environment: what `make` target installs it, and the folder it makes."""

    name: str
    target: str
    environment: str
    script: str

    @property
    def python(self) -> Path:
        return ROOT / self.environment / "bin" / "python"


PANDAS = Engine("pandas_match_recognize", "peers", ".peers", "pandas_engine.py")
FLINK = Engine("flink-sql", "flink", ".flink", "flink_engine.py")
ENGINES = (PANDAS, FLINK)


@dataclass(frozen=True, slots=True)
class Job:
    """One statement over named tables, as a golden case has them."""

    inputs: dict[str, Cells]
    query: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns and rows in the order they came; cells are canonical texts."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The engine gave no rows but an error."""

    text: str


Answer = Rows | Refusal


def canonical(value: object) -> Cell:
    """One text for equal values: numbers by value to 12 digits, times as seconds, null as None."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case float() | Decimal():
            number = float(value)
            return str(int(number)) if number.is_integer() and abs(number) < 2**53 else format(number, ".12g")
        case datetime():
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            return canonical(Decimal((aware - EPOCH) // timedelta(microseconds=1)) / 1_000_000)
        case str():
            return value
        case list():
            return "[" + ", ".join(canonical(item) or "null" for item in value) + "]"
    raise ValueError(f"an engine gave a {type(value).__name__}")


def canonical_text(cell: Cell) -> Cell:
    """A cell of a case file as `canonical` writes its value."""
    if cell is not None and re.fullmatch(r"-?\d+(\.\d+)?(e[-+]?\d+)?", cell):
        return canonical(Decimal(cell))
    return cell


def json_cell(cell: Cell, type: str) -> object:
    """A cell of an input as the JSON value that the child scripts read."""
    if cell is None or type == "VARCHAR":
        return cell
    if type in ("INTEGER", "BIGINT"):
        return int(cell)
    return int(cell) if type == "TIMESTAMP" and re.fullmatch(r"-?\d+", cell) else float(cell)


def ask(engine: Engine, jobs: Sequence[Job], seconds: int = 1_800) -> tuple[str, list[Answer]]:
    """The version of the engine and its answer to each job. Raises RuntimeError where the child fails."""
    if not engine.python.exists():
        raise RuntimeError(f"{engine.name} is not installed: make {engine.target}")
    texts = [
        {
            "tables": {
                name: {
                    "columns": [list(column) for column in cells.columns],
                    "rows": [[json_cell(c, type) for c, (_, type) in zip(row, cells.columns)] for row in cells.rows],
                }
                for name, cells in job.inputs.items()
            },
            "query": job.query,
        }
        for job in jobs
    ]
    child = subprocess.run(
        [str(engine.python), str(Path(__file__).parent / engine.script)],
        input=json.dumps(texts), capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    if child.returncode:
        raise RuntimeError(f"{engine.name} failed:\n{child.stderr[-2_000:]}")
    found = json.loads(child.stdout.splitlines()[-1])
    return found["version"], [_answer(each) for each in found["answers"]]


def _answer(found: dict[str, object]) -> Answer:
    if "error" in found:
        return Refusal(str(found["error"]))
    columns, rows = found["columns"], found["rows"]
    assert isinstance(columns, list)
    assert isinstance(rows, list)
    return Rows(tuple(columns), tuple(tuple(map(canonical, row)) for row in rows))


def ours(job: Job) -> Answer:
    """What hybrid.sql answers."""
    with duckdb.connect() as connection, warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        tables = {name: arrow(cells, connection) for name, cells in job.inputs.items()}
        try:
            table = hybrid.sql(job.query, **tables).arrow()
        except QueryError as error:
            return Refusal(" ".join(sorted({d.code for d in error.diagnostics})) + f": {error}")
        except DataError as error:
            return Refusal(f"DataError: {error}")
    rows = tuple(tuple(map(canonical, row.values())) for row in table.to_pylist())
    return Rows(tuple(table.column_names), rows)


def same(a: Answer, b: Answer) -> bool:
    """Equal columns (whatever the case of their names), and equal rows of each first cell in equal order.

    An answer without rows is equal to another: pandas_match_recognize then leaves columns out."""
    if isinstance(a, Refusal) or isinstance(b, Refusal):
        return False
    if not a.rows and not b.rows:
        return True
    if [c.lower() for c in a.columns] != [c.lower() for c in b.columns]:
        return False
    return sorted(a.rows, key=_first) == sorted(b.rows, key=_first)


def _first(row: tuple[Cell, ...]) -> str:
    return repr(row[:1])
