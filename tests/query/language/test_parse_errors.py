"""What is said about texts that cannot be read, with the carets; and that nothing but QueryError ever comes out."""

from __future__ import annotations

import random
import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from query.errors import CODES, Diagnostic, QueryError, Span
from query.language import ast
from query.language.parse import parse
from tests.query.language.test_parse import HYBRID, nodes

GOLDEN = [
    """\
SELECT * FROM ticks
MATCH_RECOGNIZE (
  PARTITION BY symbol
  PATERN (A B)
  DEFINE B AS price > 1
) AS m
---
error[HQ101]: expected PATTERN, found PATERN
  --> query:4:3
   4 |   PATERN (A B)
     |   ^^^^^^
hint: did you mean PATTERN?
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A{5,1} B))
---
error[HQ104]: at least 5 and at most 1 repetitions
  --> query:1:44
   1 | SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A{5,1} B))
     |                                            ^^^^^ can never be met
hint: the smaller number comes first
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (ONE ROW PER MATCH WITH UNMATCHED ROWS PATTERN (A))
---
error[HQ101]: unexpected WITH
  --> query:1:52
   1 | SELECT * FROM e MATCH_RECOGNIZE (ONE ROW PER MATCH WITH UNMATCHED ROWS PATTERN (A))
     |                                                    ^^^^
hint: WITH UNMATCHED ROWS must follow ALL ROWS PER MATCH
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (MEASURES A.x PATTERN (A))
---
error[HQ101]: expected AS, found PATTERN
  --> query:1:47
   1 | SELECT * FROM e MATCH_RECOGNIZE (MEASURES A.x PATTERN (A))
     |                                               ^^^^^^^
hint: a measure has a name: count(*) AS n
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (MEASURES A.x AS x, PATTERN (A) DEFINE A AS x > 1)
---
error[HQ101]: expected a measure, found PATTERN
  --> query:1:53
   1 | SELECT * FROM e MATCH_RECOGNIZE (MEASURES A.x AS x, PATTERN (A) DEFINE A AS x > 1)
     |                                                     ^^^^^^^
hint: the last measure has no comma after it
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A{,0}? B))
---
error[HQ104]: at most 0 repetitions
  --> query:1:44
   1 | SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A{,0}? B))
     |                                            ^^^^^ never matches a row
hint: leave the element out, or write () for an empty pattern
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (
  PATTERN (A) MEASURES A.x AS y)
---
error[HQ103]: MEASURES belongs before PATTERN
  --> query:2:15
   2 |   PATTERN (A) MEASURES A.x AS y)
     |               ^^^^^^^^
hint: the order is PARTITION BY, ORDER BY, GROUP BY, MEASURES, ONE ROW or ALL ROWS PER MATCH, or ONE ROW PER WINDOW, \
TIMEOUT ROWS, AFTER MATCH, PATTERN, WITHIN, SLIDE, SELECTION, SUBSET, DEFINE
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A) WITHIN 5 ROWS SELECTION STRICT WITHIN 3 ROWS)
---
error[HQ103]: WITHIN appears twice
  --> query:1:77
   1 | SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A) WITHIN 5 ROWS SELECTION STRICT WITHIN 3 ROWS)
     |                                                                             ^^^^^^
hint: keep one WITHIN clause
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A B) DEFINE A AS x > 1 B AS x < 1)
---
error[HQ101]: expected ',' before B
  --> query:1:66
   1 | SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A B) DEFINE A AS x > 1 B AS x < 1)
     |                                                                  ^
hint: definitions are separated by commas
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A) WITHIN INTERVAL '1' MONTH)
---
error[HQ105]: months and years have no fixed length
  --> query:1:62
   1 | SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A) WITHIN INTERVAL '1' MONTH)
     |                                                              ^^^^^^^^^
hint: write it in days
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A) WITHIN INTERVAL '1.5' HOUR)
---
error[HQ105]: expected a whole number, found '1.5'
  --> query:1:62
   1 | SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A) WITHIN INTERVAL '1.5' HOUR)
     |                                                              ^^^^^
hint: write a smaller unit, or INTERVAL '1 hour 30 minutes'
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A) WITHIN 10 MINUTS)
---
error[HQ101]: expected MINUTES, found MINUTS
  --> query:1:56
   1 | SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A) WITHIN 10 MINUTS)
     |                                                        ^^^^^^
hint: did you mean MINUTES?
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A) SELECTION LOOSE)
---
error[HQ101]: expected PARTITION, SKIP or STRICT, found LOOSE
  --> query:1:56
   1 | SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A) SELECTION LOOSE)
     |                                                        ^^^^^
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A+ * B))
---
error[HQ101]: a quantifier follows another one
  --> query:1:46
   1 | SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A+ * B))
     |                                              ^
hint: group them: (A+)*
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k)
---
error[HQ101]: expected PATTERN, found )
  --> query:1:48
   1 | SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k)
     |                                                ^
hint: every MATCH_RECOGNIZE has a PATTERN ( ... )
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY ORDER BY ts PATTERN (A))
---
error[HQ102]: expected an expression, found ORDER
  --> query:1:47
   1 | SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY ORDER BY ts PATTERN (A))
     |                                               ^^^^^
""",
    """\
SELECT * FROM e MATCH_RECOGNISE (PATTERN (A))
---
error[HQ100]: expected MATCH_RECOGNIZE
  --> query:1:17
   1 | SELECT * FROM e MATCH_RECOGNISE (PATTERN (A))
     |                 ^^^^^^^^^^^^^^^
hint: did you mean MATCH_RECOGNIZE?
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A)) AS pl
JOIN HISTORY OF h FROM pl.a ON true
---
error[HQ100]: expected TO, found ON
  --> query:2:29
   2 | JOIN HISTORY OF h FROM pl.a ON true
     |                             ^^
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A)) AS pl
FULL JOIN HISTORY OF h FROM a TO b ON true
---
error[HQ300]: history cannot be joined by FULL JOIN
  --> query:2:1
   2 | FULL JOIN HISTORY OF h FROM a TO b ON true
     | ^^^^^^^^^
hint: available: JOIN, LEFT JOIN, SEMI JOIN, ANTI JOIN, NEAREST JOIN, LEFT NEAREST JOIN
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A)) AS pl
ASOF LEFT JOIN HISTORY OF h FROM a TO b ON true
---
error[HQ300]: history cannot be joined by ASOF LEFT JOIN
  --> query:2:1
   2 | ASOF LEFT JOIN HISTORY OF h FROM a TO b ON true
     | ^^^^^^^^^^^^^^
hint: what ASOF joins do: NEAREST JOIN, LEFT NEAREST JOIN
""",
    """\
SELECT * FROM ticks JOIN names USING (k) MATCH_RECOGNIZE (PATTERN (A)) AS m
---
error[HQ100]: MATCH_RECOGNIZE must follow a table of FROM or JOIN
  --> query:1:42
   1 | SELECT * FROM ticks JOIN names USING (k) MATCH_RECOGNIZE (PATTERN (A)) AS m
     |                                          ^^^^^^^^^^^^^^^
hint: put the input into parentheses: FROM (SELECT ... ) MATCH_RECOGNIZE ( ... )
""",
    """\
SELCT * FROM e MATCH_RECOGNIZE (PATTERN (A)) AS m
---
error[HQ100]: unexpected SELCT
  --> query:1:1
   1 | SELCT * FROM e MATCH_RECOGNIZE (PATTERN (A)) AS m
     | ^^^^^
hint: did you mean SELECT?
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (PATTERN (B) DEFINE B AS x IN (SELECT y FROM e MATCH_RECOGNIZE (PATTERN (A))))
---
error[HQ500]: a pattern inside the clauses of a pattern is not supported yet
  --> query:1:80
   1 | SELECT * FROM e MATCH_RECOGNIZE (PATTERN (B) DEFINE B AS x IN (SELECT y FROM e MATCH_RECOGNIZE (PATTERN (A))))
     |                                                                                ^^^^^^^^^^^^^^^
hint: put it into the input: FROM (SELECT ... MATCH_RECOGNIZE ( ... )) MATCH_RECOGNIZE ( ... )
""",
    """\
SELECT 'it''s FROM e
---
error[HQ100]: a string that does not end
  --> query:1:8
   1 | SELECT 'it''s FROM e
     |        ^ opened here
hint: close it with '
""",
    """\
SELECT * FROM e MATCH_RECOGNIZE (
  PATTERN (A (B)
---
error[HQ100]: ( is never closed
  --> query:2:11
   2 |   PATTERN (A (B)
     |           ^ opened here
hint: add )
""",
    # every piece says what is wrong with it
    """\
SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A{0})) AS pl
SEMI JOIN HISTORY OF h FROM a b ON true
---
error[HQ104]: at most 0 repetitions
  --> query:1:44
   1 | SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A{0})) AS pl
     |                                            ^^^ never matches a row
hint: leave the element out, or write () for an empty pattern

error[HQ100]: expected TO, found ON
  --> query:2:33
   2 | SEMI JOIN HISTORY OF h FROM a b ON true
     |                                 ^^
""",
    # what is not ASCII takes as many columns as a terminal gives it; tabs stay tabs
    """\
SELECT '日本😀é' AS ä,
	größe FROM e MATCH_RECOGNIZE (PATTERN (A{0}))
---
error[HQ104]: at most 0 repetitions
  --> query:2:42
   2 | 	größe FROM e MATCH_RECOGNIZE (PATTERN (A{0}))
     | 	                                        ^^^ never matches a row
hint: leave the element out, or write () for an empty pattern
""",
    """\
SELECT n FROM e MATCH_RECOGNIZE (PATTERN (A B) WITHIN 10 DEFINE A AS x > 1)
---
error[HQ101]: expected ROW, ROWS or a unit of time, found DEFINE
  --> query:1:58
   1 | SELECT n FROM e MATCH_RECOGNIZE (PATTERN (A B) WITHIN 10 DEFINE A AS x > 1)
     |                                                          ^^^^^^
hint: a time has a unit, WITHIN 10 MINUTES; a number of rows is followed by ROWS
""",
    """\
SELECT n FROM e MATCH_RECOGNIZE (PATTERN (A .* B) DEFINE A AS x > 1)
---
error[HQ101]: unexpected . in a row pattern
  --> query:1:45
   1 | SELECT n FROM e MATCH_RECOGNIZE (PATTERN (A .* B) DEFINE A AS x > 1)
     |                                             ^
hint: any row is a variable that DEFINE does not name: PATTERN (A X* B)
""",
    """\
SELECT n FROM e MATCH_RECOGNIZE (PATTERN (A [B C]) DEFINE A AS x > 1)
---
error[HQ101]: unexpected [ in a row pattern
  --> query:1:45
   1 | SELECT n FROM e MATCH_RECOGNIZE (PATTERN (A [B C]) DEFINE A AS x > 1)
     |                                             ^
hint: one of several rows is written (B | C)
""",
    """\
SELECT n FROM e MATCH_RECOGNIZE (PATTERN (A B){2,} DEFINE A AS x > 1)
---
error[HQ101]: expected WITHIN, SELECTION, SUBSET or DEFINE, found {
  --> query:1:47
   1 | SELECT n FROM e MATCH_RECOGNIZE (PATTERN (A B){2,} DEFINE A AS x > 1)
     |                                               ^
hint: a quantifier of the whole pattern is inside of it: PATTERN ((A B)+)
""",
    """\
SELECT '日本😀é' FORM e, f
---
error[HQ100]: unexpected e
  --> query:1:20
   1 | SELECT '日本😀é' FORM e, f
     |                       ^
hint: did you mean FROM?
""",
]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda c: c.split("---\n")[1].split("\n")[0])
def test_golden(case: str) -> None:
    text, expected = case.split("\n---\n")
    with pytest.raises(QueryError) as caught:
        parse(text)
    assert caught.value.render() + "\n" == expected


