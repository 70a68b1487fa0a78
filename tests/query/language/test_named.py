"""Named patterns in a text: the statements about them, where they are read, and where errors are placed."""

from __future__ import annotations

import pickle

import pytest

from query.errors import Diagnostic, ExpandedText, QueryError, Span, own_text
from query.language.named import CreatePattern, DropPattern, expanded, pattern_statement, used_patterns
from query.language.parse import parse

VISIT = "SELECT k, n FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES count(*) AS n PATTERN (A))"
DAY = "SELECT * FROM visit MATCH_RECOGNIZE (ORDER BY t1 MEASURES sum(n) AS n PATTERN (A+))"
PATTERNS = {"visit": VISIT, "day": DAY, "odd name": "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts PATTERN (A))"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CREATE PATTERN v AS SELECT 1", ("v", "SELECT 1", False)),
        ("create or replace pattern V as SELECT 1 ; ", ("V", "SELECT 1", True)),
        ("-- ours\nCREATE PATTERN v AS -- first\n SELECT 1 -- last\n", ("v", "SELECT 1", False)),
        ("/* a */ CREATE PATTERN v AS FROM t PATTERN SEQ(t a)", ("v", "FROM t PATTERN SEQ(t a)", False)),
        ('CREATE PATTERN "v w" AS SELECT 1', ("v w", "SELECT 1", False)),
    ],
)
def test_create(text, expected):
    found = pattern_statement(text)
    assert isinstance(found, CreatePattern)
    assert (found.name, text[found.query.start : found.query.end], found.replace) == expected
    assert text[found.name_span.start : found.name_span.end].strip('"') == found.name


def test_drop_and_other_statements():
    assert pattern_statement("DROP PATTERN v;") == DropPattern("v", Span(13, 14), False)
    assert pattern_statement("drop pattern if exists v") == DropPattern("v", Span(23, 24), True)
    others = ("SELECT 1", "CREATE TABLE pattern AS SELECT 1", "DROP TABLE pattern", "-- CREATE PATTERN\nSELECT 1", "")
    for text in others:
        assert pattern_statement(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1 AS visit", "SELECT visit FROM t", "SELECT visit.n FROM t AS visit", "SELECT * FROM visit(1)",
        "SELECT * FROM main.visit", "SELECT * FROM visit.main", "SELECT extract(year FROM visit) FROM t",
        "SELECT a IS DISTINCT FROM visit FROM t", "SELECT a IS NOT DISTINCT FROM visit FROM t", "SELECT 'FROM visit'",
        "SELECT f(t, visit) FROM t", "SELECT * FROM t ORDER BY n, visit", "SELECT * FROM t WHERE a IN (1, visit)",
        "WITH visit AS (SELECT 1) SELECT * FROM (SELECT * FROM visit)", "SELECT a, visit FROM t",
        "WITH RECURSIVE visit AS (SELECT 1 UNION ALL SELECT * FROM visit) SELECT * FROM visit",
        "SELECT * FROM t GROUP BY a, visit", "SELECT * FROM hidden",
    ],
)  # fmt: skip
def test_what_reads_no_pattern(text):
    patterns = {**PATTERNS, "hidden": VISIT}
    assert expanded(text, ["t", "Hidden"], patterns) == text
    assert used_patterns(text, patterns, ["t", "Hidden"]) == {}


