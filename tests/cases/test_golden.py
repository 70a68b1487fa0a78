"""Golden cases on every path: batch, reference, live, and rows that come one by one.

Each case of tests/cases/golden is answered by hybrid.sql, by the same statement with the reference as its matcher, and
in batches of 1, of 7 and of all rows (by day of 1 or of all): pushed to a stream that is watched where the statement
can be watched, and into the matchers of the statement otherwise. All must give the rows, or the error, that the case
says.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa
import pytest

import hybrid
import hybrid.database.planned
import hybrid.statement.statement
import matching.matcher
from archive.reader import HistoryReader
from hybrid.rows.inputs import OrderedInput
from hybrid.statement.by_key import Met
from hybrid.statement.relations import Relations
from hybrid.statement.statement import answer
from hybrid.watch.alerts import Alerts
from matching.batch import EventBatch
from matching.by_reference import ReferenceMatcher
from matching.engines.choose import choose_engine
from query.errors import DataError, HybridWarning, QueryError
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.expression import Column
from query.plan.plan import FactorPlan, Order, QueryPlan
from tests.cases.golden import Case, Cell, Cells, arrow, expected, read_cases, shown
from tests.engines import once
from tests.properties.comparing import is_nightly

CASES = read_cases()
SIZES = (1, 7, 1_000)
TIMES = ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE")

#: Faults of a watch that say: this statement has an answer on a bounded input only.
BOUNDED_ONLY = {"HQ212", "HQ213", "HQ400"}

Row = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """What a path raised: the codes of a QueryError, or the name of another error; and what it says."""

    codes: frozenset[str]
    text: str


Outcome: TypeAlias = pa.Table | Fault


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a path must give: rows, or an error; and the columns by which rows in order are divided."""

    rows: Cells | None
    error: str | None
    keys: tuple[str, ...] = ()


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


