"""What texts are read as: the syntax trees, and that every span covers its piece of the text."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from query.errors import QueryError, Span
from query.language import ast
from query.language.parse import parse

HYBRID = """\
SELECT pl.symbol, pl.last_price, pa.bottom, 'größe' AS "ö)"
FROM ticks MATCH_RECOGNIZE (
       PARTITION BY symbol ORDER BY ts
       MEASURES S.ts AS start_ts, LAST(D.close) AS last_price
       AFTER MATCH SKIP PAST LAST ROW
       PATTERN (S D{3,})
       DEFINE D AS close < PREV(close)  -- falling ;)
     ) AS pl
LEFT JOIN HISTORY OF ticks FROM pl.start_ts - INTERVAL '730' DAY TO pl.start_ts
     MATCH_RECOGNIZE (
       PARTITION BY symbol ORDER BY ts
       MEASURES min(D.close) AS bottom
       PATTERN (S D+ U+)
       DEFINE D AS close < PREV(close), U AS close > PREV(close) AND LAST(U.close) > S.close
     ) AS pa
  ON pa.symbol = pl.symbol AND pa.bottom BETWEEN pl.last_price * 0.9 AND pl.last_price * 1.1
WHERE pl.symbol <> 'FROM ticks MATCH_RECOGNIZE ('
ORDER BY 1"""


def nodes(node: Any) -> Iterator[Any]:
    """The node and all below it."""
    if is_dataclass(node) and not isinstance(node, Span):
        yield node
        for field in fields(node):
            value = getattr(node, field.name)
            for child in value if isinstance(value, tuple) else (value,):
                yield from nodes(child)


def clauses(inside: str) -> tuple[str, ast.MatchRecognize]:
    """The text, and the only factor's MATCH_RECOGNIZE, of a query with these clauses."""
    text = f"SELECT * FROM e MATCH_RECOGNIZE ({inside})"
    return text, parse(text).factors[0].match


def pattern(written: str) -> tuple[str, ast.PatternSyntax]:
    text, match = clauses(f"PATTERN ({written})")
    return text, match.pattern


def piece(text: str, node: Any) -> str:
    return text[node.span.start : node.span.end]


def shape(node: ast.PatternSyntax) -> str:
    """A pattern in one unambiguous line."""
    match node:
        case ast.PatternVariable(name):
            return f'"{name.name}"' if name.quoted else name.name
        case ast.PatternSequence(parts):
            return "(" + " ".join(map(shape, parts)) + ")"
        case ast.PatternAlternation(choices):
            return "(" + " | ".join(map(shape, choices)) + ")"
        case ast.PatternQuantified(body, least, most, greedy):
            return f"{shape(body)}{{{least},{'' if most is None else most}}}{'' if greedy else '?'}"
        case ast.PatternNegation(name):
            return f"~{name.name}"
        case ast.PatternEmpty():
            return "()"
        case ast.PatternAnchor(at_start):
            return "^" if at_start else "$"
        case ast.PatternPermute(parts):
            return "PERMUTE(" + ", ".join(map(shape, parts)) + ")"
        case ast.PatternExclusion(body):
            return "{- " + shape(body) + " -}"


# ---- whole queries ---------------------------------------------------------------------------------------------


def test_hybrid_query() -> None:
    query = parse(HYBRID)
    (factor,), (history,) = query.factors, query.histories

    assert factor.input == "ticks"
    assert HYBRID[factor.input_span.start : factor.input_span.end] == "ticks"
    assert factor.alias is not None
    assert factor.alias.written == "pl"
    assert piece(HYBRID, factor).startswith("ticks MATCH_RECOGNIZE (")
    assert piece(HYBRID, factor).endswith(") AS pl")
    assert piece(HYBRID, factor.match).startswith("MATCH_RECOGNIZE (")
    assert piece(HYBRID, factor.match).endswith(")")

    assert history.kind is ast.HistoryKind.LEFT
    assert history.stream.written == "ticks"
    assert history.low.text == "pl.start_ts - INTERVAL '730' DAY"
    assert history.high.text == "pl.start_ts"
    assert not history.closed
    assert not history.as_known
    assert history.match is not None
    assert [d.variable.name for d in history.match.defines] == ["D", "U"]
    assert history.alias is not None
    assert history.alias.written == "pa"
    assert history.on.text.endswith("AND pl.last_price * 1.1")
    assert piece(HYBRID, history).startswith("LEFT JOIN HISTORY")
    assert piece(HYBRID, history).endswith("pl.last_price * 1.1")