@pytest.mark.parametrize(
    ("text", "head"),
    [
        ("{}SELECT * FROM visit", ""), ("{}FROM visit", ""), ("{}SELECT a, (SELECT 1 FROM Visit) FROM t", ""),
        ("{}SELECT * FROM t, visit", ""), ("{}SELECT * FROM t JOIN t AS u ON t.a = u.a, visit", ""),
        ("{}SELECT * FROM (t JOIN visit ON true)", ""), ("{}SELECT * FROM (visit JOIN t ON true)", ""),
        ("{}SELECT * FROM MERGE(t, visit) MATCH_RECOGNIZE (PATTERN (A))", ""),
        ("COPY ({}SELECT * FROM visit) TO 'x'", ""), ("INSERT INTO u {}SELECT * FROM visit", ""),
        ("INSERT INTO u (a, b) {}SELECT * FROM visit", ""), ("CREATE TABLE u AS {}SELECT * FROM visit", ""),
        ("SELECT 1 UNION ALL (SELECT * FROM visit)", "{}"), ("{}SELECT 1 UNION ALL FROM visit", ""),
        ("(SELECT 1) UNION ({}SELECT * FROM visit)", ""), ("WITH {}a AS (SELECT * FROM visit) FROM a", "list"),
        ("WITH RECURSIVE {}a AS (SELECT * FROM visit) FROM a", "list"), ("{}SELECT EXISTS (FROM visit)", ""),
    ],
)  # fmt: skip
def test_where_the_query_comes_in(text, head):
    body = VISIT.replace("SELECT k, n", "SELECT k, n, t0, t1")
    entry = f'"visit" AS ({body}\n)'
    given = text.replace("{}", "")
    wanted = text.format(f"{entry}, " if head == "list" else f"WITH {entry} ")
    assert expanded(given, ["t"], PATTERNS) == (f"WITH {entry} {given}" if head == "{}" else wanted)
    assert used_patterns(given, PATTERNS, ["t"]) == {"visit": VISIT}


def test_patterns_in_patterns():
    text = 'SELECT * FROM day, "Odd Name"'
    whole = expanded(text, ["t"], PATTERNS)
    assert isinstance(whole, ExpandedText)
    assert own_text(whole) == text
    shown = {name: whole[span.start : span.end] for name, span in whole.queries()}
    assert list(shown) == ["day", "visit", "odd name"]
    assert shown["day"].endswith(DAY)
    assert shown["visit"] == VISIT.replace("SELECT k, n", "SELECT k, n, t0, t1")
    assert used_patterns(text, PATTERNS).keys() == {"day", "visit", "odd name"}
    assert [factor.times for factor in parse(text, ["t"], PATTERNS).factors] == [True, True, True]
    assert expanded(whole, ["t"], PATTERNS) is whole
    again = pickle.loads(pickle.dumps(whole))
    assert (again, again.own, again.inserts) == (whole, text, whole.inserts)


def test_a_ring_is_an_error_and_no_endless_text():
    patterns = {"a": "SELECT * FROM b", "b": "SELECT * FROM a"}
    with pytest.raises(QueryError, match="HQ222") as caught:
        expanded("SELECT * FROM a", [], patterns)
    assert "a -> b -> a" in str(caught.value)
    assert used_patterns("SELECT * FROM a", patterns) == patterns


def test_every_place_of_an_expanded_text_is_one_of_an_author():
    text = "WITH x AS (SELECT 1)\nSELECT v.n FROM visit AS v, day"
    whole = expanded(text, ["t"], PATTERNS)
    assert isinstance(whole, ExpandedText)
    placed = 0
    for i in range(len(whole)):
        (fault,), shown = whole.placed([Diagnostic("HQ100", "wrong", Span(i, i + 1))])
        own = shown[fault.span.start : fault.span.end]
        if own == whole[i]:
            said = {text: ["wrong"], DAY: ["in pattern day: wrong"], VISIT: ["in pattern visit: wrong"]}[shown]
            said += ["in pattern day: in pattern visit: wrong"] if shown == VISIT else []
            assert fault.message in said
            placed += 1
    assert placed >= len(text) + 2 * len(VISIT) + len(DAY)


def test_errors_in_several_texts_are_shown_in_that_of_the_author():
    text = "SELECT m FROM visit"
    whole = expanded(text, ["t"], PATTERNS)
    inside, outside = whole.index("count"), whole.rindex("m FROM")
    faults = [Diagnostic("HQ201", message, Span(at, at + 1)) for message, at in (("x", inside), ("y", outside))]
    found = QueryError(faults, whole)
    assert found.text == text
    assert {(d.message, text[d.span.start : d.span.end]) for d in found.diagnostics} == {
        ("in pattern visit: x", "visit"), ("y", "m")
    }  # fmt: skip
    alone = QueryError(faults[:1], whole)
    assert (alone.text, alone.diagnostics[0].span) == (VISIT, Span(VISIT.index("count"), VISIT.index("count") + 1))
    # what is generated is shown at the place because of which it is there
    (fault,), shown = whole.placed([Diagnostic("HQ201", "z", Span(0, 3))])
    assert (shown, text[fault.span.start : fault.span.end]) == (text, "visit")
