"""The plan: one row pattern query, bound and typed, with every default filled in. The only input of the reference."""

from __future__ import annotations

from dataclasses import dataclass, field

from query.errors import NO_SPAN, Span
from query.language.ast import AfterMatchKind, HistoryKind, RowsPerMatch, Selection, StatementKind
from query.language.duck import Settings
from query.plan.expression import TRUE, Column, Expression, quote, show, show_interval, walk
from query.plan.merge import MergedInput
from query.plan.pattern import RowPattern
from query.plan.trends import Trends
from query.schema import Schema


@dataclass(frozen=True, slots=True)
class Within:
    """Longest match: last time - first time <= interval_us (inclusive), or at most `rows` rows of the partition."""

    interval_us: int | None = None
    rows: int | None = None

    def __str__(self) -> str:
        return show_interval(self.interval_us) if self.interval_us is not None else f"{self.rows} rows"


@dataclass(frozen=True, slots=True)
class AfterMatch:
    """variables: of SKIP TO FIRST / LAST v, the primary variables v stands for; empty otherwise."""

    kind: AfterMatchKind
    variables: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind.value} {'|'.join(self.variables)}".strip()


@dataclass(frozen=True, slots=True)
class Order:
    column: Column
    descending: bool = False
    nulls_first: bool = False

    def __str__(self) -> str:
        return self.column.name + (" DESC" if self.descending else "") + (" NULLS FIRST" if self.nulls_first else "")


@dataclass(frozen=True, slots=True)
class Define:
    variable: str
    condition: Expression


@dataclass(frozen=True, slots=True)
class Measure:
    """An output column. `name` keeps the spelling of the text."""

    name: str
    expression: Expression

    @property
    def type(self) -> str:
        return self.expression.type


@dataclass(frozen=True, slots=True)
class Box:
    """`variable AS PATTERN name`: the variable takes matches of `plan`.

    columns: of its matches, each with the output column of the plan that it shows. inputs: what the plan reads, until
    the inputs of all layers are merged (query.plan.inputs_of_layers)."""

    variable: str
    name: str
    plan: Plan
    columns: tuple[tuple[str, str], ...]
    inputs: tuple[MergedInput, ...] = ()

    def __str__(self) -> str:
        return f"{self.variable} AS PATTERN {self.name}"


@dataclass(frozen=True, slots=True)
class Joined:
    """The histories that the matches of a box's pattern are joined with; each match has at most one row.

    factor: the pattern with its histories. columns: for each output column of the box's plan that comes from a history,
    its name, the index of the history, and the column there; the plan has a null measure in its place. key: of what
    the rows depend on besides the pattern."""

    factor: FactorPlan
    columns: tuple[tuple[str, int, str], ...]
    key: str


def modules(boxes: tuple[Box, ...]) -> tuple[Box, ...]:
    """Returns the first box of each pattern, in order. The k-th has KIND k + 1."""
    return tuple({box.name: box for box in reversed(boxes)}[name] for name in dict.fromkeys(b.name for b in boxes))