def test_every_span_covers_its_piece() -> None:
    inside = 0
    for node in nodes(parse(HYBRID)):
        if isinstance(node, ast.QuerySyntax):
            continue
        assert 0 <= node.span.start < node.span.end <= len(HYBRID)
        assert piece(HYBRID, node) == piece(HYBRID, node).strip()
        if isinstance(node, ast.ExpressionText):
            assert piece(HYBRID, node) == node.text
            inside += 1
        if isinstance(node, ast.Identifier):
            assert piece(HYBRID, node) == node.written
            inside += 1
    assert inside > 20


def test_statement_without_patterns() -> None:
    query = parse("SELECT count(*) FROM ticks WHERE symbol = 'A' -- (\n;")
    assert query.factors == ()
    assert query.histories == ()
    assert parse("CREATE TABLE t AS SELECT 1").factors == ()


def test_parsing_is_fast() -> None:
    # it takes 2.2 times as long as this loop; in milliseconds, some machines are three times slower than others
    parse(HYBRID)
    times, loops = [], []
    for _ in range(20):
        start = time.thread_time()
        parse(HYBRID)
        parsed = time.thread_time()
        sum(i * i for i in range(20_000))
        times.append(parsed - start)
        loops.append(time.thread_time() - parsed)
    assert min(times) < 8 * min(loops)


@pytest.mark.parametrize(
    "written",
    [
        "ticks",
        '"odd ) name"',
        'main."t 1"',
        "a.b.c",
        "read_parquet('a(b', hive_partitioning = true)",
        "main.f((1), [2])",
        "(SELECT * FROM x WHERE y IN (1, 2))",
        "'file.parquet'",
        "history",
        "größe",
    ],
)
@pytest.mark.parametrize(
    "before", ["SELECT * FROM ", "SELECT * FROM u, ", "SELECT * FROM u CROSS JOIN ", "SELECT * FROM (u CROSS JOIN "]
)
def test_inputs(written: str, before: str) -> None:
    text = f"{before}{written}  MATCH_RECOGNIZE (PATTERN (A)){' )' * ('(' in before)}"
    (factor,) = parse(text).factors
    assert factor.input == written
    assert text[factor.input_span.start : factor.input_span.end] == written
    assert factor.alias is None


@pytest.mark.parametrize(
    ("behind", "alias"),
    [
        ("", None),
        (" AS m", "m"),
        (" m WHERE m.x > 1", "m"),
        (' AS "M 1"', "M 1"),
        (" WHERE x > 1", None),
        (", u", None),
        (" LEFT JOIN u ON true", None),
        (" m SEMI JOIN u ON true", "m"),
        (" nearest", "nearest"),
        ("/* x */ /* /* nested */ */ history -- y", "history"),
        (" ORDER BY 1", None),
        (" UNION SELECT 1", None),
    ],
)
def test_aliases(behind: str, alias: str | None) -> None:
    text = f"SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A)){behind}"
    (factor,) = parse(text).factors
    assert (factor.alias and factor.alias.written) == alias


@pytest.mark.parametrize(
    ("written", "input", "alias"),
    [
        ("ticks AS x", "ticks", "x"),
        ('main."t 1" "X y"', 'main."t 1"', "X y"),
        ("(SELECT 1) x", "(SELECT 1)", "x"),
        ("f(1) AS x", "f(1)", "x"),
        ("'file.parquet' x", "'file.parquet'", "x"),
        ("(VALUES (1, 2)) AS v(a, b)", "(VALUES (1, 2)) AS v(a, b)", "v"),
        ("ticks x (a)", "ticks x (a)", "x"),
        ("u JOIN ticks AS x", "ticks", "x"),
    ],
)
def test_the_name_of_an_input(written: str, input: str, alias: str) -> None:
    on = " ON true" if "JOIN" in written else ""
    (factor,) = parse(f"SELECT * FROM {written} MATCH_RECOGNIZE (PATTERN (A)) AS m{on}").factors
    assert factor.input == input
    assert factor.input_alias is not None
    assert factor.input_alias.written == alias
    assert factor.alias is not None