@pytest.fixture(autouse=True)
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case's text is parsed once, and bound and given an engine once for the watches of it: most of the time of a
    case goes there."""
    plans: dict[str, QueryPlan] = {}

    def bind_once(query: Any, *args: Any, **named: Any) -> QueryPlan:
        if query.text not in plans:
            plans[query.text] = bind(query, *args, **named)
        return plans[query.text]

    parse_once = cache(parse)
    monkeypatch.setattr(hybrid.statement.statement, "parse", parse_once)
    monkeypatch.setattr(hybrid.database.planned, "parse", parse_once)
    monkeypatch.setattr(hybrid.database.planned, "bind", bind_once)
    monkeypatch.setattr(matching.matcher, "choose_engine", once(choose_engine))


#: The quick part of the suite takes each so manieth case.
QUICK_STEP = 20


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=c.name, marks=pytest.mark.slow if i % QUICK_STEP else ()) for i, c in enumerate(CASES)],
)
def test_golden(case: Case, connection: duckdb.DuckDBPyConnection) -> None:
    tables = {name: arrow(cells, connection) for name, cells in case.inputs.items()}
    failures = []
    seen: list[tuple[Wanted, pa.Table, str]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)  # slow paths, idle clauses, matches that wait: all meant here
        for path, wanted, found in outcomes(case, tables):
            same = (c for w, t, c in seen if w == wanted and isinstance(found, pa.Table) and t.equals(found))
            complaint = next(same, None)
            if complaint is None:
                complaint = compare(wanted, found, connection)
                if isinstance(found, pa.Table):
                    seen.append((wanted, found, complaint))
            if complaint:
                failures.append(f"--- {path}\n{complaint}")
    if failures:
        pytest.fail("\n\n".join([f"{case.name}\n{case.source}", case.query, *failures]), pytrace=False)


def test_cases_are_named_apart() -> None:
    names = [case.name for case in CASES]
    assert sorted(set(names)) == sorted(names)
    assert len([case for case in CASES if case.file.startswith("hand/")]) >= 700


# ---- the paths -------------------------------------------------------------------------------------------------


class Pieces(Relations):
    """Relations whose events come in batches of `size` rows."""

    size = 1

    def factor(
        self, factor: FactorPlan, by_key: bool = False, again: bool = True, met: Met | None = None
    ) -> tuple[Iterator[EventBatch], HistoryReader, bool]:
        batches, reader, late = super().factor(factor, by_key, again, met)
        return self.pieces(batches), reader, late

    def pieces(self, batches: Iterator[EventBatch]) -> Iterator[EventBatch]:
        for batch in batches:
            for start in range(0, len(batch), self.size):
                yield batch.slice(start, min(start + self.size, len(batch)))


def outcomes(case: Case, tables: dict[str, pa.Table]) -> Iterator[tuple[str, Wanted, Outcome]]:
    """For each path its name, what it should give, and what it gave. By day a third of the cases goes by the reference
    and another third is watched: which ones, their lengths say."""
    plan = planned(case, tables)
    keys = keys_shown(plan)
    wanted = Wanted(case.rows, case.error, keys)
    yield "hybrid.sql", wanted, attempt(by_kernel, case, tables)
    third = None if is_nightly() else len(case.query) % 3
    if third in (None, 0):
        yield "reference", wanted, attempt(by_reference, case, tables)
    if third in (0, 2) or plan is None or (case.error is not None and case.live is None):
        return
    on_stream = Wanted(case.live or case.rows, None, keys)
    rows = streamed(case, tables, plan)
    longest = max([0, *(t.num_rows for t in tables.values())])
    sizes = SIZES[: 1 + (longest > 1) + (longest > 7)]  # the first that holds all rows is the last
    for size in sizes if is_nightly() else (sizes[-(len(case.query) % 2)],):
        found = None if rows is None else attempt(watched, case, tables, plan, rows, size)
        if merges(plan, tables):
            found = attempt(watched_merged, case, tables, plan, size)
        if isinstance(found, Fault) and found.codes & BOUNDED_ONLY:
            rows = found = None
        if found is not None:
            yield f"watch, batches of {size}", on_stream, found
            if case.suppressed is not None and rows is not None:
                kept_back = attempt(watched, case, tables, plan, rows, size, suppressed)
                yield f"suppressed, batches of {size}", Wanted(case.suppressed, None), kept_back
        elif case.rows is not None:
            yield f"matchers, batches of {size}", wanted, attempt(in_pieces, case, tables, size)


def attempt(run: Callable[..., pa.Table], *args: Any) -> Outcome:
    try:
        return run(*args)
    except QueryError as error:
        return Fault(frozenset(d.code for d in error.diagnostics), str(error))
    except DataError as error:
        return Fault(frozenset({"DataError"}), str(error))
    except Exception as error:  # noqa: BLE001  (a path that breaks is a failure of this case, beside the other paths)
        return Fault(frozenset({type(error).__name__}), str(error))


def planned(case: Case, tables: dict[str, pa.Table]) -> QueryPlan | None:
    """The plan of a case's statement, without ALERT ONCE, None where it has none."""
    try:
        alert = hybrid.statement.statement.parse(case.query).alert
        text = case.query if alert is None else case.query[: alert.span.start]
        with Relations(text, tables).open() as relations:
            return relations.bind(hybrid.statement.statement.parse(text))
    except QueryError:
        return None


def by_kernel(case: Case, tables: dict[str, pa.Table]) -> pa.Table:
    return hybrid.sql(case.query, **tables).arrow()


def by_reference(case: Case, tables: dict[str, pa.Table]) -> pa.Table:
    with Relations(case.query, tables).open() as relations:
        return answer(case.query, relations, ReferenceMatcher).arrow()


def in_pieces(case: Case, tables: dict[str, pa.Table], size: int) -> pa.Table:
    pieces = Pieces(case.query, tables)
    pieces.size = size
    with pieces.open() as relations:
        return answer(case.query, relations).arrow()


def streamed(case: Case, tables: dict[str, pa.Table], plan: QueryPlan) -> pa.Table | None:
    """The rows of the one input in their total order, None where the statement is no query of one stream."""
    if len(plan.factors) != 1 or plan.factors[0].histories:
        return None
    factor = plan.factors[0]
    name, order = factor.input_sql.strip(), factor.plan.order_by
    if name not in tables or not order or order[0].column.type not in TIMES:
        return None
    if any(o.descending or o.nulls_first or tables[name].column(o.column.name).null_count for o in order):
        return None
    with Relations(case.query, tables).open() as relations:
        reader = relations.factor(factor)[1]
    assert isinstance(reader, OrderedInput)
    return reader.rows()


def suppressed(case: Case, alerts: Alerts) -> pa.Table:
    """What ALERT ONCE has kept back of all there is, in the columns of the case."""
    alerts.fetch()
    assert case.suppressed is not None
    return alerts.suppressed().select([name for name, _ in case.suppressed.columns])


