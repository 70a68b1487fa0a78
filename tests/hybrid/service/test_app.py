"""App files: every fault is found, in one look, and points at its place."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path

import pytest

from hybrid.service.app import App
from hybrid.service.app_file import AppError, load, state_of
from hybrid.service.app_tables import FileSinkTable, KafkaSinkTable, SimulatorSourceTable
from query.errors import DataError
from query.extras import install_command
from tests.hybrid.cli.test_cli import run

APPS = Path(__file__).parents[1] / "apps"
GOOD = """
[database]
path = "market"
checkpoint = "2s"

[streams.ticks]
columns = { ts = "TIMESTAMP", symbol = "VARCHAR", price = "DOUBLE", volume = "BIGINT" }
time = "ts"
key = "symbol"
lateness = "2s"
late = "alerts"

[sources.feed]
stream = "TICKS"
type = "stock"
rate = 100

[queries.falls]
file = "falls.sql"
sinks = ["alerts"]

[sinks.alerts]
type = "file"
path = "alerts.ndjson"
"""
FALLS = (
    "SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts MEASURES A.ts AS ts, LAST(B.price) AS price "
    "PATTERN (A B) DEFINE B AS price < PREV(price))"
)


def write(directory: Path, text: str, query: str = FALLS) -> Path:
    (directory / "falls.sql").write_text(query)
    (directory / "app.toml").write_text(text)
    return directory / "app.toml"


@pytest.mark.parametrize("name", ["syntax", "keys", "values", "names", "queries"])
def test_faults_and_their_places(name: str) -> None:
    """All that is wrong with a file, as it is printed. ACCEPT=1 writes what is printed now."""
    with pytest.raises(AppError) as caught:
        load(APPS / f"{name}.toml")
    printed = caught.value.render().replace(f"{APPS}{os.sep}", "") + "\n"
    expected = APPS / f"{name}.txt"
    if os.environ.get("ACCEPT"):
        expected.write_text(printed)
    assert printed == expected.read_text()


def test_every_caret_stands_under_what_is_wrong() -> None:
    """What the messages name is what the carets point at: the golden texts could be wrong and stay so."""
    texts = "\n".join((APPS / f"{name}.txt").read_text() for name in ("keys", "values", "names", "queries"))
    pointed = re.findall(r"^ +\d+ \| (.*)\n +\| ( *)(\^+)", texts, re.MULTILINE)
    marked = [line[len(pad) : len(pad) + len(carets)] for line, pad, carets in pointed]
    assert len(marked) > 30
    for wanted in (
        "memory", "retentoin", "streems", '"2 apples"', '"fsink"', '"VARCHR"', '"9100"', "tikcs", "prise", "x",
        '"smybol"', '"tick"', '"kafak"', '"flals.sql"', "C",
    ):  # fmt: skip
        assert wanted in marked


def test_sharing_of_the_app_and_of_a_query(tmp_path: Path) -> None:
    for of_all, of_one, found in (("", "", "dynamic"), ("static", "", "static"), ("static", "none", "none")):
        text = GOOD.replace("[database]", f'[database]\nsharing = "{of_all}"') if of_all else GOOD
        text = text.replace('file = "falls.sql"', f'file = "falls.sql"\nsharing = "{of_one}"') if of_one else text
        assert load(write(tmp_path, text)).queries["falls"].sharing == found
    with pytest.raises(AppError) as caught:
        load(write(tmp_path, GOOD.replace('file = "falls.sql"', 'file = "falls.sql"\nsharing = "hamlets"')))
    printed = caught.value.render()
    assert 'sharing is "hamlets"' in printed
    assert "hint: did you mean hamlet?" in printed
    line, carets = next(pair for pair in zip(printed.split("\n"), printed.split("\n")[1:]) if "^" in pair[1])
    assert line[carets.index("^") : carets.rindex("^") + 1] == '"hamlets"'


def test_a_good_file(tmp_path: Path) -> None:
    app = load(write(tmp_path, GOOD))
    assert isinstance(app, App)
    assert app.database.checkpoint == timedelta(seconds=2)
    assert app.streams["ticks"].key == ("symbol",)
    assert app.sources["feed"] == SimulatorSourceTable(type="stock", stream="TICKS", rate=100)
    assert app.sinks["alerts"] == FileSinkTable(type="file", path="alerts.ndjson")
    assert app.queries["falls"].text == FALLS
    assert app.queries["falls"].reads == ("ticks",)
    assert app.files == (tmp_path / "app.toml", tmp_path / "falls.sql")
    assert app.place("x/y") == str(tmp_path / "x/y")
    assert app.place("s3://bucket/x") == "s3://bucket/x"
    assert not (tmp_path / "market").exists()


SECRET = """
[sinks.events]
type = "kafka"
brokers = "${BROKER}:9092,${BROKER}:9093"
topic = "alerts"
options = { "sasl.username" = "us", "sasl.password" = "${A_PASSWORD}" }
"""


def test_environment_variables_stand_for_what_the_file_should_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER", "kafka.example")
    monkeypatch.setenv("A_PASSWORD", "to${BROKER}$")  # what a variable holds is taken as it is
    monkeypatch.setenv("PLACE", "here")
    text = GOOD.replace('"market"', '"market/${PLACE}"') + SECRET
    file = write(tmp_path, text, FALLS.replace("A.ts", "A.ts /* ${X} */"))
    app = load(file)
    assert app.sinks["events"] == KafkaSinkTable(
        type="kafka", brokers="kafka.example:9092,kafka.example:9093", topic="alerts",
        options={"sasl.username": "us", "sasl.password": "to${BROKER}$"},
    )  # fmt: skip
    assert "${X}" in app.queries["falls"].text
    monkeypatch.delenv("A_PASSWORD")
    with pytest.raises(AppError) as caught:
        load(file)
    (line,) = [n for n, text in enumerate(file.read_text().split("\n"), 1) if "A_PASSWORD" in text]
    said = caught.value.render()
    assert "error[HQ704]: environment variable A_PASSWORD is not set" in said
    assert f"app.toml:{line}:" in said
    assert state_of(file) == tmp_path / "market" / "here" / "_service"  # status needs no password
    monkeypatch.delenv("PLACE")
    with pytest.raises(AppError, match="environment variable PLACE is not set"):
        state_of(file)


def test_a_file_has_what_the_app_file_should_not_say(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    webhook = """
[sinks.chat]
type = "webhook"
url = "https://chat.example/"
headers = { Authorization = "Bearer ${file:token}" }
"""
    file = write(tmp_path, GOOD + webhook)
    assert load(file).sinks["chat"].headers == {"Authorization": "Bearer s3cret"}  # type: ignore[union-attr]
    (tmp_path / "token").unlink()
    with pytest.raises(AppError, match=r"HQ704\]: cannot read token: No such file") as caught:
        load(file)
    assert "s3cret" not in str(caught.value)


def test_a_template_with_a_column_that_rows_lack(tmp_path: Path) -> None:
    webhook = """