def test_names_of_the_output_columns() -> None:
    text = 'SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A)) m (a, "B c") JOIN u USING (a)'
    (factor,) = parse(text).factors
    assert [(c.written, c.quoted) for c in factor.columns] == [("a", False), ("B c", True)]
    assert piece(text, factor).endswith('m (a, "B c")')


def test_several_factors_in_the_order_of_their_ends() -> None:
    text = (
        "WITH w AS (SELECT * FROM a MATCH_RECOGNIZE (PATTERN (A)) AS m) "
        "SELECT * FROM b MATCH_RECOGNIZE (PATTERN (B)), (SELECT * FROM c match_recognize (pattern (C)) AS n), w"
    )
    assert [f.input for f in parse(text).factors] == ["a", "b", "c"]
    inner = "(SELECT * FROM a MATCH_RECOGNIZE (PATTERN (A)))"
    nested = f"SELECT * FROM {inner} AS i MATCH_RECOGNIZE (PATTERN (B)) AS o, d MATCH_RECOGNIZE (PATTERN (C))"
    assert [f.input for f in parse(nested).factors] == ["a", inner, "d"]


def test_what_of_a_with_list_an_input_sees() -> None:
    text = (
        "WITH RECURSIVE a AS (SELECT 1), \"B\"(x) AS MATERIALIZED (SELECT * FROM a MATCH_RECOGNIZE (PATTERN (A))), "
        "c AS (WITH d AS (SELECT 2) SELECT * FROM d MATCH_RECOGNIZE (PATTERN (A)) AS m) "
        "SELECT * FROM (WITH e AS (SELECT 3) FROM (SELECT 4) MATCH_RECOGNIZE (PATTERN (A))), "
        "f MATCH_RECOGNIZE (PATTERN (A))"
    )
    assert [[(s.names, s.inside) for s in f.scopes] for f in parse(text).factors] == [
        [(("a",), "b")],
        [(("a", "b"), "c"), (("d",), None)],
        [(("a", "b", "c"), None), (("e",), None)],
        [(("a", "b", "c"), None)],
    ]
    spans = [text[s.span.start : s.span.end] for f in parse(text).factors for s in f.scopes]
    assert spans[0] == "WITH RECURSIVE a AS (SELECT 1)"
    assert spans[1].startswith("WITH RECURSIVE a AS (SELECT 1), ")
    assert spans[1].endswith("PATTERN (A)))")
    assert spans[2] == "WITH d AS (SELECT 2)"


def test_a_history_stands_behind_the_pattern_of_its_own_from() -> None:
    pattern = "MATCH_RECOGNIZE (PATTERN (A))"
    join = "JOIN HISTORY OF h FROM a TO b AS x ON c"
    text = (
        f"SELECT * FROM (SELECT * FROM e {pattern} AS i JOIN u ON z IS DISTINCT FROM y {join}) {pattern} AS o {join} "
        f"UNION SELECT * FROM u {join}"
    )
    assert [h.factor for h in parse(text).histories] == [0, 1, None]


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("SELECT *", ast.StatementKind.SELECT),
        ("WITH w AS (SELECT 1) SELECT *", ast.StatementKind.SELECT),
        ("INSERT INTO t SELECT *", ast.StatementKind.INSERT),
        ("WITH w AS (SELECT 1) INSERT INTO t BY POSITION (a) SELECT *", ast.StatementKind.INSERT),
        ("CREATE TABLE t AS SELECT *", ast.StatementKind.CREATE_TABLE),
        ("CREATE OR REPLACE TEMP TABLE t AS WITH w AS (SELECT 1) SELECT *", ast.StatementKind.CREATE_TABLE),
        ("COPY (SELECT *", ast.StatementKind.COPY),
    ],
)
def test_kinds_of_statements(head: str, kind: ast.StatementKind) -> None:
    tail = ") TO 'file.parquet' (FORMAT parquet)" if kind is ast.StatementKind.COPY else ""
    query = parse(f"{head} FROM e MATCH_RECOGNIZE (PATTERN (A)) AS m{tail}")
    assert (query.kind, len(query.factors)) == (kind, 1)


