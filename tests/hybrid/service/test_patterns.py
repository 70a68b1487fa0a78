"""Named patterns of an app file: created at the start, replaced by a reload, and checked with the file."""

from __future__ import annotations

from pathlib import Path

import pytest

import hybrid
from hybrid.service.app_file import AppError, load
from query.errors import DataError, QueryError
from tests.hybrid.cli.test_cli import run
from tests.hybrid.services import APP, Bench, FakeSource, piece

FALL = """
SELECT * FROM ticks MATCH_RECOGNIZE (
  PARTITION BY name ORDER BY ts MEASURES A.price AS high, LAST(B.price) AS low
  PATTERN (A B) WITHIN INTERVAL 1 HOUR DEFINE B AS price < PREV(price)
)"""
#: The app, its query reading a pattern; `deep` is used by nothing yet, and is written before what it uses.
NAMED = f"""{APP[: APP.index("[queries.falls]")]}
[patterns.deep]
sql = "SELECT * FROM fall MATCH_RECOGNIZE (PARTITION BY name ORDER BY t1 MEASURES A.low AS low PATTERN (A) DEFINE A AS low < 3)"

[patterns.fall]
sql = '''{FALL}'''

[queries.falls]
sql = "SELECT high, low FROM fall"
sinks = ["alerts"]

{APP[APP.index("[sinks.alerts]") :]}"""  # noqa: E501


def faults(directory: Path, text: str) -> str:
    (directory / "app.toml").write_text(text)
    with pytest.raises(AppError) as caught:
        load(directory / "app.toml")
    return caught.value.render()


@pytest.mark.slow
def test_patterns_are_created_and_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path, NAMED)
    source = bench.start()
    source.given += [piece(5, 3)]
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(5, 3)]
    assert set(bench.service.context.db.patterns()) == {"deep", "fall"}
    bench.stop()
    with hybrid.connect(tmp_path / "market", read_only=True) as db:
        assert set(db.patterns()) == {"deep", "fall"}


@pytest.mark.slow
def test_a_changed_pattern_replaces_the_queries_that_use_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, NAMED)
    source = bench.start()
    source.given += [piece(5)]
    bench.step(2)
    # the match in progress comes out, with the new measure
    bench.rewrite(NAMED.replace("A.price AS high", "A.price * 10 AS high"))
    source.given += [piece(3, first=1)]
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(50, 3)]
    assert bench.status()["trouble"] == {}
    bench.stop()
    # a change while it was stopped: the query goes on from the checkpoint with the new text
    bench.file.write_text(NAMED.replace("A.price AS high", "A.price * 100 AS high"))
    bench.again()
    source = bench.start()
    source.given += [piece(4, 2, first=2)]
    bench.step(3)
    assert bench.sinks["alerts"].pairs()[1:] == [(400, 2)]
    bench.stop()


@pytest.mark.slow
def test_a_pattern_may_get_other_columns_with_its_queries(tmp_path: Path) -> None:
    bench = Bench(tmp_path, NAMED)
    source = bench.start()
    text = NAMED.replace("AS high", "AS top").replace("SELECT high", "SELECT top AS high")
    bench.rewrite(text)
    source.given += [piece(5, 3)]
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(5, 3)]
    bench.stop()


@pytest.mark.slow
def test_a_removed_pattern_that_no_longer_fits_stops_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, NAMED)
    bench.start()
    begin, end = NAMED.index("[patterns.deep]"), NAMED.index("[patterns.fall]")
    without = NAMED[:begin] + NAMED[end:]
    bench.rewrite(without.replace("AS low", "AS down").replace("low FROM fall", "down AS low FROM fall"))
    assert bench.status()["trouble"] == {}
    db = bench.service.context.db
    assert set(db.patterns()) == {"deep", "fall"}
    with pytest.raises(QueryError, match="in pattern deep"):
        db.sql("SELECT * FROM deep")
    bench.stop()


@pytest.mark.slow
def test_a_removed_pattern_stays(tmp_path: Path) -> None:
    bench = Bench(tmp_path, NAMED)
    bench.start()
    bench.rewrite(NAMED.replace("[patterns.deep]", "[patterns.deeper]"))
    assert set(bench.service.context.db.patterns()) == {"deep", "deeper", "fall"}
    bench.stop()
    # as for the queries of a service: what only the database knows can be read
    (tmp_path / "app.toml").write_text(NAMED.replace("high, low FROM fall", "low FROM deep"))
    assert load(tmp_path / "app.toml").queries["falls"].patterns.keys() == {"deep", "fall"}
    assert run("pattern", "drop", "deeper", "-d", str(tmp_path / "market")).returncode == 0