[sinks.chat]
type = "webhook"
url = "https://chat.example/"
template = '{"text": "{{query}}: {{symbl}}"}'
"""
    text = GOOD.replace('sinks = ["alerts"', 'sinks = ["chat"', 1)
    assert text != GOOD
    with pytest.raises(AppError, match="the template names symbl, which rows do not have") as caught:
        load(write(tmp_path, text + webhook))
    assert re.search(r'"chat".*\n.*\^{6}', str(caught.value))


def test_where_the_service_keeps_its_account(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD)
    assert load(file).state == state_of(file) == tmp_path / "market" / "_service"
    (tmp_path / "market" / "_service").mkdir(parents=True)
    assert state_of(tmp_path / "market") == state_of(tmp_path / "market" / "_service") == load(file).state
    for path, state in (('path = "s3://bucket/market"', tmp_path / "app.service"), ("", tmp_path / "app.service")):
        file.write_text(GOOD.replace('path = "market"', path))
        assert load(file).state == state_of(file) == state
    file.write_text(GOOD.replace('path = "market"', 'path = "market"\nstate = "s"'))
    assert load(file).state == state_of(file) == tmp_path / "s"


def test_lines_that_end_as_on_windows(tmp_path: Path) -> None:
    text = GOOD.replace("file =", "sql =").replace('"falls.sql"', '"""\n' + FALLS.replace("B AS", "\nB AS x +") + '"""')
    file = write(tmp_path, text)
    file.write_bytes(text.replace("\n", "\r\n").encode())
    with pytest.raises(AppError, match="has no column x") as caught:
        load(file)
    line = text.split("\n").index('B AS x + price < PREV(price))"""') + 1
    assert f"app.toml:{line}:6" in str(caught.value)


def test_an_extra_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    text = GOOD.replace('type = "file"\npath = "alerts.ndjson"', 'type = "mqtt"\nhost = "h"\ntopic = "t"')
    with pytest.raises(AppError, match="HQ705") as caught:
        load(write(tmp_path, text + "\n[metrics]\nport = 1\n"))
    assert install_command("mqtt") in str(caught.value)
    assert install_command("metrics") in str(caught.value)