@pytest.mark.parametrize(
    ("written", "kind", "closed"),
    [
        ("JOIN HISTORY OF h FROM a TO b AS x ON c", ast.HistoryKind.JOIN, False),
        ("inner join history of h from a to b as x on c", ast.HistoryKind.JOIN, False),
        ("LEFT OUTER JOIN HISTORY OF h BETWEEN a AND b AS x ON c", ast.HistoryKind.LEFT, True),
        ("SEMI JOIN HISTORY OF h FROM a TO b AS KNOWN AS x ON c", ast.HistoryKind.SEMI, False),
        ("ANTI JOIN HISTORY OF h FROM a TO b MATCH_RECOGNIZE (PATTERN (A)) x ON c", ast.HistoryKind.ANTI, False),
        (
            'NEAREST JOIN HISTORY OF "h" BETWEEN a AND b AS KNOWN MATCH_RECOGNIZE (PATTERN (A)) ON c',
            ast.HistoryKind.NEAREST,
            True,
        ),
        ("left nearest join history of h FROM a TO b AS x ON c", ast.HistoryKind.LEFT_NEAREST, False),
    ],
)
@pytest.mark.parametrize(
    "behind", ["", " WHERE z", " JOIN u ON true", " LEFT JOIN u ON true", ", u", " ORDER BY 1", ";"]
)
def test_history_joins(written: str, kind: ast.HistoryKind, closed: bool, behind: str) -> None:
    text = f"SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A)) AS pl {written}{behind}"
    (history,) = parse(text).histories
    assert piece(text, history) == written
    assert history.kind is kind
    assert history.closed is closed
    assert (history.low.text, history.high.text, history.on.text) == ("a", "b", "c")
    assert history.stream.written == "h"
    assert history.stream.quoted is ('"h"' in written)
    assert history.as_known is ("KNOWN" in written)
    assert (history.match is not None) is ("MATCH_RECOGNIZE" in written)
    assert (history.alias is not None) is (" x " in written)


@pytest.mark.parametrize(
    ("low", "high", "on"),
    [
        (
            "pl.a - INTERVAL '1' DAY",
            "pl.a + (CASE WHEN x AND y THEN 1 ELSE 2 END)",
            "a.x = b.y AND left(a.z, 2) = 'JOIN'",
        ),
        (
            "(a BETWEEN 1 AND 2)",
            "CASE WHEN p AND q THEN r END",
            'a.x BETWEEN 1 AND 2 OR a."where" IN (SELECT 1 WHERE true)',
        ),
        ("CASE WHEN x AND y THEN a ELSE b END", "f(a, b)[1]", "x IS DISTINCT FROM y"),
        ("CAST(a AS TIMESTAMP)", "a::TIMESTAMP", "pa.left = pl.order"),
    ],
)
@pytest.mark.parametrize("closed", [False, True])
def test_bounds_and_conditions(low: str, high: str, on: str, closed: bool) -> None:
    bounds = f"BETWEEN {low} AND {high}" if closed else f"FROM {low} TO {high}"
    text = f"SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A)) AS pl JOIN HISTORY OF h {bounds} AS pa ON {on} WHERE 1 = 1"
    (history,) = parse(text).histories
    assert (history.low.text, history.high.text, history.on.text) == (low, high, on)


def test_two_histories() -> None:
    text = (
        "SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A)) AS pl "
        "SEMI JOIN HISTORY OF g FROM a TO b ON c ANTI JOIN HISTORY OF h FROM a TO b ON d QUALIFY true"
    )
    assert [(h.kind.name, h.stream.written, h.on.text) for h in parse(text).histories] == [
        ("SEMI", "g", "c"),
        ("ANTI", "h", "d"),
    ]


def test_tables_that_are_called_like_keywords() -> None:
    assert parse("SELECT m.history FROM history JOIN history h ON true").histories == ()
    assert parse("SELECT measures, pattern, define FROM t").factors == ()


# ---- clauses ---------------------------------------------------------------------------------------------------