@dataclass(frozen=True, slots=True)
class Reads:
    """The events that one layer of a hierarchy reads, where the layers read several streams and the hierarchy their
    events merged by time.

    streams: of its FROM, as the column STREAM of the merged events names them. columns: for each column of its schema
    the merged column that holds it, by stream (None: the stream has no such column)."""

    streams: tuple[str, ...]
    columns: tuple[tuple[str | None, ...], ...]

    def column(self, schema: Schema, name: str) -> str | None:
        """Returns the merged column that holds a column of the schema; None if it is not one for all streams."""
        found = set(self.columns[schema.names.index(name)])
        return found.pop() if len(found) == 1 else None


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """A row pattern query over one input.

    defines: one for each variable of the pattern and each negated one, in order of appearance; TRUE without DEFINE.
    subsets: union variables with their members. timeout_rows: partial matches that WITHIN ends are emitted too (TIMEOUT
    ROWS). inputs: the origins of its rows, see `query.plan.statement.origins`. settings: of DuckDB, for its
    expressions. trends: of ONE ROW PER WINDOW; the measures then read its aggregates and groups. boxes: variables that
    stand for matches of other patterns; conditions and measures then read merged rows (query.plan.boxes), while
    `schema` remains that of the input. joined: of a box's pattern, the histories that its matches are joined with.
    reads: its part of the merged events, where the layers of a hierarchy read several streams; None: they read the
    same. narrow: columns of HUGEINT, UBIGINT, long DECIMALs and INTERVAL are numbers of 64 bits, and TooWide is raised
    for a value that is none; the caller then runs the plan without.
    """

    schema: Schema
    partition_by: tuple[Column, ...]
    order_by: tuple[Order, ...]
    measures: tuple[Measure, ...]
    rows: RowsPerMatch
    after: AfterMatch
    pattern: RowPattern
    within: Within | None
    selection: Selection
    subsets: tuple[tuple[str, tuple[str, ...]], ...]
    defines: tuple[Define, ...]
    timeout_rows: bool = False
    inputs: tuple[str, ...] = ()
    settings: Settings = ()
    trends: Trends | None = None
    boxes: tuple[Box, ...] = ()
    joined: Joined | None = None
    reads: Reads | None = None
    narrow: bool = False

    def condition(self, variable: str) -> Expression:
        """The DEFINE condition of a variable."""
        return next(d.condition for d in self.defines if d.variable == variable)

    @property
    def columns(self) -> tuple[str, ...]:
        """The input columns that matches and output rows depend on, in the order of the schema."""
        if self.rows not in (RowsPerMatch.ONE, RowsPerMatch.WINDOW):
            return self.schema.names
        read = [d.condition for d in self.defines]
        if self.trends is None:
            read += [m.expression for m in self.measures]
        else:
            read += [a.argument for a in self.trends.aggregates if a.argument is not None]
        named = {e.name for expression in read for e in walk(expression) if isinstance(e, Column)}
        named |= {c.name for c in self.partition_by} | {o.column.name for o in self.order_by}
        named |= {name for box in self.boxes for name in box.plan.columns}
        return tuple(name for name in self.schema.names if name in named)

    def __str__(self) -> str:
        lines = [f"input       {self.schema}"]
        lines += [f"reads       {', '.join(self.reads.streams)}"] if self.reads is not None else []
        lines.append("partition   " + (", ".join(c.name for c in self.partition_by) or "(one)"))
        lines.append("order       " + (", ".join(map(str, self.order_by)) or "(as given)"))
        beside = {name for name, _, _ in self.joined.columns} if self.joined is not None else ()
        for i, m in enumerate(self.measures):
            value = "(of the history)" if m.name in beside else show(m.expression)
            lines.append(f"{'measures' if i == 0 else '':<12}{m.name} {m.type} = {value}")
        lines.append(f"rows        {self.rows.value}" + (" TIMEOUT ROWS" if self.timeout_rows else ""))
        lines.append(f"after       {self.after}")
        lines.append(f"pattern     {self.pattern}")
        if self.trends is not None:
            lines.append(str(self.trends))
        elif self.within:
            lines.append(f"within      {self.within}")
        lines.append(f"selection   {self.selection.value}")
        for i, (name, members) in enumerate(self.subsets):
            lines.append(f"{'subset' if i == 0 else '':<12}{name} = ({', '.join(members)})")
        boxes = {box.variable: f"PATTERN {box.name}" for box in self.boxes}
        for i, d in enumerate(self.defines):
            shown = show(d.condition)
            if d.variable in boxes:
                shown = boxes[d.variable] + (f" ON {shown}" if d.condition != TRUE else "")
            shown = "any row" if shown == "True" else f"AS {shown}"
            lines.append(f"{'define' if i == 0 else '':<12}{d.variable} {shown}")
        lines += [f"setting     {name} = {value}" for name, value in self.settings]
        for history in self.joined.factor.histories if self.joined is not None else ():
            lines += str(history).split("\n")
        for box in modules(self.boxes):
            lines += [f"pattern     {box.name}", *(f"  {line}" for line in str(box.plan).split("\n"))]
        return "\n".join(lines)

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class Shift:
    """The time in an output column, a TIMESTAMP, plus a number of microseconds."""

    column: str
    us: int


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """A JOIN HISTORY: for each PL match the rows of `schema` in [low, high) or [low, high], PA's matches in them (or
    the rows themselves if plan is None), joined by `on`.

    low_sql, high_sql: DuckDB SQL over the live alias, giving times; low_shift, high_shift: the same, if they are a
    column of the live output and an INTERVAL of fixed length. on_sql: over both aliases, as written. on_more: True if
    ON has further conjuncts besides the equalities; on_rest: these, over columns called live.<column> and
    history.<column>; None if there are none, or if a pattern cannot express them. rows_of: a named pattern, whose rows
    the history consists of, as a box without a variable; None: a stream or relation. reach_us: how long before the
    range the first events are that these rows depend on; None: any time. merged: the columns of its streams' events,
    if that pattern reads several. equalities: (history column, live
    output column) pairs of top-level conjuncts of ON that pin a *partition column of PA* (or any column of plain
    history rows) to a value of the PL match; they may be pushed into the read, except under STRICT. settings: of
    DuckDB, for its expressions. after_us: the range ends at most so many microseconds after the last event of the match
    (a window: its end), None if that is not known. high_span, known_span: of the upper bound and of AS KNOWN in the
    text.
    """

    kind: HistoryKind
    schema: Schema
    alias: str
    low_sql: str
    high_sql: str
    closed: bool
    as_known: bool
    plan: Plan | None
    on_sql: str
    equalities: tuple[tuple[str, str], ...]
    low_shift: Shift | None = None
    high_shift: Shift | None = None
    on_more: bool = True
    on_rest: Expression | None = None
    settings: Settings = ()
    after_us: int | None = None
    high_span: Span = field(default=NO_SPAN, compare=False)
    known_span: Span = field(default=NO_SPAN, compare=False)
    rows_of: Box | None = None
    reach_us: int | None = None
    merged: Schema | None = None

    @property
    def streams(self) -> tuple[str, ...]:
        """Returns the names of the streams or relations whose events are read, in lower case."""
        read = [self.schema.name] if self.rows_of is None else [one.name for one in self.rows_of.inputs]
        return tuple(name.lower() for name in read)

    def __str__(self) -> str:
        upper = "]" if self.closed else ")"
        lines = [
            f"{self.kind.value} HISTORY OF {self.schema.name} AS {self.alias}",
            f"range       [{self.low_sql}, {self.high_sql}{upper}" + (" as known" if self.as_known else ""),
            "keys        " + (", ".join(f"{h} = {live}" for h, live in self.equalities) or "(all)"),
            f"on          {self.on_sql}",
        ]
        if self.rows_of is not None:
            begin = "the start" if self.reach_us is None else f"{show_interval(self.reach_us)} before the range"
            lines.append(f"rows of     {self.schema.name}, found in {', '.join(self.streams)} from {begin}")
            lines += [f"  {line}" for line in str(self.rows_of.plan).split("\n")]
        if self.plan is not None:
            lines.append(str(self.plan))
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class AlertOnce:
    """Suppresses rows of a live query that repeat an earlier one: those with equal values of `columns`, columns of the
    output (none: every row), whose last event is less than interval_us away from the earlier row's.

    lag_us: how far behind the watermark of the pattern's input the last event of a row to come may lie; None: any time.
    """

    columns: tuple[str, ...]
    interval_us: int
    lag_us: int | None

    def __str__(self) -> str:
        per = f" per {', '.join(self.columns)}" if self.columns else ""
        return f"alert once{per} within {show_interval(self.interval_us)}"