@pytest.mark.parametrize(
    ("text", "code", "piece"),
    [
        ("", "HQ100", ""),
        (" \n\t", "HQ100", " \n\t"),
        ("-- nothing", "HQ100", "-- nothing"),
        ("hello", "HQ100", "hello"),
        ("SELECT \x00 1", "HQ100", "\x00"),
        ("SELECT '\ud800'", "HQ100", "\ud800"),
        ("SELECT /* 1", "HQ100", "/*"),
        ("SELECT $a$ b", "HQ100", "$a$"),
        ('SELECT "a', "HQ100", '"'),
        ("SELECT (1]", "HQ100", "]"),
        ("SELECT 1)", "HQ100", ")"),
        ("MATCH_RECOGNIZE (PATTERN (A))", "HQ100", "MATCH_RECOGNIZE"),
        ("SELECT * FROM MATCH_RECOGNIZE (PATTERN (A))", "HQ100", "MATCH_RECOGNIZE"),
        ("SELECT e MATCH_RECOGNIZE (PATTERN (A))", "HQ100", "MATCH_RECOGNIZE"),
        ("SELECT * FROM e MATCH_RECOGNIZE PATTERN (A)", "HQ100", "MATCH_RECOGNIZE"),
        ("SELECT a b MATCH_RECOGNIZE (PATTERN (A))", "HQ100", "MATCH_RECOGNIZE"),
        ("SELECT * FROM f(1) AS x(a,) MATCH_RECOGNIZE (PATTERN (A))", "HQ100", ")"),
        ("SELECT * FROM e AS x.y MATCH_RECOGNIZE (PATTERN (A))", "HQ100", "MATCH_RECOGNIZE"),
        ("SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A)) AS m ()", "HQ100", ")"),
        ("SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A)) AS m (a b)", "HQ100", "b"),
        ("SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A)) AS m (1)", "HQ100", "1"),
        ("SELECT * FROM (SELECT * FRM e) MATCH_RECOGNIZE (PATTERN (A))", "HQ100", "e"),
        ("INSERT INTO t SELEC * FROM e MATCH_RECOGNIZE (PATTERN (A))", "HQ100", "SELEC"),
        ("CREATE TABLE t SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A))", "HQ100", "SELECT"),
        ("COPY (SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A))) 'x'", "HQ100", "'x'"),
        ("DELETE FROM t USING e MATCH_RECOGNIZE (PATTERN (A))", "HQ100", "MATCH_RECOGNIZE"),
        ("UPDATE t SET x = (FROM e MATCH_RECOGNIZE (PATTERN (A)))", "HQ100", "UPDATE"),
        ("CREATE OR REPLACE TEMP MACRO f() AS TABLE FROM e MATCH_RECOGNIZE (PATTERN (A))", "HQ500",
         "CREATE OR REPLACE TEMP MACRO"),
        ("SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A)) AS", "HQ100", "AS"),
        ("SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A)) AS m; SELECT 1", "HQ100", "SELECT"),
        ("CREATE VIEW v AS SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A))", "HQ500", "CREATE VIEW"),
        ("SELECT 1 JOIN HISTORY OF h FROM a TO b ON c", "HQ100", "JOIN"),
        ("SELECT * FROM e, HISTORY OF h FROM a TO b ON c", "HQ100", "HISTORY OF"),
        ("SELECT * FROM e JOIN HISTROY OF h FROM a TO b ON c", "HQ100", "HISTROY"),
        ("SELECT * FROM e JOIN HISTORY h FROM a TO b ON c", "HQ100", "h"),
        ("SELECT * FROM e JOIN HISTORY OF FROM a TO b ON c", "HQ100", "FROM"),
        ("SELECT * FROM e JOIN HISTORY OF h FROM a TO b", "HQ100", ""),
        ("SELECT * FROM e JOIN HISTORY OF h FROM a TO b AS ON c", "HQ100", "ON"),
        ("SELECT * FROM e JOIN HISTORY OF h FROM a TO b ON WHERE c", "HQ100", ""),
        ("SELECT * FROM e JOIN HISTORY OF h FROM TO b ON c", "HQ100", "TO"),
        ("SELECT * FROM e JOIN HISTORY OF h FROM a TO b MATCH_RECOGNIZE (PATERN (A)) ON c", "HQ101", "PATERN"),
        ("SELECT * FROM e JOIN HISTORY OF h FROM (FROM f MATCH_RECOGNIZE (PATTERN (A))) TO b ON c",
         "HQ500", "MATCH_RECOGNIZE"),
    ],
)  # fmt: skip
def test_statements(text: str, code: str, piece: str) -> None:
    check(text, code, piece)


