"""The abstract syntax of a query as written: names are not resolved yet. Every node has its span in the whole text."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from query.errors import Span
from query.language.pieces import ComposedSql


@dataclass(frozen=True, slots=True)
class Identifier:
    """A name. `name` is upper case unless it was quoted; `written` is as in the text, without quotes."""

    name: str
    written: str
    quoted: bool
    span: Span


@dataclass(frozen=True, slots=True)
class ExpressionText:
    """A scalar expression in SQL; DuckDB's parser reads it later.

    source: the pieces of `text` that are not the query's text[span] itself. before: the offsets in `text` at which
    aggregates begin that exclude the candidate row.
    """

    text: str
    span: Span
    source: ComposedSql | None = None
    before: frozenset[int] = frozenset()

    def place(self, start: int, end: int) -> Span:
        """Returns the span of the query that characters [start, end) of `text` come from."""
        if self.source is not None:
            return self.source.origin(start, end)
        return Span(min(self.span.start + start, self.span.end), min(self.span.start + end, self.span.end))


# ---- row patterns as written -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PatternVariable:
    name: Identifier
    span: Span


@dataclass(frozen=True, slots=True)
class PatternSequence:
    parts: tuple[PatternSyntax, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class PatternAlternation:
    choices: tuple[PatternSyntax, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class PatternQuantified:
    """`body{at_least, at_most}`; at_most None is unbounded."""

    body: PatternSyntax
    at_least: int
    at_most: int | None
    greedy: bool
    span: Span


@dataclass(frozen=True, slots=True)
class PatternNegation:
    """`~B` or `NOT B`."""

    name: Identifier
    span: Span


@dataclass(frozen=True, slots=True)
class PatternEmpty:
    span: Span


@dataclass(frozen=True, slots=True)
class PatternAnchor:
    """`^` (start of partition) or `$` (end of partition)."""

    at_start: bool
    span: Span


@dataclass(frozen=True, slots=True)
class PatternPermute:
    parts: tuple[PatternSyntax, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class PatternExclusion:
    body: PatternSyntax
    span: Span


@dataclass(frozen=True, slots=True)
class PatternConjunction:
    """`p AND q`: a pair of a match of each side (SASE+)."""

    sides: tuple[PatternSyntax, ...]
    span: Span


PatternSyntax = (
    PatternVariable
    | PatternSequence
    | PatternAlternation
    | PatternQuantified
    | PatternNegation
    | PatternEmpty
    | PatternAnchor
    | PatternPermute
    | PatternExclusion
    | PatternConjunction
)


# ---- clauses ---------------------------------------------------------------------------------------------------


class RowsPerMatch(Enum):
    ONE = "ONE ROW PER MATCH"
    ALL_SHOW_EMPTY = "ALL ROWS PER MATCH SHOW EMPTY MATCHES"
    ALL_OMIT_EMPTY = "ALL ROWS PER MATCH OMIT EMPTY MATCHES"
    ALL_WITH_UNMATCHED = "ALL ROWS PER MATCH WITH UNMATCHED ROWS"
    WINDOW = "ONE ROW PER WINDOW"


class AfterMatchKind(Enum):
    PAST_LAST_ROW = "SKIP PAST LAST ROW"
    TO_NEXT_ROW = "SKIP TO NEXT ROW"
    TO_FIRST = "SKIP TO FIRST"
    TO_LAST = "SKIP TO LAST"
    NO_SKIP = "NO SKIP"


class Selection(Enum):
    """Selection strategy: which events between two matched ones may be skipped ([SASE] section 2)."""

    STRICT = "STRICT"
    PARTITION = "PARTITION"
    SKIP_TILL_NEXT = "SKIP TILL NEXT MATCH"
    SKIP_TILL_ANY = "SKIP TILL ANY MATCH"


@dataclass(frozen=True, slots=True)
class AfterMatchSyntax:
    kind: AfterMatchKind
    variable: Identifier | None
    span: Span


@dataclass(frozen=True, slots=True)
class OrderItem:
    """descending, nulls_first: None if not written."""

    expression: ExpressionText
    descending: bool | None
    nulls_first: bool | None
    span: Span


@dataclass(frozen=True, slots=True)
class MeasureSyntax:
    expression: ExpressionText
    name: Identifier
    span: Span


@dataclass(frozen=True, slots=True)
class DefineSyntax:
    """`variable AS condition`, or `variable AS PATTERN box [ON condition]`. condition: None without ON."""

    variable: Identifier
    condition: ExpressionText | None
    span: Span
    box: Identifier | None = None


@dataclass(frozen=True, slots=True)
class SubsetSyntax:
    name: Identifier
    members: tuple[Identifier, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class WithinSyntax:
    """Either an interval in microseconds or a number of rows."""

    interval_us: int | None
    rows: int | None
    span: Span


@dataclass(frozen=True, slots=True)
class SelectionSyntax:
    selection: Selection
    span: Span


@dataclass(frozen=True, slots=True)
class MatchRecognize:
    """`MATCH_RECOGNIZE ( ... )`. A clause left out is None (or empty)."""

    partition_by: tuple[ExpressionText, ...]
    order_by: tuple[OrderItem, ...]
    measures: tuple[MeasureSyntax, ...]
    rows: RowsPerMatch | None
    after: AfterMatchSyntax | None
    pattern: PatternSyntax
    within: WithinSyntax | None
    selection: SelectionSyntax | None
    subsets: tuple[SubsetSyntax, ...]
    defines: tuple[DefineSyntax, ...]
    span: Span
    timeout: Span | None = None  # of TIMEOUT ROWS
    sase: SaseSyntax | None = None
    trends: TrendSyntax | None = None


@dataclass(frozen=True, slots=True)
class TrendSyntax:
    """The clauses of ONE ROW PER WINDOW: `GROUP BY columns`, `SLIDE interval`; having: `HAVING condition`, in SASE+
    only. span: of ONE ROW PER WINDOW, or of the clause without it."""

    group_by: tuple[ExpressionText, ...]
    slide: WithinSyntax | None
    having: ExpressionText | None
    span: Span


@dataclass(frozen=True, slots=True)
class SaseSyntax:
    """The clauses that a SASE+ statement derives from its input's columns: the order, always by time, and the measures
    if it has no RETURN. Its columns are qualified by a variable. span: PATTERN SEQ."""

    returned: bool
    span: Span


class HistoryKind(Enum):
    JOIN = "JOIN"
    LEFT = "LEFT JOIN"
    SEMI = "SEMI JOIN"
    ANTI = "ANTI JOIN"
    NEAREST = "NEAREST JOIN"
    LEFT_NEAREST = "LEFT NEAREST JOIN"

    @property
    def keeps_all(self) -> bool:
        """True if each row of PL has a row: with nulls where it joins nothing."""
        return self in (HistoryKind.LEFT, HistoryKind.LEFT_NEAREST)

    @property
    def takes_last(self) -> bool:
        """True if of the matches of PA that a row of PL joins only the last one is read: NEAREST, and its evidence
        under SEMI."""
        return self in (HistoryKind.NEAREST, HistoryKind.LEFT_NEAREST, HistoryKind.SEMI)


@dataclass(frozen=True, slots=True)
class WithScope:
    """The part of one WITH list that an input sees: text[span] is `WITH a AS (...), b AS (...)`, empty if it sees no
    entry. names: of those entries, lower case. inside: the entry of a WITH RECURSIVE list that contains the input."""

    span: Span
    names: tuple[str, ...]
    inside: str | None


@dataclass(frozen=True, slots=True)
class PatternFactor:
    """A table factor `input [[AS] name] MATCH_RECOGNIZE (...) [AS alias [(columns)]]`.

    `span` covers the whole factor, `input_span` the input. The input's name belongs to the input only if it names
    columns too. scopes: the WITH lists the input sees, outermost first. head: SQL that precedes the factor and is not
    in the text. merged: the inputs of `MERGE(a, b)`, merged by time. times: True if its rows have the times of their
    first and last event, t0 and t1: it is a named pattern that FROM reads.
    """

    input: str
    input_span: Span
    match: MatchRecognize
    alias: Identifier | None
    span: Span
    input_alias: Identifier | None = None
    columns: tuple[Identifier, ...] = ()
    scopes: tuple[WithScope, ...] = ()
    head: str = ""
    merged: tuple[Identifier, ...] = ()
    times: bool = False


@dataclass(frozen=True, slots=True)
class HistoryJoin:
    """`[kind] JOIN HISTORY OF stream FROM low TO high | BETWEEN low AND high [AS KNOWN] [MATCH_RECOGNIZE (...)] [AS
    alias] ON on`.

    closed: True for BETWEEN ([low, high]), False for FROM ... TO ([low, high)). `span` starts at the kind's first word
    and ends after the ON condition. factor: the index of the pattern factor it follows, None if none.
    """

    kind: HistoryKind
    stream: Identifier
    low: ExpressionText
    high: ExpressionText
    closed: bool
    as_known: bool
    match: MatchRecognize | None
    alias: Identifier | None
    on: ExpressionText
    span: Span
    factor: int | None = None


@dataclass(frozen=True, slots=True)
class AlertColumn:
    """A column of the output, `name` or `table.name`."""

    table: Identifier | None
    name: Identifier
    span: Span


@dataclass(frozen=True, slots=True)
class AlertOnceSyntax:
    """`ALERT ONCE [PER columns] WITHIN interval`, after a live query."""

    columns: tuple[AlertColumn, ...]
    interval_us: int
    span: Span


@dataclass(frozen=True, slots=True)
class ModuleSyntax:
    """A pattern that boxes name, `WITH name AS (query)` or CREATE PATTERN. name: in lower case."""

    name: str
    query: QuerySyntax


class StatementKind(Enum):
    SELECT = "SELECT"
    INSERT = "INSERT"
    CREATE_TABLE = "CREATE TABLE"
    COPY = "COPY"


@dataclass(frozen=True, slots=True)
class QuerySyntax:
    """A whole statement: any DuckDB SELECT, or one that stores the rows of a SELECT, with pattern factors, history
    joins and ALERT ONCE cut out. modules: the patterns that its boxes name. unread: the queries of WITH entries that
    nothing but boxes reads; the statement does without them.

    Factors and joins are in the order of their ends: factors nested in the input of another come before it.
    """

    text: str
    factors: tuple[PatternFactor, ...]
    histories: tuple[HistoryJoin, ...]
    kind: StatementKind = StatementKind.SELECT
    alert: AlertOnceSyntax | None = None
    modules: tuple[ModuleSyntax, ...] = ()
    unread: tuple[Span, ...] = ()
