"""The tables of the grammar are kept between processes: never a reason to fail, and never those of another grammar."""

from __future__ import annotations

from pathlib import Path

import lark
import pytest

from query.language import parse, read
from query.language.read import parser_of

#: A grammar with the starts of ours. Ours takes 2 s to be built.
TEXT = """
%declare NAME
clauses: "PATTERN" NAME
history_join: NAME
sase: NAME
trend: NAME
returns: NAME
alert: NAME
"""


def test_it_is_built_once_and_then_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = parser_of(TEXT, tmp_path / "new")
    (file,) = (tmp_path / "new").iterdir()
    monkeypatch.setattr(lark.Lark, "__init__", lambda *_, **__: pytest.fail("built again"))
    again = parser_of(TEXT, tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == [file]
    assert {t.name for t in again.terminals} == {t.name for t in built.terminals}
    assert again.options.start == built.options.start


@pytest.mark.slow
def test_a_text_is_read_the_same_by_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k PATTERN (A B+) WITHIN 3 ROWS DEFINE B AS v > A.v) AS m"
    queries = []
    monkeypatch.setattr(read, "cache_home", lambda: tmp_path)
    for _ in range(2):
        read.grammar.cache_clear()
        queries.append(parse.parse(text))
    read.grammar.cache_clear()
    assert queries[0] == queries[1]


@pytest.mark.parametrize("stands_there", [b"", b"no pickle", b"\x80\x05}\x94."])
def test_what_cannot_be_read_is_built(tmp_path: Path, stands_there: bytes) -> None:
    parser_of(TEXT, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(stands_there)
    assert parser_of(TEXT, tmp_path).terminals
    with file.open("rb") as kept:  # and kept
        assert lark.Lark.load(kept).terminals


def test_another_grammar_is_another_file(tmp_path: Path) -> None:
    parser_of(TEXT, tmp_path)
    parser_of(TEXT + "\n// more\n", tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_where_nothing_can_be_kept_it_is_built(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert parser_of(TEXT, tmp_path / "file" / "cache").terminals
