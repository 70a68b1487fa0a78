"""Notes about patterns that give a match for each later event."""

from __future__ import annotations

import pytest

from query.language.parse import parse
from query.plan.many_per_start import many_per_start

TEXT = "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts {} PATTERN ({}) SELECTION SKIP TILL {} MATCH)"


@pytest.mark.parametrize(
    ("after", "pattern", "selection", "noted"),
    [
        ("", "A B+ C", "NEXT", "B+"), ("", "A B* ~X C", "NEXT", "B*"), ("", "A B{2,} C D", "NEXT", "B{2,}"),
        ("AFTER MATCH NO SKIP", "A B+ C", "NEXT", ""), ("AFTER MATCH SKIP PAST LAST ROW", "A B+ C", "NEXT", ""),
        ("", "A B+", "NEXT", ""), ("", "A B+ ~C", "NEXT", ""), ("", "A B C", "NEXT", ""), ("", "A B+ C", "ANY", ""),
    ],
)  # fmt: skip
def test_notes(after: str, pattern: str, selection: str, noted: str) -> None:
    text = TEXT.format(after, pattern, selection)
    found = [text[note.span.start : note.span.end] for note in many_per_start(parse(text))]
    assert found == ([noted] if noted else [])
