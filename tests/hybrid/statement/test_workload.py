"""hybrid explain --workload: what the trend queries of an app file share over the events of a table."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.statement.workload import explain_workload
from query.errors import QueryError

pytestmark = pytest.mark.slow  # its kernels take half a minute to compile

HEAD = "RETURN district, COUNT(*) FROM rides TYPE BY type"
TAIL = "GROUP BY district WITHIN 30 MINUTES SLIDE 5 MINUTES"
LOOP = "Request R, (SEQ(Pickup P, Travel T))+"
TEXTS = {
    "qa": f"{HEAD} PATTERN SEQ((AppOrder A OR WebOrder W), {LOOP}, Dropoff D) WHERE [driver_id] {TAIL}",
    "qb": f"{HEAD} PATTERN SEQ(AppOrder A, {LOOP}, Dropoff D) WHERE [driver_id] AND D.place = 'pool' {TAIL}",
    "qc": f"{HEAD} PATTERN SEQ(AppOrder A, {LOOP}, Cancel C) WHERE [driver_id] AND T.speed < 10 {TAIL}",
    "qe": f"{HEAD} PATTERN SEQ(AppOrder A, {LOOP}, Cancel C) WHERE [driver_id] {TAIL}",
    "qd": f"{HEAD} PATTERN SEQ(AppOrder A, ~(WebOrder W), Request R) WHERE [driver_id] {TAIL}",
}
RIDE = ("AppOrder", "Request", "Pickup", "Travel", "Pickup", "Travel", "Dropoff")


def rides(count: int) -> pa.Table:
    """Rides of four drivers, one after another."""
    n = count * len(RIDE)
    return pa.table({
        "ts": pa.array([i * 1_000_000 for i in range(n)]).cast(pa.timestamp("us")),
        "type": [RIDE[i % len(RIDE)] for i in range(n)],
        "driver_id": [i // len(RIDE) % 4 for i in range(n)],
        "district": ["north"] * n,
        "place": ["pool" if i % 3 else "home" for i in range(n)],
        "speed": [i % 30 for i in range(n)],
    })  # fmt: skip


def test_the_delivery_workload_is_explained() -> None:
    found = explain_workload(TEXTS, {"rides": rides(900)})
    assert "template    start -> AppOrder: qa, qb, qc, qe\n            start -> WebOrder: qa\n" in found
    assert "            Travel -> Dropoff: qa, qb\n            Travel -> Cancel: qc, qe\n" in found
    assert "\nrates       " in found
    assert "\ngraph       " in found
    assert "\nplan        " in found
    assert "changes     at event 6,300: chosen for the first rates" in found
    assert found.endswith("alone       qd: its pattern has a negation")


def test_a_workload_without_sharing_is_explained_too() -> None:
    found = explain_workload(TEXTS, {"rides": rides(2)}, "none")
    assert found.startswith("mode        none\ntemplate    ")
    assert "graph" not in found


def test_too_few_events_for_rates_are_said() -> None:
    found = explain_workload(TEXTS, {"rides": rides(20)})
    # Before: nothing was said, and the plan shared nothing.
    assert "rates       not measured: that takes 5,000 events and a whole window, and there are 140 events" in found


def test_the_command_reads_a_database_and_lines_of_json(tmp_path: Path) -> None:
    # Before: tables only, and of .json and .jsonl only.
    file = tmp_path / "app.toml"
    file.write_text("".join(f'[queries.{name}]\nsql = """{text}"""\n' for name, text in TEXTS.items()))
    columns = {
        "ts": "TIMESTAMP", "type": "VARCHAR", "driver_id": "BIGINT", "district": "VARCHAR", "place": "VARCHAR",
        "speed": "BIGINT",
    }  # fmt: skip
    with hybrid.connect(tmp_path / "db") as db:
        db.create_stream("rides", columns, time="ts")
        db.push("rides", rides(20))
    lines = [json.dumps(row, default=str) for row in rides(20).to_pylist()]
    (tmp_path / "rides.ndjson").write_text("\n".join(lines))
    for given in (["-d", str(tmp_path / "db")], ["-t", f"rides={tmp_path / 'rides.ndjson'}"]):
        found = CliRunner().invoke(app, ["explain", "--workload", str(file), *given])
        assert found.exit_code == 0, found.output
        assert "and there are 140 events" in found.output


def test_a_statement_without_a_pattern_is_told_apart() -> None:
    found = explain_workload({"q": "SELECT * FROM rides"}, {"rides": rides(1)})
    assert found == "alone       q: it has no pattern"


def test_an_unknown_mode_is_an_error() -> None:
    with pytest.raises(QueryError, match=r"unknown sharing some(.|\n)*available: none, hamlet, static, dynamic"):
        explain_workload(TEXTS, {"rides": rides(2)}, "some")


def test_the_command_reads_the_queries_of_an_app_file(tmp_path: Path) -> None:
    pq.write_table(rides(20), tmp_path / "rides.parquet")
    file = tmp_path / "app.toml"
    file.write_text("".join(f'[queries.{name}]\nsql = """{text}"""\n' for name, text in TEXTS.items()))
    table = f"rides={tmp_path / 'rides.parquet'}"
    found = CliRunner().invoke(app, ["explain", "--workload", str(file), "-t", table, "--sharing", "hamlet"])
    assert found.exit_code == 0, found.output
    assert "mode        hamlet" in found.output


def test_the_command_takes_the_sharing_of_the_app_file(tmp_path: Path) -> None:
    pq.write_table(rides(20), tmp_path / "rides.parquet")
    file, table = tmp_path / "app.toml", f"rides={tmp_path / 'rides.parquet'}"
    of_queries = {"qb": 'sharing = "hamlet"\n'}
    texts = [f'[queries.{n}]\n{of_queries.get(n, "")}sql = """{text}"""\n' for n, text in TEXTS.items()]
    file.write_text('database = { sharing = "static" }\n' + "".join(texts))
    found = CliRunner().invoke(app, ["explain", "--workload", str(file), "-t", table])
    assert found.exit_code == 0, found.output
    groups = [part for part in found.output.split("\n\n") if part.startswith("mode")]
    assert [group.split("\n")[0].split()[1] for group in groups] == ["static", "hamlet"]
    assert "qb" not in groups[0]
    assert "start -> AppOrder: qb\n" in groups[1]
    file.write_text('database = { sharing = "some" }\n' + "".join(texts))
    found = CliRunner().invoke(app, ["explain", "--workload", str(file), "-t", table])
    assert found.exit_code == 1
    assert "unknown sharing some" in str(found.exception)


@pytest.mark.parametrize(("text", "told"), [
    ("[streams.s]\n", "has no queries"),
    ("[queries.q]\nsinks = []\n", "has no queries that can be read"),
    ("queries = 3\n", "has no queries that can be read"),
    ("[queries\n", "has no queries that can be read"),
])  # fmt: skip
def test_a_file_without_queries_is_an_error(tmp_path: Path, text: str, told: str) -> None:
    from hybrid.cli.run import statements
    from query.errors import DataError

    file = tmp_path / "app.toml"
    file.write_text(text)
    with pytest.raises(DataError, match=told):
        statements(file)
    with pytest.raises(DataError, match="cannot read"):
        statements(tmp_path / "none.toml")