def fetched(case: Case, alerts: Alerts) -> pa.Table:
    return alerts.fetch()


def watched(
    case: Case, tables: dict[str, pa.Table], plan: QueryPlan, rows: pa.Table, size: int,
    what: Callable[[Case, Alerts], pa.Table] = fetched,
) -> pa.Table:  # fmt: skip
    """What a watch has of a stream of the input's columns to which the rows are pushed and which then ends."""
    factor = plan.factors[0]
    name = factor.input_sql.strip()
    time, *ties = [o.column.name for o in factor.plan.order_by]
    static = {other: table for other, table in tables.items() if other != name}
    with hybrid.connect(None) as db:
        db.create_stream(name, {f.name: f.type for f in factor.plan.schema.fields}, time=time, order=ties)
        alerts = db.watch(case.query, tables=static)
        for start in range(0, rows.num_rows, size):
            db.push(name, rows.slice(start, size))
        db.advance(name, None)
        return what(case, alerts)


def merges(plan: QueryPlan, tables: dict[str, pa.Table]) -> bool:
    """Whether a statement is one pattern over several of the inputs."""
    return len(plan.factors) == 1 and bool(plan.factors[0].members) and set(plan.factors[0].inputs) <= tables.keys()


def watched_merged(case: Case, tables: dict[str, pa.Table], plan: QueryPlan, size: int) -> pa.Table:
    """The alerts of streams of the inputs' columns to which the rows are pushed in turns, and which then end."""
    with hybrid.connect(None) as db:
        parts: list[list[tuple[str, pa.Table]]] = []
        for member in plan.factors[0].members:
            time = member.schema.time or ""
            db.create_stream(member.name, {f.name: f.type for f in member.schema.fields}, time=time)
            order = (Order(Column(time, "TIMESTAMP")),)
            rows = OrderedInput.of(member.name, tables[member.input_sql], order, time).rows()
            parts.append([(member.name, rows.slice(at, size)) for at in range(0, rows.num_rows, size)])
        alerts = db.watch(case.query)
        for turn in zip_longest(*parts):
            for name, batch in filter(None, turn):
                db.push(name, batch)
        for member in plan.factors[0].members:
            db.advance(member.name, None)
        return alerts.fetch()


# ---- what is equal ---------------------------------------------------------------------------------------------


def keys_shown(plan: QueryPlan | None) -> tuple[str, ...]:
    """The names of the partition columns of the only pattern of a statement, in lower case."""
    if plan is None or len(plan.factors) != 1:
        return ()
    return tuple(c.name.lower() for c in plan.factors[0].plan.partition_by)


def compare(wanted: Wanted, found: Outcome, connection: duckdb.DuckDBPyConnection) -> str:
    """What is wrong with an outcome; empty where nothing is."""
    if isinstance(found, Fault):
        expected_is = "rows" if wanted.rows is not None else wanted.error
        good = wanted.rows is None and wanted.error in found.codes
        return "" if good else f"expected {expected_is}, found {' '.join(sorted(found.codes))}\n{found.text}"
    types, rows = shown(found, connection)
    if wanted.rows is None:
        return f"expected {wanted.error}, found rows\n{beside([], rows)}"
    names = [name for name, _ in wanted.rows.columns]
    if found.column_names != names:
        return f"expected the columns {', '.join(names)}, found {', '.join(found.column_names)}"
    for (name, type), is_type in zip(wanted.rows.columns, types):
        if type and type.upper() != is_type.upper():
            return f"expected {name} to be {type}, found {is_type}"
    must = expected(wanted.rows, types, connection)
    if wanted.rows.in_order:
        at = [i for i, name in enumerate(names) if name.lower() in wanted.keys]
        must, rows = (sorted(part, key=lambda row: repr([row[i] for i in at])) for part in (must, rows))
    else:
        must, rows = sorted(must, key=repr), sorted(rows, key=repr)
    return "" if must == rows else beside(must, rows)


def beside(must: list[Row], rows: list[Row]) -> str:
    """Expected and found rows in two columns, the lines that differ marked."""
    left, right = ([" | ".join("null" if c is None else c for c in row) for row in part] for part in (must, rows))
    width = max(map(len, ["expected", *left]))
    lines = [f"  {'expected':<{width}} || found"]
    for a, b in zip_longest(left, right):
        lines.append(f"{' ' if a == b else '!'} {a or '':<{width}} || {b or ''}")
    return "\n".join(lines)
