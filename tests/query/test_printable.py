from __future__ import annotations

import pytest

from query.errors import DataError, Diagnostic, HybridWarning, Span, warn
from query.printable import printable, printable_lines, printable_values

FORGED = "x\x1b[31m\n2024-01-01 00:00:00 all is well\r\x9b\u202e\u2028"
ESCAPED = "x\\x1b[31m\\n2024-01-01 00:00:00 all is well\\r\\x9b\\u202e\\u2028"


def test_controls_are_escapes() -> None:
    assert printable(FORGED) == ESCAPED
    assert printable("Zürich \u4e2d\u6587 \U0001f469\u200d\U0001f680 a\u00a0b") == (
        "Zürich \u4e2d\u6587 \U0001f469\u200d\U0001f680 a\u00a0b"
    )


def test_lines_stay_where_they_are_ours() -> None:
    assert printable_lines("a\x07\nhint:\tb", "  ") == "a\\x07\n  hint:\tb"
    assert printable_values({"k\n": ["v\x1b", 1, None]}) == {"k\\n": ["v\\x1b", 1, None]}


def test_errors_and_warnings_have_no_controls() -> None:
    assert "\x1b" not in str(DataError(f"file {FORGED}", f"rename {FORGED}"))
    assert "\x1b" not in Diagnostic("HQ200", f"no table {FORGED}", Span(0, 1)).render("x")
    with pytest.warns(HybridWarning, match=r"x\\x1b"):
        warn(FORGED)