def test_clauses() -> None:
    text, match = clauses(
        "partition by k, lower(g) order by ts, x + 1 desc nulls last, y asc, z nulls first "
        'measures final last(a.x) as x, \'a, b\' || "c)" as "My Name", case when a then b end as y '
        "all rows per match omit empty matches after match skip to last b "
        "pattern (a+ b) within interval '1 hour 30 minutes' selection skip till any match "
        "subset u = (a, b), v = (a) define a as x between 1 and 2, b as b.x > prev(b.x, 1)"
    )
    assert [e.text for e in match.partition_by] == ["k", "lower(g)"]
    assert [(o.expression.text, o.descending, o.nulls_first) for o in match.order_by] == [
        ("ts", None, None),
        ("x + 1", True, False),
        ("y", False, None),
        ("z", None, True),
    ]
    assert [piece(text, o) for o in match.order_by] == ["ts", "x + 1 desc nulls last", "y asc", "z nulls first"]
    assert [(m.expression.text, m.name.written, m.name.quoted) for m in match.measures] == [
        ("final last(a.x)", "x", False),
        ("'a, b' || \"c)\"", "My Name", True),
        ("case when a then b end", "y", False),
    ]
    assert match.rows is ast.RowsPerMatch.ALL_OMIT_EMPTY
    assert match.after is not None
    assert match.after.kind is ast.AfterMatchKind.TO_LAST
    assert match.after.variable is not None
    assert match.after.variable.name == "B"
    assert match.within is not None
    assert (match.within.interval_us, match.within.rows) == (5_400_000_000, None)
    assert piece(text, match.within) == "within interval '1 hour 30 minutes'"
    assert match.selection is not None
    assert match.selection.selection is ast.Selection.SKIP_TILL_ANY
    assert piece(text, match.selection) == "selection skip till any match"
    assert [(s.name.name, [m.name for m in s.members]) for s in match.subsets] == [("U", ["A", "B"]), ("V", ["A"])]
    assert [(d.variable.name, d.condition.text) for d in match.defines] == [
        ("A", "x between 1 and 2"),
        ("B", "b.x > prev(b.x, 1)"),
    ]
    assert [piece(text, d) for d in match.defines] == ["a as x between 1 and 2", "b as b.x > prev(b.x, 1)"]


def test_clauses_left_out() -> None:
    _, match = clauses("PATTERN (A)")
    assert (match.partition_by, match.order_by, match.measures, match.subsets, match.defines) == ((), (), (), (), ())
    assert (match.rows, match.after, match.within, match.selection) == (None, None, None, None)


@pytest.mark.parametrize(
    ("written", "rows"),
    [
        ("ONE ROW PER MATCH", ast.RowsPerMatch.ONE),
        ("ALL ROWS PER MATCH", ast.RowsPerMatch.ALL_SHOW_EMPTY),
        ("ALL ROWS PER MATCH SHOW EMPTY MATCHES", ast.RowsPerMatch.ALL_SHOW_EMPTY),
        ("ALL ROWS PER MATCH OMIT EMPTY MATCHES", ast.RowsPerMatch.ALL_OMIT_EMPTY),
        ("ALL ROWS PER MATCH WITH UNMATCHED ROWS", ast.RowsPerMatch.ALL_WITH_UNMATCHED),
    ],
)
def test_rows_per_match(written: str, rows: ast.RowsPerMatch) -> None:
    assert clauses(f"{written} PATTERN (A)")[1].rows is rows


@pytest.mark.parametrize(
    ("written", "rows"),
    [
        ("TIMEOUT ROWS", None),
        ("WITH TIMEOUT ROWS", None),
        ("ONE ROW PER MATCH TIMEOUT ROWS", ast.RowsPerMatch.ONE),
        ("ONE ROW PER MATCH WITH TIMEOUT ROWS", ast.RowsPerMatch.ONE),
        ("ALL ROWS PER MATCH WITH TIMEOUT ROWS", ast.RowsPerMatch.ALL_SHOW_EMPTY),
        ("all rows per match omit empty matches timeout rows", ast.RowsPerMatch.ALL_OMIT_EMPTY),
        ("ALL ROWS PER MATCH WITH UNMATCHED ROWS WITH TIMEOUT ROWS", ast.RowsPerMatch.ALL_WITH_UNMATCHED),
    ],
)
@pytest.mark.parametrize("before", ["", "ORDER BY ts ", "MEASURES A.x AS timeout "])
def test_timeout_rows(written: str, rows: ast.RowsPerMatch | None, before: str) -> None:
    text, match = clauses(f"{before}{written} AFTER MATCH SKIP TO NEXT ROW PATTERN (A) WITHIN 1 SECOND")
    assert match.timeout is not None
    assert text[match.timeout.start : match.timeout.end] in written
    assert match.rows is rows
    assert [o.expression.text for o in match.order_by] == (["ts"] if "ORDER" in before else [])


