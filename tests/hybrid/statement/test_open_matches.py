"""Matches that exist only because the input of a statement ends, and db.sql(as_live=True), which leaves them out."""

from __future__ import annotations

import warnings
from datetime import datetime
from pathlib import Path

import pytest

import hybrid
from hybrid.cli import main
from query.errors import HybridWarning

CART = """SELECT * FROM clicks MATCH_RECOGNIZE (PARTITION BY who ORDER BY ts MEASURES C.ts AS at
    PATTERN (C NOT B) WITHIN INTERVAL 1 HOUR DEFINE C AS page = 'cart', B AS page = 'buy') AS m"""
#: ann's hour is over at 10:05, and something has come since; bob's and cid's are not.
CLICKS = (("ann", 9, 5, "cart"), ("bob", 10, 0, "cart"), ("cid", 10, 30, "cart"), ("cid", 10, 31, "see"))
SAID = "^2 of 3 matches exist only because clicks ends at 2024-03-01 10:31:00: a live query would still wait; as_live"


def filled(db: hybrid.Database, lateness: str = "0s") -> hybrid.Database:
    columns = {"who": "VARCHAR", "ts": "TIMESTAMP", "page": "VARCHAR"}
    db.create_stream("clicks", columns, time="ts", key="who", lateness=lateness)
    db.push("clicks", [{"who": w, "ts": datetime(2024, 3, 1, h, m), "page": page} for w, h, m, page in CLICKS])
    return db


def who(result: hybrid.Result) -> list[str]:
    return sorted(str(row["who"]) for row in result)


def test_plain_sql_says_how_many_exist_because_the_stream_ends_here() -> None:
    # Before: three rows and no word, where a watch had given one.
    with filled(hybrid.connect()) as db:
        with pytest.warns(HybridWarning, match=SAID):
            assert who(db.sql(CART)) == ["ann", "bob", "cid"]
        with pytest.warns(HybridWarning, match=SAID):
            assert db.sql(CART.replace("*", "count(*) AS n")).fetchall() == [(3,)]
        assert who(db.sql(CART, as_live=True)) == ["ann"]


def test_what_time_has_decided_is_silent() -> None:
    with filled(hybrid.connect()) as db:
        db.advance("clicks", datetime(2024, 3, 1, 11, 0))  # bob's hour is over when nothing can come at 11:00
        with pytest.warns(HybridWarning, match="^2 of 3"):
            db.sql(CART)
        db.advance("clicks", datetime(2024, 3, 1, 11, 1))
        with pytest.warns(HybridWarning, match="^1 of 3 matches exists only"):
            db.sql(CART)
        assert who(db.sql(CART, as_live=True)) == ["ann", "bob"]
        db.advance("clicks", None)
        assert who(db.sql(CART)) == who(db.sql(CART, as_live=True)) == ["ann", "bob", "cid"]


def test_the_evidence_is_read_without_another_warning() -> None:
    with filled(hybrid.connect()) as db:
        with pytest.warns(HybridWarning, match=SAID):
            result = db.sql(CART)
        assert result.evidence().column("who").to_pylist() == ["ann", "bob", "cid"]


def test_events_within_the_lateness_are_not_matched_yet() -> None:
    with filled(hybrid.connect(), lateness="1 hour") as db:
        alerts = db.watch(CART, start="2024-03-01")
        assert alerts.fetch().num_rows == len(db.sql(CART, as_live=True)) == 0
        with pytest.warns(HybridWarning, match="^3 of 3 matches exist only"):
            db.sql(CART)


@pytest.mark.parametrize(("inside", "message"), [
    ("PATTERN (C B) WITHIN INTERVAL 1 HOUR TIMEOUT ROWS", "1 of 2 matches exists"),  # bob's; cid's has failed
    ("PATTERN (C X+)", None),  # a loop that the end cuts: the match is there either way
    ("PATTERN (NOT B C) WITHIN INTERVAL 1 HOUR", None),
])  # fmt: skip
def test_only_what_the_end_decides_counts(inside: str, message: str | None) -> None:
    pattern, _, timeout = inside.partition(" TIMEOUT")
    text = f"""SELECT * FROM clicks MATCH_RECOGNIZE (PARTITION BY who ORDER BY ts MEASURES C.ts AS at
        {'TIMEOUT' + timeout if timeout else ''} {pattern} DEFINE C AS page = 'cart'"""
    text += f"{', B AS page = $$buy$$' if 'B' in inside else ''}) AS m"
    with filled(hybrid.connect()) as db, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        db.sql(text)
    assert len(caught) == (message is not None)
    for one in caught:
        assert str(one.message).startswith(message or "")


def test_as_live_takes_what_a_watch_takes() -> None:
    with filled(hybrid.connect()) as db:
        with pytest.raises(hybrid.QueryError, match="HQ400"):
            db.sql(CART.replace("*", "count(*) AS n"), as_live=True)
        with pytest.raises(hybrid.QueryError, match="as_live on Spark"):
            db.sql(CART, as_live=True, engine="spark")


def test_files_alone_have_a_watermark(tmp_path: Path) -> None:
    (tmp_path / "clicks.csv").write_text("who,ts,page\n" + "".join(
        f"{w},2024-03-01 {h:02}:{m:02}:00,{page}\n" for w, h, m, page in CLICKS
    ))
    with hybrid.connect(tmp_path / "db", maintenance=False) as db:
        db.create_stream("clicks", {"who": "VARCHAR", "ts": "TIMESTAMP", "page": "VARCHAR"}, time="ts", key="who")
        db.ingest("clicks", tmp_path / "clicks.csv")
        assert who(db.sql(CART, as_live=True)) == ["ann"]
        assert db.watch(CART, start="2024-03-01").fetch().num_rows == 1


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    filled(hybrid.connect(tmp_path / "db", maintenance=False)).close()

    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["hybrid", "sql", CART, *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0)

    assert run("-d", str(tmp_path / "db"), "--as-live", "-f", "csv") == 0
    assert capsys.readouterr().out == '"who","at"\n"ann",2024-03-01 09:05:00.000000\n'
    assert run("--as-live") == 2
    assert "--as-live reads streams" in capsys.readouterr().err
