"""What must not meet: two sources at one file, a sink at what is read or kept."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hybrid.service.app_file import AppError, load
from hybrid.service.connectors import make_source
from hybrid.service.service import Service
from tests.hybrid.services import APP, Bench, FakeSink

MORE = '\n[sources.more]\nstream = "TICKS"\ntype = "file"\npath = "{}"\n'
FIRST = 'path = "ticks.ndjson"'


def line(second: int, price: int) -> str:
    return json.dumps({"ts": f"2024-01-01 00:00:{second:02}", "name": "x", "price": price}) + "\n"


def lay_out(directory: Path) -> None:
    """in/ticks.ndjson, which is reached by links too, and another file."""
    for name in ("in", "other", "in/sub"):
        (directory / name).mkdir()
    (directory / "in/ticks.ndjson").write_text(line(0, 5) + line(1, 4))
    (directory / "in/other.txt").write_text(line(0, 9))
    (directory / "link").symlink_to("in")
    (directory / "other/soft.ndjson").symlink_to("../in/ticks.ndjson")
    os.link(directory / "in/ticks.ndjson", directory / "other/hard.ndjson")


@pytest.mark.parametrize(("first", "second"), [
    ("in/ticks.ndjson", "./in/../in/ticks.ndjson"), ("in/ticks.ndjson", "link/ticks.ndjson"), ("in", "link"),
    ("in/ticks.ndjson", "other/soft.ndjson"), ("other/hard.ndjson", "in"), ("in/*.ndjson", "link/ticks.ndjson"),
    ("in/t*", "in/*.ndjson"), (".", "in"), ("in/coming.ndjson", "link/c*.ndjson"), ("in", "link/coming.csv"),
    ("**/*.ndjson", "in/sub/coming.ndjson"), ("coming", "./coming"),
])  # fmt: skip
def test_two_sources_of_one_file_are_refused(tmp_path: Path, first: str, second: str) -> None:
    # Before: well formed; each event was in the stream twice.
    lay_out(tmp_path)
    file = tmp_path / "app.toml"
    file.write_text(APP.replace(FIRST, f'path = "{first}"') + MORE.format(second))
    with pytest.raises(AppError, match=r"HQ703.*feed and more both read .* would be in ticks twice") as caught:
        load(file)
    assert f'path = "{second}"' in str(caught.value)
    assert "\nhint: let one source read it" in str(caught.value)


@pytest.mark.parametrize(("first", "second"), [
    ("in/ticks.ndjson", "in/coming.ndjson"), ("in/*.ndjson", "in/sub/coming.ndjson"), ("in/a*.csv", "link/b*.csv"),
    ("in", "in/_hidden/x.ndjson"), ("in/sub", "in/ticks.ndjson"), ("in", "link/coming.log"),
])  # fmt: skip
def test_sources_that_read_side_by_side_are_not(tmp_path: Path, first: str, second: str) -> None:
    lay_out(tmp_path)
    file = tmp_path / "app.toml"
    text = APP.replace(FIRST, f'path = "{first}"') + MORE.format(second)
    file.write_text(text + ('format = "ndjson"\n' if second.endswith(".log") else ""))
    assert load(file).sources.keys() == {"feed", "more"}


def test_a_file_may_go_into_two_streams(tmp_path: Path) -> None:
    lay_out(tmp_path)
    other = '\n[streams.copy]\ncolumns = { ts = "TIMESTAMP", name = "VARCHAR" }\ntime = "ts"\n'
    (tmp_path / "app.toml").write_text(APP + other + MORE.format("./ticks.ndjson").replace("TICKS", "copy"))
    assert load(tmp_path / "app.toml").sources.keys() == {"feed", "more"}


@pytest.mark.slow
def test_a_link_that_comes_later_doubles_nothing(tmp_path: Path) -> None:
    """The source that reads a file by a second path is stopped, and named; the other goes on."""
    # Before: 4 events, each of the file twice.
    lay_out(tmp_path)
    for name in ("soft", "hard"):
        (tmp_path / f"other/{name}.ndjson").unlink()
    file = tmp_path / "app.toml"
    file.write_text(APP.replace(FIRST, 'path = "in/*.ndjson"') + MORE.format("other/*.ndjson"))
    said: list[str] = []
    clock = Bench(tmp_path, file.read_text()).clock
    service = Service(load(file), said.append, clock, False, make_source, lambda table, app: FakeSink())
    service.start()
    for _ in range(3):
        service.step()
    (tmp_path / "other/soft.ndjson").symlink_to("../in/ticks.ndjson")
    for _ in range(5):
        service.step()
    with open(tmp_path / "in/ticks.ndjson", "a") as out:
        out.write(line(2, 3))
    for _ in range(5):
        service.step()
    assert service.db.sql("SELECT count(*) AS n FROM ticks").arrow()["n"].to_pylist() == [3]
    (text,) = [text for text in said if text.startswith("source more: it reads")]
    assert "other/soft.ndjson, which source feed reads into the same stream\nhint: let one source read it" in text
    service.stop()
    service.finish()
    with pytest.raises(AppError, match="sources feed and more both read"):
        load(file)


@pytest.mark.parametrize(("path", "what"), [
    ("ticks.ndjson", "files that source feed reads"), ("./link.ndjson", "files that source feed reads"),
    ("app.toml", "a file of the app"), ("falls.sql", "a file of the app"),
    ("market/_service/status.json", "the state of the service"), ("market/ticks/bad.ndjson", "the database"),
    ("dir/alerts.ndjson", "files that source more reads"), ("glob/alerts.ndjson", "files that source globbed reads"),
])  # fmt: skip
@pytest.mark.parametrize("there", [False, True])
def test_a_sink_that_writes_what_is_read_or_kept_is_refused(tmp_path: Path, path: str, what: str, there: bool) -> None:
    # Before: well formed. A sink at a file that its query's stream reads had its rows quarantined there without end.
    for name in ("dir", "glob", "market/ticks", "market/_service"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link.ndjson").symlink_to("ticks.ndjson")
    (tmp_path / "falls.sql").write_text("SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY name ORDER BY ts "
                                        "MEASURES A.price AS high PATTERN (A B) DEFINE B AS price < PREV(price))")
    begin, end = APP.index("sql = '''"), APP.index("sinks = [")
    text = APP[:begin] + 'file = "falls.sql"\n' + APP[end:] + MORE.format("dir")
    text += MORE.format("glob/a*.ndjson").replace("sources.more", "sources.globbed")
    file = tmp_path / "app.toml"
    file.write_text(text.replace('type = "stdout"', f'type = "file"\npath = "{path}"'))
    if there and not (tmp_path / path).exists():
        (tmp_path / path).touch()
    with pytest.raises(AppError, match=f"HQ703.*sink alerts writes into {what}") as caught:
        load(file)
    assert "\nhint: give alerts its own path" in str(caught.value)
    file.write_text(text.replace('type = "stdout"', 'type = "file"\npath = "glob/z.ndjson"'))
    load(file)


@pytest.mark.parametrize("path", ["dir", "dir/out", "above"])
def test_a_sink_of_parquet_into_a_directory_that_is_read_is_refused(tmp_path: Path, path: str) -> None:
    # Before: well formed; its files were read as events.
    (tmp_path / "above/in").mkdir(parents=True)
    (tmp_path / "dir").mkdir()
    source = "above/in" if path == "above" else "dir"
    sink = f'type = "file"\nformat = "parquet"\npath = "{path}"'
    (tmp_path / "app.toml").write_text(APP.replace(FIRST, f'path = "{source}"').replace('type = "stdout"', sink))
    if path == "above":  # what is read lies beside the files that are written, and is none of them
        load(tmp_path / "app.toml")
        return
    with pytest.raises(AppError, match="sink alerts writes into files that source feed reads"):
        load(tmp_path / "app.toml")


def test_a_database_around_all_keeps_only_its_own(tmp_path: Path) -> None:
    text = APP.replace('path = "market"', 'path = "."').replace('type = "stdout"', 'type = "file"\npath = "out.ndjson"')
    (tmp_path / "app.toml").write_text(text)
    load(tmp_path / "app.toml")
    (tmp_path / "app.toml").write_text(text.replace("out.ndjson", "_service/delivery-1.json"))
    (tmp_path / "_service").mkdir()
    with pytest.raises(AppError, match="the state of the service"):
        load(tmp_path / "app.toml")
