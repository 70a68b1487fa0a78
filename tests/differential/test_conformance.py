"""docs/conformance.md names tests that exist, and rules that the comparison has."""

from __future__ import annotations

import re
from collections import Counter

from tests.cases.golden import read_cases
from tests.differential import draw
from tests.differential.__main__ import engine_cases
from tests.docs.documents import ROOT

TEXT = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")

#: Rows of the clause table that need no case of their own: all cases, and what we do not have.
WITHOUT = {"every case above whose order rises", ""}


def clause_rows() -> list[list[str]]:
    table = TEXT.split("## Clause by clause")[1].split("## Random statements")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def test_the_table_is_read() -> None:
    rows = clause_rows()
    assert len(rows) > 40
    assert {len(row) for row in rows} == {8}


def test_every_test_named_exists() -> None:
    names = {case.name for case in read_cases()}
    named = [(row[0], row[-1].strip("`")) for row in clause_rows() if row[-1] not in WITHOUT]
    assert [clause for clause, name in named if name not in names] == []


def test_what_we_have_has_a_test() -> None:
    assert [row[0] for row in clause_rows() if row[6] != "no" and not row[-1]] == []


def test_every_rule_is_explained() -> None:
    text = " ".join(TEXT.lower().split())
    for rule in (draw.GREEDY, draw.OPTIONAL, draw.FIRST, draw.HELD):
        assert rule.lower() in text


def test_engine_cases_name_their_engine() -> None:
    cases = engine_cases()
    assert len(cases) >= 160
    engines = re.compile(r"engine: (flink-sql|pandas_match_recognize) [\d.]+")
    assert [c.name for c in cases if not engines.fullmatch(c.source)] == []


def test_published_cases_name_their_page() -> None:
    published = [case for case in read_cases() if case.file.startswith("published/")]
    page = re.compile(r"published: (Apache Flink|Snowflake|Oracle|Trino), .+")
    assert [case.name for case in published if not page.fullmatch(case.source)] == []
    counted = Counter(case.file.removeprefix("published/") for case in published)
    said = TEXT.split("- **As published.**")[1].split("- **At random.**")[0]
    assert {name.lower(): int(n) for name, n in re.findall(r"(\w+) \((\d+)\)", said)} == counted
    coming = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
    assert f"{len(published)} examples from the documents of" in coming
