"""Reads golden cases: an input, a statement, and the rows or the error that the rules of the language give.

See tests/cases/README.md for the format of a case file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pyarrow as pa

HOME = Path(__file__).parent / "golden"

#: A cell as written; None is null.
Cell = str | None
_TIMES = ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ")


@dataclass(frozen=True, slots=True)
class Cells:
    """A table as written. columns: (name, type), the type empty where none is given."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]
    in_order: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """One statement over named inputs. Either `rows` or `error` (a code, or DataError) is there; `live`: the rows that
    a watch gives, where that is something else; `suppressed`: what its ALERT ONCE keeps back, in the columns named."""

    file: str
    title: str
    source: str
    inputs: dict[str, Cells] = field(hash=False)
    query: str
    rows: Cells | None
    error: str | None
    live: Cells | None
    suppressed: Cells | None

    @property
    def name(self) -> str:
        return f"{self.file}:{self.title}"


def read_cases(home: Path = HOME) -> list[Case]:
    """All cases below `home`, by file name, then in the order of the file. Raises ValueError for what is no case."""
    return [case for path in sorted(home.glob("**/*.case")) for case in read_file(path, path.relative_to(home))]


def read_file(path: Path, shown: Path) -> list[Case]:
    """The cases of one file. A line `# title` begins a case; what stands before the first one is a note."""
    name = str(shown.with_suffix(""))
    cases = []
    for text in re.split(r"^(?=# )", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
        if text.startswith("# "):
            cases.append(_case(name, text))
    return cases


def _case(file: str, text: str) -> Case:
    head, *sections = re.split(r"^== ", text, flags=re.MULTILINE)
    title = head.splitlines()[0].removeprefix("# ").strip()
    where = f"{file}: {title}"
    source, query, error = "", "", None
    rows, live, suppressed = None, None, None
    inputs: dict[str, Cells] = {}
    for section in sections:
        name, _, body = section.partition("\n")
        lines = [line for line in body.splitlines() if line.strip()]
        match name.split():
            case ["source"]:
                source = " ".join(lines)
            case ["input", table]:
                inputs[table] = _cells(lines, False, where)
            case ["query"]:
                query = body.strip()
            case ["rows", *how]:
                rows = _cells(lines, how == ["in", "order"], where)
            case ["live", "rows", *how]:
                live = _cells(lines, how == ["in", "order"], where)
            case ["suppressed"]:
                suppressed = _cells(lines, False, where)
            case ["error", code]:
                error = code
            case _:
                raise ValueError(f"{where}: there is no section {name!r}")
    if not source or not query or (rows is None) == (error is None):
        raise ValueError(f"{where}: a case has a source, a query, and rows or an error")
    return Case(file, title, source, inputs, query, rows, error, live, suppressed)


def _cells(lines: list[str], in_order: bool, where: str) -> Cells:
    if not lines:
        raise ValueError(f"{where}: a table begins with its columns")
    columns = [re.fullmatch(r'("[^"]+"|\S+)\s*(.*)', cell) for cell in split(lines[0])]
    names = tuple((c[1].strip('"'), c[2].strip()) for c in columns if c)
    rows = tuple(tuple(None if cell == "null" else unquoted(cell) for cell in split(line)) for line in lines[1:])
    if len(names) < len(columns) or any(len(row) != len(names) for row in rows):
        raise ValueError(f"{where}: a row of {len(names)} columns has another number of cells")
    return Cells(names, rows, in_order)


def split(line: str) -> list[str]:
    """The cells of a line: `|` divides them, but not between single quotes."""
    return [cell.strip() for cell in re.findall(r"(?:^|\|)((?:'(?:[^']|'')*'|[^|'])*)", line)]


def unquoted(cell: str) -> str:
    """A cell that is one quoted string without its quotes."""
    return cell[1:-1].replace("''", "'") if re.fullmatch(r"'(?:[^']|'')*'", cell) else cell


def literal(cell: Cell, type: str) -> str:
    """The SQL of a cell of a DuckDB type: whole numbers are seconds where it is a time."""
    if cell is None:
        return f"CAST(NULL AS {type})"
    if type.upper() in _TIMES and re.fullmatch(r"-?\d+", cell):
        return f"CAST(make_timestamp({cell} * 1000000::BIGINT) AS {type})"
    text = cell.replace("'", "''")
    return f"CAST('{text}' AS {type})"


def arrow(cells: Cells, connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """An input as an Arrow table, its rows in the order written."""
    types = [type for _, type in cells.columns]
    names = ", ".join('"' + name.replace('"', '""') + '"' for name, _ in cells.columns)
    rows = [", ".join(map(literal, row, types)) for row in cells.rows] or [", ".join(literal(None, t) for t in types)]
    values = ", ".join(f"({row})" for row in rows)
    table: pa.Table = connection.sql(f"SELECT * FROM (VALUES {values}) AS v({names})").to_arrow_table()
    return table if cells.rows else table.slice(0, 0)


def shown(table: pa.Table, connection: duckdb.DuckDBPyConnection) -> tuple[list[str], list[tuple[Cell, ...]]]:
    """DuckDB's types of the columns of an answer, and its rows as DuckDB writes them out."""
    if not table.num_columns:
        return [], []
    numbered = table.rename_columns([f"c{i}" for i in range(table.num_columns)])
    connection.register("__answer", numbered)
    try:
        types = [str(t) for t in connection.sql("FROM __answer").types]
        columns = ", ".join(f"CAST(c{i} AS VARCHAR)" for i in range(table.num_columns))
        return types, connection.sql(f"SELECT {columns} FROM __answer").fetchall()
    finally:
        connection.unregister("__answer")


def expected(cells: Cells, types: list[str], connection: duckdb.DuckDBPyConnection) -> list[tuple[Cell, ...]]:
    """The rows of a case as DuckDB writes out values of these types; a cell that is none of its type, as written."""
    if not cells.rows or len(types) != len(cells.columns):
        return list(cells.rows)
    values = ", ".join(f"({', '.join(_written(c, t) for c, t in zip(row, types))})" for row in cells.rows)
    return connection.sql(f"FROM (VALUES {values})").fetchall()


def _written(cell: Cell, type: str) -> str:
    if cell is None:
        return "CAST(NULL AS VARCHAR)"
    text = cell.replace("'", "''")
    value = literal(cell, type).replace("CAST(", "TRY_CAST(", 1)
    return f"coalesce(CAST({value} AS VARCHAR), '{text}')"