@dataclass(frozen=True, slots=True, repr=False)
class QueryPlan:
    """A whole statement. `select_sql` is the SQL that DuckDB runs in the end: the statement in which factor i is
    written as its alias's table `__hybrid_factor_i` and all history joins of it are folded into that factor. A factor's
    input may read the tables of the factors before it."""

    text: str
    select_sql: str
    factors: tuple[FactorPlan, ...]
    kind: StatementKind = StatementKind.SELECT
    alert: AlertOnce | None = None

    def __str__(self) -> str:
        parts = [f"{self.kind.value.lower():<11} {' '.join(self.select_sql.split())}"]
        parts += [str(self.alert)] if self.alert is not None else []
        parts += [str(f) for f in self.factors]
        return "\n\n".join(parts)

    __repr__ = __str__  # a shell and a notebook show what print does


@dataclass(frozen=True, slots=True)
class RowsOf:
    """An input that consists of the rows of another pattern of a live query. factor: the index of that pattern. time:
    the column of the input that holds their time. lag_us: how far behind the watermark a row may come out
    (query.plan.lag)."""

    factor: int
    time: str
    lag_us: int


@dataclass(frozen=True, slots=True, repr=False)
class FactorPlan:
    """One pattern factor with the history joins that follow it.

    input_sql: a bare name, or the whole SELECT that DuckDB evaluates to get the input. members: the inputs of MERGE, or
    of layers that read several streams; input_sql then only shows them. merged: the columns of the members' events, if
    they are more than the pattern's own. alias: the name of its output in the outer SELECT; columns: the names of its
    first columns there, if the text gives them. rows_of: in a live query, for each of its inputs the pattern whose rows
    it reads, None for a stream. beside: in a live query, the streams that its boxes are joined with the history of and
    that no layer reads, by name in lower case.
    """

    input_sql: str
    alias: str
    plan: Plan
    histories: tuple[HistoryPlan, ...]
    columns: tuple[str, ...] = ()
    members: tuple[MergedInput, ...] = ()
    rows_of: tuple[RowsOf | None, ...] = ()
    merged: Schema | None = None
    beside: tuple[str, ...] = ()

    @property
    def schema(self) -> Schema:
        """Returns the columns of its input."""
        return self.plan.schema if self.merged is None else self.merged

    @property
    def inputs(self) -> tuple[str, ...]:
        """Returns the SQL of its inputs, each a bare name or a SELECT."""
        return tuple(m.input_sql for m in self.members) or (self.input_sql,)

    @property
    def alias_sql(self) -> str:
        """Returns the text after AS where the output is selected from."""
        columns = f"({', '.join(map(quote, self.columns))})" if self.columns else ""
        return quote(self.alias) + columns

    def __str__(self) -> str:
        head = f"PATTERN {self.alias} OVER {' '.join(self.input_sql.split())}\n{self.plan}"
        if self.beside:
            head += f"\nwaits for   {', '.join(self.beside)}, whose history boxes are joined with"
        return "\n\n".join([head, *map(str, self.histories)])

    __repr__ = __str__