def test_a_pattern_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "fall.sql").write_text(FALL + ";\n")
    text = NAMED.replace(f"sql = '''{FALL}'''", 'file = "fall.sql"')
    (tmp_path / "app.toml").write_text(text)
    app = load(tmp_path / "app.toml")
    assert app.patterns["fall"] == FALL + ";\n"
    assert app.files[1:] == (tmp_path / "fall.sql",)
    (tmp_path / "fall.sql").write_text(FALL.replace("B AS price", "B AS prise"))
    assert "fall.sql:4:52\n" in faults(tmp_path, text)


def test_faults_point_at_the_pattern(tmp_path: Path) -> None:
    said = faults(tmp_path, NAMED.replace("B AS price", "B AS prise"))
    line = NAMED[: NAMED.index("B AS price")].count("\n") + 1
    assert f"app.toml:{line}:52\n" in said
    assert "ticks has no column prise" in said
    assert said.count("error[") == 1  # what uses it is not at fault
    said = faults(tmp_path, NAMED.replace("FROM ticks MATCH", "FROM deep MATCH"))
    assert "HQ222" in said
    assert "fall -> deep -> fall" in said
    said = faults(tmp_path, NAMED.replace(f"sql = '''{FALL}'''", ""))
    assert ("patterns.fall has no text" in said, said.count("error[")) == (True, 1)
    assert "patterns.deep has no text" in faults(tmp_path, NAMED.replace("sql = \"SELECT * FROM fall", "# \""))
    assert "patterns.fall has no key sqll" in faults(tmp_path, NAMED.replace("sql = '''", "sqll = '''"))
    assert "ticks is a stream" in faults(tmp_path, NAMED.replace("patterns.deep", "patterns.Ticks"))
    assert "HQ400" in faults(tmp_path, NAMED.replace("low FROM fall", "low FROM fal"))


def test_patterns_of_the_database_that_no_longer_fit_do_not_stop_the_check(tmp_path: Path) -> None:
    with hybrid.connect(tmp_path / "market") as db:
        db.create_stream("other", {"ts": "TIMESTAMP"}, time="ts")
        db.create_pattern("of_other", "SELECT * FROM other MATCH_RECOGNIZE (ORDER BY ts MEASURES 1 AS n PATTERN (A))")
    (tmp_path / "app.toml").write_text(NAMED)
    assert list(load(tmp_path / "app.toml").queries) == ["falls"]
    with hybrid.connect(tmp_path / "market") as db, pytest.raises(DataError, match="there is no pattern fall"):
        db.drop_pattern("fall")


def layer(pattern: str, measures: str, define: str, within: str) -> str:
    """Returns a pattern over ticks."""
    return f"""SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY name ORDER BY ts MEASURES {measures}
        AFTER MATCH NO SKIP PATTERN ({pattern}) WITHIN INTERVAL {within} SELECTION SKIP TILL NEXT MATCH
        DEFINE {define})"""


#: A dip is a fall to less than half and a rise behind it; the query finds two dips of which the second is deeper.
THREE = f"""{APP[: APP.index("[queries.falls]")]}
[patterns.drop]
sql = '''{layer("A B", "A.price AS top, B.price AS low", "B AS price < A.price / 2", "1 HOUR")}'''

[patterns.dip]
sql = '''{layer("D C", "D.low AS low", "D AS PATTERN drop ON low < 9, C AS price > D.top", "2 HOUR")}'''

[queries.falls]
sql = '''{layer("D E", "D.low AS high, E.low AS low", "D AS PATTERN dip, E AS PATTERN dip ON low < D.low", "4 HOUR")}'''
sinks = ["alerts"]

{APP[APP.index("[sinks.alerts]") :]}"""
#: Three dips to 5, 4 and 3; two matches.
PRICES = (20, 5, 30, 20, 4, 30, 20, 3, 30)


@pytest.mark.slow
@pytest.mark.thinned(4)
@pytest.mark.parametrize("crash_at", range(1, len(PRICES)))
def test_three_layers_go_on_after_a_crash_and_a_reload(tmp_path: Path, crash_at: int) -> None:
    """A crash between any two events; before it, the pattern in the middle changes, and back after it."""
    bench = Bench(tmp_path, THREE)
    source, found = bench.start(), []
    for i, price in enumerate(PRICES):
        if i == crash_at:
            bench.rewrite(THREE.replace("low < 9", "low < 8"))
            bench.pass_s(1.0)
            bench.service.outlets.unlock()  # as a crash
            bench.service.db.close()
            found += bench.sinks["alerts"].pairs()
            bench.sinks["alerts"].rows.clear()
            source = start_again(bench)
        if i == crash_at + 1:
            bench.rewrite(THREE)
        source.given += [piece(price, first=i)]
        bench.step(2)
    assert bench.status()["trouble"] == {}
    found += bench.sinks["alerts"].pairs()
    assert sorted(set(found)) == [(4, 3), (5, 4)]
    bench.stop()


def start_again(bench: Bench) -> FakeSource:
    bench.again()
    return bench.start()
