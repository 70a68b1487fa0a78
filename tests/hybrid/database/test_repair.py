"""hybrid archive repair, as a user has it; and the declaration of a stream, which is a file like any other."""

from __future__ import annotations

import json
import shutil
import struct
from datetime import datetime

import pytest
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app

COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "DOUBLE"}


@pytest.fixture
def database(tmp_path):
    with hybrid.connect(tmp_path / "db", maintenance=False) as db:
        db.create_stream("t", COLUMNS, time="ts", key="k", lateness="2s", heartbeat="1h")
        for day in (1, 2, 3):
            db.push("t", [{"ts": datetime(2024, 1, day), "k": "a", "v": float(day)}])
            db.flush()
    return tmp_path / "db"


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["archive", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout


def values(database) -> list[float]:
    with hybrid.connect(database, maintenance=False) as db:
        return [row["v"] for row in db.sql("SELECT v FROM t ORDER BY ts").arrow().to_pylist()]


@pytest.mark.slow
def test_a_damaged_declaration(database):
    # Before: lateness 2,000,001 us, and no word.
    file = database / "t" / "stream.json"
    text = file.read_text()
    file.write_text(text.replace("2000000", "2000001"))
    with pytest.raises(hybrid.DataError, match=r"stream\.json is damaged: its checksum does not match") as raised:
        hybrid.connect(database)
    assert "hybrid archive repair" in raised.value.hint
    assert run("verify", "-d", database) == (1, f"t: broken: {file} is damaged: its checksum does not match\n")
    code, said = run("repair", "-d", database)
    assert code == 0
    assert said.startswith("t: stream.json was damaged: it is _aside/stream.json now, and created from the table")
    assert run("verify", "-d", database) == (0, "")
    assert values(database) == [1.0, 2.0, 3.0]
    with hybrid.connect(database, maintenance=False) as db:
        assert db.streams()["t"]["watermark"] == "2024-01-02 23:59:58"


@pytest.mark.slow
def test_a_declaration_that_is_gone(database):
    # Before: there was no stream, and no word.
    (database / "t" / "stream.json").unlink()
    assert run("verify", "-d", database) == (1, "t: broken: stream.json is missing\n")
    with pytest.warns(hybrid.HybridWarning, match=r"stream\.json is missing: t is declared as its table is"):
        assert values(database) == [1.0, 2.0, 3.0]


@pytest.mark.slow
def test_a_declaration_of_an_earlier_release(database):
    file = database / "t" / "stream.json"
    state = json.loads(file.read_text())
    del state["sum"]
    file.write_text(json.dumps({**state, "version": 1}))
    assert values(database) == [1.0, 2.0, 3.0]


@pytest.mark.slow
def test_what_is_lost_is_taken_in_again_from_a_file(database, tmp_path):
    # Before: an error that named no event, and nothing to do about it.
    table = database / "t" / "table"
    (path,) = (table / "2024-01-02").glob("*.parquet")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(hybrid.DataError, match="missing: 1 event of source default, offsets 1 to 1"):
        values(database)
    code, said = run("repair", "-d", database, "t")
    assert code == 0
    assert "missing: 1 event of source default, offsets 1 to 1; " in said
    assert values(database) == [1.0, 3.0]
    given = tmp_path / "again.csv"
    given.write_text("ts,k,v\n2024-01-02,a,2\n")
    assert run("ingest", "t", given, "-d", database)[0] == 0
    assert values(database) == [1.0, 2.0, 3.0]
    assert run("verify", "-d", database, "--deep")[0] == 0
    assert run("repair", "-d", database) == (0, "")


@pytest.mark.slow
def test_what_was_taken_out_for_its_age_stays_out(database):
    with hybrid.connect(database, maintenance=False) as db:
        db.create_stream("t", COLUMNS, time="ts", key="k", lateness="2s", heartbeat="1h")
    assert run("expire", "-d", database, "--before", "2024-01-02")[0] == 0
    assert values(database) == [2.0, 3.0]
    assert run("verify", "-d", database, "--deep") == (0, "")
    (path,) = (database / "t" / "table" / "2024-01-03").glob("*.parquet")
    path.unlink()
    code, said = run("repair", "-d", database)
    assert (code, said.count("missing: 1 event")) == (0, 1)
    assert values(database) == [2.0]


@pytest.mark.slow
def test_a_damaged_log_and_a_database_that_is_open(tmp_path):
    with hybrid.connect(tmp_path / "work", maintenance=False, log="os") as db:
        db.create_stream("t", COLUMNS, time="ts", key="k")
        for day in (1, 2, 3):
            db.push("t", [{"ts": datetime(2024, 1, day), "k": "a", "v": float(day)}])
        shutil.copytree(tmp_path / "work", tmp_path / "db")  # as a process that is killed leaves it
        result = CliRunner().invoke(app, ["archive", "repair", "-d", str(tmp_path / "work")])
        assert isinstance(result.exception, hybrid.DataError)
    (segment,) = (tmp_path / "db" / "t" / "table" / "_log").glob("*.log")
    data = bytearray(segment.read_bytes())
    at = data.index(struct.pack("<d", 2.0))
    data[at] ^= 1
    segment.write_bytes(data)
    with pytest.raises(hybrid.DataError, match="is broken at byte"):
        hybrid.connect(tmp_path / "db", log="os")
    code, said = run("repair", "-d", tmp_path / "db")
    assert code == 0
    assert said.startswith(f"t: table/_log/{segment.name} is broken at byte")
    assert "the 2 events that can be read of it are kept" in said
    assert "; 1 event is missing, number 1 on" in said
    # Before: after this flush verify named the gap that repair had told, and repair then said that nothing was wrong.
    assert values(tmp_path / "db") == [1.0, 3.0]
    assert run("verify", "--deep", "-d", tmp_path / "db") == (0, "")
    assert run("repair", "-d", tmp_path / "db") == (0, "")


@pytest.mark.slow
def test_verify_and_snapshot_look_at_the_log(database, tmp_path):
    # Before: 0 faults of a database that cannot be opened, and a copy of it that cannot be opened either.
    shutil.rmtree(database / "t" / "table" / "_log")
    code, said = run("verify", "-d", database)
    assert code == 1
    assert said.startswith("t: broken: ")
    assert "_log" in said
    result = CliRunner().invoke(app, ["archive", "snapshot", str(tmp_path / "copy"), "-d", str(database)])
    assert isinstance(result.exception, hybrid.DataError)
    assert "the log of t in" in result.exception.message
    with pytest.raises(hybrid.DataError, match="unfinished snapshot"):
        hybrid.connect(tmp_path / "copy")


@pytest.mark.slow
def test_what_only_a_lost_commit_had_is_not_deleted(database):
    # Before: expire deleted the only file with these events, and every command said 0 faults.
    table = database / "t" / "table"
    for folder in ("_delta_log", "_head"):
        max(path for path in (table / folder).iterdir() if path.suffix in (".json", ".head")).unlink()
    with pytest.warns(hybrid.HybridWarning, match="alone has 1 event.*repair adds its events"):
        code, _ = run("expire", "-d", database, "--grace", "0")
    assert code == 0
    run("repair", "-d", database)
    assert values(database) == [1.0, 2.0, 3.0]