@pytest.mark.parametrize(
    ("written", "kind", "variable"),
    [
        ("SKIP PAST LAST ROW", ast.AfterMatchKind.PAST_LAST_ROW, None),
        ("SKIP TO NEXT ROW", ast.AfterMatchKind.TO_NEXT_ROW, None),
        ("SKIP TO FIRST a", ast.AfterMatchKind.TO_FIRST, "A"),
        ("SKIP TO LAST A", ast.AfterMatchKind.TO_LAST, "A"),
        ('SKIP TO "a"', ast.AfterMatchKind.TO_LAST, "a"),
        ("NO SKIP", ast.AfterMatchKind.NO_SKIP, None),
    ],
)
def test_after_match(written: str, kind: ast.AfterMatchKind, variable: str | None) -> None:
    text, match = clauses(f"AFTER MATCH {written} PATTERN (A)")
    assert match.after is not None
    assert match.after.kind is kind
    assert (match.after.variable and match.after.variable.name) == variable
    assert piece(text, match.after) == f"AFTER MATCH {written}"


@pytest.mark.parametrize(
    ("written", "selection"),
    [
        ("STRICT", ast.Selection.STRICT),
        ("PARTITION", ast.Selection.PARTITION),
        ("SKIP TILL NEXT MATCH", ast.Selection.SKIP_TILL_NEXT),
        ("SKIP TILL ANY MATCH", ast.Selection.SKIP_TILL_ANY),
    ],
)
@pytest.mark.parametrize("order", ["{s} {w}", "{w} {s}"])
def test_selection_and_within_in_either_order(written: str, selection: ast.Selection, order: str) -> None:
    both = order.format(s=f"SELECTION {written}", w="WITHIN INTERVAL '10' SECOND")
    _, match = clauses(f"PATTERN (A+ ~N B) {both} DEFINE A AS s = 'a'")
    assert match.selection is not None
    assert match.selection.selection is selection
    assert match.within is not None
    assert match.within.interval_us == 10_000_000
    assert len(match.defines) == 1


@pytest.mark.parametrize(
    ("written", "interval_us", "rows"),
    [
        ("INTERVAL '10' MINUTE", 600_000_000, None),
        ("INTERVAL 10 minutes", 600_000_000, None),
        ("10 MINUTES", 600_000_000, None),
        ("INTERVAL '2 weeks 3 us'", 14 * 86_400_000_000 + 3, None),
        ("INTERVAL '0' SECOND", 0, None),
        ("1 DAY", 86_400_000_000, None),
        ("7 ROWS", None, 7),
        ("1 ROW", None, 1),
    ],
)
def test_within(written: str, interval_us: int | None, rows: int | None) -> None:
    text, match = clauses(f"PATTERN (A) WITHIN {written}")
    assert match.within is not None
    assert (match.within.interval_us, match.within.rows) == (interval_us, rows)
    assert piece(text, match.within) == f"WITHIN {written}"


@pytest.mark.parametrize(
    "expression",
    [
        "measures + pattern",
        "a.define",
        "m['within']",
        "{'a': 1, 'b': [2, 3]}",
        "pattern(x, 1) OVER (PARTITION BY k ORDER BY ts)",
        "percentile_cont(0.5) WITHIN GROUP (ORDER BY x)",
        "count(*) FILTER (WHERE x > 1)",
        "x::DECIMAL(9, 2)",
        "x::TIMESTAMP WITH TIME ZONE",
        "CAST(x AS DOUBLE PRECISION)",
        "ts + INTERVAL 5 MINUTE",
        "E'it\\'s, (' || $$ ( $$ || $t$ ' $t$",
        "x /* , */ > -- AS (\n 1",
        "list_transform(l, lambda x: x + 1)",
        "x > ALL (SELECT 1)",
        "x IN ('a', 'b') AND NOT y IS NULL",
        "CASE WHEN a AND b THEN c END",
        "größe || '😀'",
        "x -> 'a' ->> '$.b'",
    ],
)
def test_expressions_stay_text(expression: str) -> None:
    text, match = clauses(
        f"PARTITION BY {expression}, k ORDER BY {expression} DESC, {expression} "
        f"MEASURES {expression} AS a, {expression} AS b PATTERN (A B) DEFINE A AS {expression}, B AS {expression}"
    )
    found = [*match.partition_by[:1], *(o.expression for o in match.order_by), *(m.expression for m in match.measures)]
    found += [d.condition for d in match.defines]
    assert [e.text for e in found] == [expression] * 7
    assert [piece(text, e) for e in found] == [expression] * 7