@pytest.mark.parametrize(
    ("inside", "code", "piece"),
    [
        ("", "HQ101", ")"),
        ("PARTITION k PATTERN (A)", "HQ101", "k"),
        ("PARTITION BY k ORDRE BY ts PATTERN (A)", "HQ101", "ORDRE"),
        ("ORDER BY ts DESCC PATTERN (A)", "HQ101", "DESCC"),
        ("ORDER BY ts, PATTERN (A)", "HQ101", ")"),
        ("MEASURES x PATTERN (A)", "HQ101", "PATTERN"),
        ("MEASURES x AS PATTERN (A)", "HQ101", "PATTERN"),
        ("MEASURES x AS y z AS w PATTERN (A)", "HQ101", "z"),
        ("ONE ROW PER MACH PATTERN (A)", "HQ101", "MACH"),
        ("ONE ROW PER MATCH ALL ROWS PER MATCH PATTERN (A)", "HQ103", "ALL"),
        ("AFTER MATCH SKIP PAST LAST ROWS PATTERN (A)", "HQ101", "ROWS"),
        ("AFTER MATCH SKIP TO PATTERN (A)", "HQ101", "PATTERN"),
        ("PATTERN A", "HQ101", "A"),
        ("PATTERN (+)", "HQ101", "+"),
        ("PATTERN (A | )", "HQ101", ")"),
        ("PATTERN (A {- B)", "HQ100", ")"),
        ("PATTERN (A -})", "HQ100", "-}"),
        ("PATTERN (A ~B+)", "HQ101", "+"),
        ("PATTERN (A ~(B))", "HQ101", "("),
        ("PATTERN (PERMUTE(A,))", "HQ101", ")"),
        ("PATTERN (A{2)", "HQ101", ")"),
        ("PATTERN (A{x})", "HQ101", "x"),
        ("PATTERN (A{99999999999})", "HQ104", "{99999999999}"),
        ("PATTERN (A{" + "9" * 5000 + ",})", "HQ104", "{" + "9" * 5000 + ",}"),
        ("PATTERN (A) PATTERN (B)", "HQ103", "PATTERN"),
        ("PATTERN (A) SUBSET U = (A) WITHIN 5 ROWS", "HQ103", "WITHIN"),
        ("PATTERN (A) DEFINE A AS x SUBSET U = (A)", "HQ103", "SUBSET"),
        ("DEFINE A AS x PATTERN (A)", "HQ101", "DEFINE"),
        ("PATTERN (A) WITHIN", "HQ101", ")"),
        ("PATTERN (A) WITHIN 0 ROWS", "HQ101", "0"),
        ("PATTERN (A) WITHIN 1.5 HOURS", "HQ105", "1.5"),
        ("PATTERN (A) WITHIN INTERVAL 'x' DAY", "HQ105", "'x' DAY"),
        ("PATTERN (A) WITHIN INTERVAL '-1 day'", "HQ105", "'-1 day'"),
        ("PATTERN (A) WITHIN INTERVAL '999999999999999999' DAY", "HQ105", "'999999999999999999' DAY"),
        ("PATTERN (A) SELECTION SKIP TILL NEXT", "HQ101", ")"),
        ("PATTERN (A) SELECTION SKIP TILL ALL MATCH", "HQ101", "ALL"),
        ("PATTERN (A) SUBSET U = (A, )", "HQ101", ")"),
        ("PATTERN (A) SUBSET U (A)", "HQ101", "("),
        ("PATTERN (A) DEFINE A AS", "HQ102", ")"),
        ("PATTERN (A) DEFINE A AS x,", "HQ101", ")"),
        ("PATTERN (A) DEFINE A x > 1", "HQ101", "x"),
        ("PATTERN (A) DEFINE A AS x > (SELECT 1 FROM e MATCH_RECOGNIZE (PATTERN (B)))", "HQ500", "MATCH_RECOGNIZE"),
        ("PATTERN (A) ;", "HQ101", ";"),
        ("PATTERN (A) 'x'", "HQ101", "'x'"),
    ],
)  # fmt: skip
def test_clauses(inside: str, code: str, piece: str) -> None:
    check(f"SELECT * FROM e MATCH_RECOGNIZE ({inside}) AS m", code, piece)