@pytest.mark.parametrize(("keys", "says", "marked"), [
    ('spark = "sprak://host:7077"', "invalid Spark address 'sprak://host:7077'", '"sprak://host:7077"'),
    ('spark = "local"\nspark_events = -1', "spark_events is -1", "-1"),
    ("spark = 7", "spark is 7: not a string", "7"),
    ("spark_events = 5", "spark_events needs spark", "5"),
])  # fmt: skip
def test_faults_of_spark(tmp_path: Path, keys: str, says: str, marked: str) -> None:
    with pytest.raises(AppError, match="HQ703") as caught:
        load(write(tmp_path, GOOD.replace('checkpoint = "2s"', keys)))
    assert says in str(caught.value)
    assert re.search(rf"= {re.escape(marked)}\n.*{re.escape('^' * len(marked))}\n", str(caught.value))


@pytest.mark.parametrize(("line", "instead"), [
    ('checkpoint = "2s"', 'checkpoint = "0s"'),
    ('checkpoint = "2s"', "checkpoint = 0"),
    ('lateness = "2s"', 'retention = "0 days"'),
    ('lateness = "2s"', 'idle = "0s"'),
    ('lateness = "2s"', 'heartbeat = "0ms"'),
])  # fmt: skip
def test_lengths_of_time_that_may_not_be_nothing(tmp_path: Path, line: str, instead: str) -> None:
    """Before: taken as they are, with a checkpoint after every step."""
    assert line in GOOD
    with pytest.raises(AppError, match="HQ703") as caught:
        load(write(tmp_path, GOOD.replace(line, instead)))
    assert "but must be positive" in str(caught.value)


def test_spark_where_it_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = GOOD.replace('checkpoint = "2s"', 'spark = "local[*]"')
    database = load(write(tmp_path, given)).database
    assert (database.spark, database.spark_events) == ("local[*]", None)
    with pytest.raises(AppError, match="in memory has no files for Spark"):
        load(write(tmp_path, given.replace('path = "market"', "")))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(AppError, match=rf"HQ705(.|\n)*{re.escape(install_command('spark'))}"):
        load(write(tmp_path, given))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*no\.toml: No such file"):
        load(tmp_path / "no.toml")
    (tmp_path / "latin.toml").write_bytes("# ä".encode("latin-1"))
    with pytest.raises(DataError, match="not UTF-8"):
        load(tmp_path / "latin.toml")
    # Before: "Invalid statement 1:1" of a file as some editors write it.
    file = write(tmp_path, GOOD)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert "ticks" in load(file).streams


@pytest.mark.slow
def test_check_on_the_command_line(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD)
    for arguments in (("check", str(file)), ("run", str(file), "--check")):
        done = run(*arguments)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", f"{file} is valid\n")
    for arguments in (("check", str(APPS / "queries.toml")), ("run", str(APPS / "queries.toml"))):
        done = run(*arguments)
        assert done.returncode == 1
        assert done.stderr.replace(f"{APPS}{os.sep}", "") == (APPS / "queries.txt").read_text()


@pytest.mark.parametrize(("path", "kind"), [
    ("alerts.ndjson", "ndjson"), ("./sub/../alerts.ndjson", "ndjson"), ("link/alerts.ndjson", "ndjson"),
    ("soft.ndjson", "ndjson"), ("hard.ndjson", "ndjson"), ("alerts.ndjson/", "parquet"),
])  # fmt: skip
def test_two_sinks_of_one_path_are_refused(tmp_path: Path, path: str, kind: str) -> None:
    """However it is spelled, of one kind or of two; also before there is such a file."""
    # Before: well formed; the service wrote torn lines.
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "soft.ndjson").symlink_to("alerts.ndjson")
    if path == "hard.ndjson":
        (tmp_path / "alerts.ndjson").touch()
        os.link(tmp_path / "alerts.ndjson", tmp_path / path)
    more = f'\n[sinks.more]\ntype = "file"\nformat = "{kind}"\npath = "{path}"\n'
    with pytest.raises(AppError, match="sinks alerts and more write to the same path: their rows would mix") as caught:
        load(write(tmp_path, GOOD + more))
    assert f'path = "{path}"' in str(caught.value)
    assert "\nhint: give more its own path; or let several queries use alerts" in str(caught.value)
    load(write(tmp_path, GOOD + more.replace(path, f"other-{kind}")))
