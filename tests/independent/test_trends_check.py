"""The independent check of trends imports nothing of ours, and is right on small inputs counted by hand."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.independent import trends_check
from tests.independent.test_stock_check import imported
from tests.independent.trends_check import Event, Pattern, Query, rows

A, B, C = (("event", name) for name in "abc")


def events(text: str) -> list[Event]:
    """`A@1{2}` is an A at 1 with v = 2."""
    found = []
    for word in text.split():
        kind, rest = word.split("@")
        time, _, value = rest.strip("}").partition("{")
        found.append({"time": int(time), "kind": kind, "v": int(value) if value else None})
    return found


def is_of(kind: str, event: Event, before: object) -> bool:
    return bool(event["kind"] == kind)


def asked(*sides: Pattern, within: int = 10, slide: int = 10, strategy: str = "ANY") -> Query:
    """COUNT(*), COUNT(a) and SUM(a.v); the variable a takes the type A, and so on."""
    conditions = {name: partial(is_of, name.upper()) for name in "abc"}
    aggregates = (("count", (), ""), ("count", ("a",), ""), ("sum", ("a",), "v"))
    return Query(sides, conditions, within, slide, strategy=strategy, aggregates=aggregates)


def test_imports_nothing_of_ours() -> None:
    ours = {"query", "matching", "live", "archive", "simulator", "hybrid", "tests"}
    assert not imported(Path(trends_check.__file__)) & ours


@pytest.mark.parametrize(
    ("query", "text", "expected"),
    [
        (asked(("seq", A, B)), "A@1{1} A@2{2} B@3", [(0, 10, 2, 2, 3)]),
        (asked(("plus", A)), "A@1{1} A@2{2}", [(0, 10, 3, 4, 6)]),
        (asked(("plus", ("star", A))), "A@1{1} A@2{2}", [(0, 10, 3, 4, 6)]),
        (asked(("seq", ("star", A), B)), "A@1{1} B@2", [(0, 10, 2, 1, 1)]),
        (asked(("seq", A, ("not", "c"), B)), "A@1{1} C@2 B@3 A@4{2} B@5", [(0, 10, 1, 1, 2)]),
        (asked(("seq", ("not", "c"), A)), "A@1{1} C@2 A@3{5}", [(0, 10, 1, 1, 1)]),
        (asked(("or", A, B)), "A@1{1} B@2", [(0, 10, 2, 1, 1)]),
        (asked(A, B), "A@1{1} A@2{2} B@3 B@4", [(0, 10, 4, 4, 6)]),
        (asked(A, within=4, slide=2), "A@-1{1}", [(-4, 0, 1, 1, 1), (-2, 2, 1, 1, 1)]),
        (asked(("seq", A, B), strategy="PARTITION"), "A@1{1} C@2 B@3 A@4{5} B@5", [(0, 10, 1, 1, 5)]),
        (asked(("seq", ("plus", A), B), strategy="NEXT"), "A@1{1} A@2{2} C@3 B@4", [(0, 10, 2, 3, 5)]),
    ],
)
def test_small_inputs(query: Query, text: str, expected: list[tuple[object, ...]]) -> None:
    assert rows(query, events(text)) == expected