def test_columns_that_are_called_like_keywords() -> None:
    _, match = clauses(
        "PARTITION BY measures, pattern, one ORDER BY define, within MEASURES all_rows AS pattern, selection AS define "
        "PATTERN (one define permute) DEFINE one AS subset = 1, define AS after > one.match, permute AS skip"
    )
    assert [e.text for e in match.partition_by] == ["measures", "pattern", "one"]
    assert [m.name.written for m in match.measures] == ["pattern", "define"]
    assert shape(match.pattern) == "(ONE DEFINE PERMUTE)"
    assert [d.condition.text for d in match.defines] == ["subset = 1", "after > one.match", "skip"]


def test_inside_of_the_parentheses() -> None:
    inside = "PATTERN (A B$) DEFINE A AS x > 1"
    text = f"SELECT 'größe', * FROM größe MATCH_RECOGNIZE ( {inside} ) WHERE '$' <> ')'"
    match = parse(text).factors[0].match
    assert shape(match.pattern) == "(A B $)"
    assert piece(text, match.defines[0]) == "A AS x > 1"
    assert piece(text, match.pattern) == "A B$"


# ---- row patterns ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("A", "A"),
        ("a B", "(A B)"),
        ('"a" B', '("a" B)'),
        ("A | B C | D", "(A | (B C) | D)"),
        ("(A | B) C", "((A | B) C)"),
        ("((A))", "A"),
        ("(A (B))", "(A B)"),
        ("()", "()"),
        ("", "()"),
        ("A () B", "(A () B)"),
        ("^A B$", "(^ A B $)"),
        ("A$B", "(A $ B)"),
        ("$B$ C", "($ B $ C)"),
        ("^* A", "(^{0,} A)"),
        ("A ~B C", "(A ~B C)"),
        ("NOT b A", "(~B A)"),
        ("A{-B-}C", "(A {- B -} C)"),
        ("{- A | B -}+", "{- (A | B) -}{1,}"),
        ("PERMUTE(A, B+, (C | D))", "PERMUTE(A, B{1,}, (C | D))"),
        ("permute (A B, C)?", "PERMUTE((A B), C){0,1}"),
        ("A* B+ C?", "(A{0,} B{1,} C{0,1})"),
        ("A*? B+? C??", "(A{0,}? B{1,}? C{0,1}?)"),
        ("A{3} B{2,} C{2,5} D{,4} E{,}", "(A{3,3} B{2,} C{2,5} D{0,4} E{0,})"),
        ("A{3}? B{2,}? C{2,5}? D{,4}? E{,}?", "(A{3,3}? B{2,}? C{2,5}? D{0,4}? E{0,}?)"),
        ("(A B)+ C", "((A B){1,} C)"),
        ("((A+)?)*", "A{1,}{0,1}{0,}"),
        ("A{0,1}", "A{0,1}"),
        ("größe", "GRÖSSE"),
        ("A -- ) comment\n B /* ( */", "(A B)"),
    ],
)
def test_patterns(written: str, expected: str) -> None:
    assert shape(pattern(written)[1]) == expected


def test_pattern_spans() -> None:
    text, whole = pattern("(A | ~B) C{2,}? {- D -} $")
    assert isinstance(whole, ast.PatternSequence)
    assert piece(text, whole) == "(A | ~B) C{2,}? {- D -} $"
    assert [piece(text, p) for p in whole.parts] == ["(A | ~B)", "C{2,}?", "{- D -}", "$"]
    assert isinstance(whole.parts[0], ast.PatternAlternation)
    assert [piece(text, c) for c in whole.parts[0].choices] == ["A", "~B"]
    text, empty = pattern("")
    assert piece(text, empty) == "()"


def test_hints_for_what_other_dialects_write() -> None:
    with pytest.raises(QueryError, match=r"hint: write consecutive rows side by side: PATTERN \(A B\)"):
        parse("SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts PATTERN (A, B) DEFINE B AS price > 1)")