def check(text: str, code: str, piece: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse(text)
    (found,) = caught.value.diagnostics
    assert (found.code, text[found.span.start : found.span.end]) == (code, piece)
    assert 0 <= found.span.start <= found.span.end <= len(text)


def test_a_hint_names_the_nearest_keyword() -> None:
    for wrong, right in {"SELECTON": "SELECTION", "DEFIEN": "DEFINE", "SUBSETS": "SUBSET", "WITIN": "WITHIN"}.items():
        with pytest.raises(QueryError) as caught:
            parse(f"SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A) {wrong} x)")
        assert caught.value.diagnostics[0].hint == f"did you mean {right}?"


def test_faults_inside_the_parentheses() -> None:
    for inside, piece in {
        "PATERN (A)": "PATERN",
        "PATTERN (A": "(",
        "PATTERN (A))": ")",
        "": ")",
        "PATTERN 'x": "'",
    }.items():
        text = f"SELECT 'größe' FROM größe MATCH_RECOGNIZE ({inside})"
        first = text.index("(")
        with pytest.raises(QueryError) as caught:
            parse(text)
        (found,) = caught.value.diagnostics
        assert first <= found.span.start < found.span.end <= len(text)
        assert text[found.span.start : found.span.end] == piece


@pytest.mark.slow
def test_deep_nesting() -> None:
    for depth in (40, 60, 150, 5000):
        for opening, closing in ("()", "[]", "{}", ("{-", "-}"), ("(A ", ")+"), ("/*", "*/"), ("CASE ", " END ")):
            survives(f"SELECT * FROM e MATCH_RECOGNIZE (PATTERN ({opening * depth}A{closing * depth}) DEFINE A AS x)")
            survives(f"SELECT {opening * depth}1{closing * depth}")
            survives(f"SELECT * FROM e MATCH_RECOGNIZE (PATTERN (A) DEFINE A AS {opening * depth}1{closing * depth})")
    survives("SELECT * FROM e MATCH_RECOGNIZE (PATTERN (" + "~" * 10_000 + "A))")
    survives("SELECT * FROM e MATCH_RECOGNIZE (PATTERN (" + "A | " * 10_000 + "A))")
    deep = "(" * 50 + "A" + " B)+" * 50
    assert repr(parse(f"SELECT * FROM e MATCH_RECOGNIZE (PATTERN ({deep}))"))


# ---- mutations -------------------------------------------------------------------------------------------------

VALID = [
    HYBRID,
    "SELECT * FROM read_parquet('a(b') MATCH_RECOGNIZE (PARTITION BY a, b ORDER BY ts DESC NULLS LAST, "
    "x MEASURES FINAL LAST(A.x) AS x, count(*) AS \"n\" ALL ROWS PER MATCH WITH UNMATCHED ROWS AFTER MATCH SKIP TO "
    "LAST B PATTERN (^ A+? (B | C){2,3} {- D -} PERMUTE(E, F) ~G $) WITHIN INTERVAL '10' MINUTE SELECTION SKIP TILL "
    "ANY MATCH SUBSET U = (A, B) DEFINE A AS x > 1 AND s LIKE 'a%', B AS CASE WHEN b.x IN (1, 2) THEN true END) AS m "
    "WHERE m.x > 1;",
    "WITH w AS (SELECT 1 AS k) SELECT m.* FROM (SELECT * FROM t) MATCH_RECOGNIZE (ORDER BY ts PATTERN (A B) "
    "WITHIN 5 ROWS) m ANTI JOIN HISTORY OF h BETWEEN m.ts - INTERVAL 1 DAY AND m.ts AS KNOWN AS r ON "
    "r.k = m.k AND r.x = 'é' NEAREST JOIN HISTORY OF \"G\" FROM a TO b MATCH_RECOGNIZE (PATTERN (A)) AS g "
    "ON true JOIN w ON w.k = m.k LIMIT 5",
]  # fmt: skip
PIECES = re.compile(r"'[^']*'|\"[^\"]*\"|\w+|\s+|.", re.DOTALL)
ODD = [
    "'",
    '"',
    "$$",
    "/*",
    "--",
    "\x00",
    "é",
    "日",
    "😀",
    "\t",
    "\n",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    ",",
    ";",
    "|",
    "~",
    "$",
    "AS",
    "\\",
]


def survives(text: str) -> bool:
    """Whether the text is read; if not, by a QueryError with spans inside of it, a known code, and a rendering."""
    faults: tuple[Diagnostic, ...] = ()
    query = None
    try:
        query = parse(text)
    except QueryError as error:
        faults = error.diagnostics
    assert (query is None) == bool(faults)
    for fault in faults:
        assert 0 <= fault.span.start <= fault.span.end <= len(text), fault
        assert fault.code in CODES
        assert fault.message
        if text:
            assert fault.render(text).split("\n")[3].strip(" |\t").startswith("^")
    for node in nodes(query):
        if isinstance(node, ast.ExpressionText):
            assert text[node.span.start : node.span.end] == node.text != ""
        elif not isinstance(node, ast.QuerySyntax):
            assert 0 <= node.span.start < node.span.end <= len(text)
    return query is not None


def mutated(text: str, draw: random.Random) -> str:
    """The text with one or two tokens deleted, doubled, misspelt, exchanged or replaced, or cut off."""
    pieces = PIECES.findall(text)
    for _ in range(draw.choice((1, 1, 1, 2))):
        i = draw.choice([k for k, piece in enumerate(pieces) if not piece.isspace()])
        match draw.randrange(7):
            case 0:
                pieces[i] = ""
            case 1:
                pieces[i] += " " + pieces[i]
            case 2 | 3:
                k = draw.randrange(len(pieces[i]))
                pieces[i] = pieces[i][:k] + draw.choice(string.ascii_letters) + pieces[i][k + draw.randrange(2) :]
            case 4:
                j = draw.randrange(len(pieces))
                pieces[i], pieces[j] = pieces[j], pieces[i]
            case 5:
                pieces[i] = draw.choice(ODD)
            case 6:
                pieces = pieces[: i + 1] if draw.random() < 0.3 else pieces
        pieces = [piece for piece in pieces if piece] or ["x"]
    return "".join(pieces)


@pytest.mark.slow
@pytest.mark.parametrize("text", VALID)
def test_mutations(text: str) -> None:
    assert survives(text)
    draw = random.Random(f"mutations of {text}")
    read = sum(survives(mutated(text, draw)) for _ in range(400))
    assert 40 < read < 300


@pytest.mark.slow
@given(
    st.lists(st.sampled_from([p for t in VALID for p in PIECES.findall(t)] + ODD), max_size=30).map(" ".join)
    | st.text()
)
@settings(max_examples=300, deadline=None)
def test_garbage(text: str) -> None:
    survives(text)
    survives(f"SELECT * FROM e MATCH_RECOGNIZE ({text})")
    survives(f"SELECT * FROM e MATCH_RECOGNIZE (PATTERN ({text}) DEFINE A AS {text})")


def test_the_caret_stands_below_its_character() -> None:
    text = "a\tb日本é\u0301😀X"
    lines = Diagnostic("HQ100", "here", Span(text.index("X"), len(text))).render(text).split("\n")
    # one column each for a, b and é, none for the accent, two each for 日, 本 and 😀
    assert lines[3] == "     |  \t" + " " * 8 + "^"


@pytest.mark.parametrize(("text", "opened"), [
    ("(ORDER BY t PATTERN (A (B C)+ DEFINE A AS x > 3)", "(A (B"),
    ("(MEASURES abs(max(A.x) AS m PATTERN (A) DEFINE A AS x > 3)", "(max"),
    ("(MEASURES A.x AS m ONE ROW PER MATCH AFTER MATCH SKIP TO NEXT ROW PATTERN (A B+ WITHIN INTERVAL 1 DAY)", "(A B+"),
    ("(PATTERN (A B) DEFINE A AS abs(x > 3, B AS x > 2) AS m", "(x > 3"),
    ("(PATTERN (A B) DEFINE A AS abs(x > 3) AS m ORDER BY 1", "(x > 3"),
    ("(\n  PATTERN (A B)\n  DEFINE A AS abs(x - 3 > 3\n) ORDER BY 1", "(x - 3"),
    # nothing says more than the bracket without a partner
    ("(PATTERN (A B) DEFINE A AS (x > (2))", "(PATTERN"),
    ("(PATTERN (A B) DEFINE A AS CAST(x AS INT) IN (1, (2)), B AS x > 1", "(PATTERN"),
    ("(\n  MEASURES CAST(A.x AS INT) AS n\n  PATTERN (A B)\n  DEFINE A AS x IN (\n    1\n  ), B AS (x > 3)", "(\n  M"),
    ("(PATTERN (A)) AS m WHERE x IN (SELECT max(y FROM e)", "(SELECT"),
])  # fmt: skip
def test_the_bracket_that_is_left_open(text: str, opened: str) -> None:
    # Before: the bracket without a partner, that after MATCH_RECOGNIZE as a rule.
    text = f"SELECT * FROM e MATCH_RECOGNIZE {text}"
    with pytest.raises(QueryError, match=r"\( is never closed") as caught:
        parse(text)
    assert text[caught.value.diagnostics[0].span.start :].startswith(opened)
