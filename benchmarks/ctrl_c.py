"""Seconds from a Ctrl-C to the prompt: of statements, backtests, pushes and the upkeep of an archive.

    python -m benchmarks.ctrl_c [--rows 5_000_000] [--moments 8] [--only WORD ...] > result.json

Prints one JSON object, and a table to standard error. Each case runs in a process of its own: once to its end, then
once for each moment, a share of that time, at which SIGINT comes. After each the same database or connection has to
answer, and no thread may be left that was not there before. Exits with 1 if one does not, or if a case takes more than
LIMIT_S to end.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import hybrid
from benchmarks import answers
from simulator.scenario import generator

LIMIT_S = 1.0
#: The exit code of a command that Ctrl-C has ended.
INTERRUPTED = 130
#: Rows of cases whose work grows faster than their rows.
SLOW_ROWS = 300_000

MATCH = """FROM {of} MATCH_RECOGNIZE (
    {by} ORDER BY {order} {measures} {mode} PATTERN ({pattern}) {select} DEFINE {define}) AS m"""


def query(
    pattern: str = "A B+ C", define: str = "B AS price < PREV(price), C AS price > PREV(price)",
    by: str = "PARTITION BY symbol", order: str = "ts",
    measures: str = "MEASURES FIRST(ts) AS since, LAST(price) AS last_price", mode: str = "", select: str = "",
    columns: str = "*", of: str = "ticks", after: str = "",
) -> str:  # fmt: skip
    """Returns a statement over ticks."""
    match = MATCH.format(
        of=of, by=by, order=order, measures=measures, mode=mode, pattern=pattern, select=select, define=define
    )
    return f"SELECT {columns} {match} {after}"


def ticks(rows: int, keys: int = 1_000, seed: int = 1) -> pa.Table:
    """Returns ticks of so many keys, one each millisecond, in order of time."""
    rng = generator(seed)
    at = rng.integers(0, keys, rows)
    return pa.table({
        "ts": pa.array(1_700_000_000_000_000 + np.arange(rows) * 1000, pa.timestamp("us")),
        "symbol": pa.array([f"S{i:06}" for i in range(keys)]).take(pa.array(at)),
        "price": np.round(rng.random(rows) * 100, 2),
        "volume": rng.integers(1, 1000, rows),
    })  # fmt: skip


@dataclass(slots=True)
class Scene:
    """The run of a case, and its check. undo: restores what a run has changed, before the next one. works: raises
    unless the connection or the database still answers."""

    run: Callable[[], object]
    works: Callable[[], object] = lambda: hybrid.sql(query(), ticks=ticks(1000))
    undo: Callable[[], object] = lambda: None
    keeps: list[Any] = field(default_factory=list)


def statement(
    text: str, keys: int = 1_000, shuffled: bool = False, most: int | None = None
) -> Callable[..., Scene]:  # fmt: skip
    """Returns a case: a statement over an Arrow table."""

    def scene(rows: int, place: Path) -> Scene:
        table = ticks(min(rows, most or rows), keys)
        if shuffled:
            table = table.take(pa.array(generator(2).permutation(len(table))))
        return Scene(lambda: hybrid.sql(text, ticks=table).arrow())

    return scene


def in_parquet(rows: int, place: Path) -> Scene:
    pq.write_table(ticks(rows), place / "ticks.parquet")
    return Scene(lambda: hybrid.sql(query(of=f"'{place}/ticks.parquet'")).arrow())


def in_csv(rows: int, place: Path) -> Scene:
    duckdb.from_arrow(ticks(rows)).write_csv(str(place / "ticks.csv"))
    return Scene(lambda: hybrid.sql(query(of=f"'{place}/ticks.csv'")).arrow())


def in_pandas(rows: int, place: Path) -> Scene:
    frame = ticks(rows).to_pandas()
    frame["symbol"] = frame["symbol"].astype(object)
    return Scene(lambda: hybrid.sql(query(), ticks=frame).df())


def in_dicts(rows: int, place: Path) -> Scene:
    given = ticks(min(rows, 1_000_000)).to_pylist()
    return Scene(lambda: hybrid.sql(query(), ticks=given).arrow())


def in_duckdb(rows: int, place: Path) -> Scene:
    connection = duckdb.connect(str(place / "ticks.duckdb"))
    given = ticks(rows)  # noqa: F841  (DuckDB finds it)
    connection.execute("CREATE TABLE ticks AS SELECT * FROM given")
    last = "(SELECT symbol, max(ts) AS most FROM ticks GROUP BY symbol)"
    text = query(of=f"(SELECT a.* FROM ticks AS a JOIN {last} USING (symbol))")
    works = lambda: connection.execute("SELECT count(*) FROM ticks").fetchall()  # noqa: E731
    return Scene(lambda: hybrid.sql(text, connection).arrow(), works)


def evidence(rows: int, place: Path) -> Scene:
    table = ticks(rows)
    return Scene(lambda: hybrid.sql(query(), ticks=table).evidence())  # a result keeps its evidence


def show(rows: int, place: Path) -> Scene:
    result = hybrid.sql(query(mode="ALL ROWS PER MATCH"), ticks=ticks(rows))
    return Scene(lambda: (result.df(), result.fetchall()))


def database(rows: int, place: Path, name: str = "db") -> hybrid.Database:
    db = hybrid.connect(place / name, maintenance=False)
    columns = {"ts": "TIMESTAMP", "symbol": "VARCHAR", "price": "DOUBLE", "volume": "BIGINT"}
    db.create_stream("ticks", columns, time="ts", key="symbol")
    for batch in ticks(rows).to_batches(max_chunksize=500_000):
        db.push("ticks", pa.Table.from_batches([batch]))
    db.flush()
    return db


def of_database(run: Callable[[hybrid.Database], object], rows_max: int | None = None) -> Callable[..., Scene]:
    """Returns a case: work on an archived stream of one database."""

    def scene(rows: int, place: Path) -> Scene:
        db = database(min(rows, rows_max or rows), place)
        return Scene(lambda: run(db), lambda: db.sql("SELECT count(*) AS n FROM ticks").arrow(), keeps=[db])

    return scene


def pushing(archived: bool, text: str = "", most: int | None = None) -> Callable[..., Scene]:
    """Returns a case: one push of all rows, at most so many, for a live query."""

    def scene(rows: int, place: Path) -> Scene:
        rows = min(rows, most or rows)
        table, keeps = ticks(rows), []

        def fresh() -> None:
            while keeps:
                keeps.pop().close()
            shutil.rmtree(place / "pushed", ignore_errors=True)
            db = database(0, place, "pushed") if archived else hybrid.connect()
            if not archived:
                columns = {"ts": "TIMESTAMP", "symbol": "VARCHAR", "price": "DOUBLE", "volume": "BIGINT"}
                db.create_stream("ticks", columns, time="ts", key="symbol")
            db.watch(text or query())
            keeps.append(db)

        def works() -> None:
            db = keeps[0]
            rows_there = db.sql("SELECT count(*) AS n FROM ticks").fetchall()[0][0]
            assert rows_there in (0, rows), "neither all nor nothing"
            db.push("ticks", table.slice(rows - 1))

        fresh()
        return Scene(lambda: keeps[0].push("ticks", table), works, fresh, keeps)

    return scene


def of_archive(*command: str) -> Callable[..., Scene]:
    """Returns a case: a command of `hybrid archive`, in this process."""

    def scene(rows: int, place: Path) -> Scene:
        from hybrid.cli import archive

        database(rows, place, "kept").close()

        def fresh() -> None:
            shutil.rmtree(place / "db", ignore_errors=True)
            shutil.copytree(place / "kept", place / "db")

        def run() -> None:
            arguments = [c.replace("DIR", str(place)) for c in command]
            code = archive.app([*arguments, "-d", str(place / "db")], standalone_mode=False)
            if code == INTERRUPTED:
                raise KeyboardInterrupt
            assert not code, code

        def works() -> None:
            with hybrid.connect(place / "db", maintenance=False) as db:
                assert db.sql("SELECT count(*) AS n FROM ticks").fetchall() == [(rows,)]

        fresh()
        return Scene(run, works, fresh)

    return scene


FALLS = query()
MANY_RUNS = query("A+ B", "A AS price > 1, B AS price > 1000", by="", measures="MEASURES count(*) AS n")
JOINED = """SELECT m.symbol, m.since, h.price FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts
    MEASURES FIRST(ts) AS since PATTERN (A B) DEFINE A AS price > 99, B AS price < 50) AS m
    JOIN HISTORY OF ticks FROM m.since - INTERVAL 60 SECOND TO m.since AS h ON h.symbol = m.symbol AND h.price > 99.5"""
CASES: dict[str, Callable[[int, Path], Scene]] = {
    "in order": statement(FALLS),
    "ORDER BY sorts": statement(FALLS, shuffled=True),
    "ORDER BY text and numbers sorts": statement(query(order="symbol, price, ts", by=""), shuffled=True),
    "a million keys": statement(FALLS, keys=1_000_000),
    "ALL ROWS": statement(query(mode="ALL ROWS PER MATCH")),
    "many runs, A+ B": statement(MANY_RUNS, keys=1, most=SLOW_ROWS),
    "many runs, any match": statement(
        query("A B C", "A AS price > 50, B AS price > A.price, C AS price > 100", by="",
              select="WITHIN INTERVAL 1 SECOND SELECTION SKIP TILL ANY MATCH"),
        keys=1, most=SLOW_ROWS,
    ),
    "counted trends": statement(
        query("A B+ C", "B AS price > LAST(price, 1)", measures="MEASURES count(*) AS n", mode="ONE ROW PER WINDOW",
              select="WITHIN INTERVAL 1 SECOND SLIDE INTERVAL 1 SECOND SELECTION SKIP TILL ANY MATCH"),
    ),
    "functions of two rows": statement(
        query("A B", "B AS levenshtein(symbol, A.symbol) < 3 AND price < A.price", by=""), most=1_000_000
    ),
    "rows by LIKE": statement(query("A B", "A AS symbol LIKE '%7%3', B AS price < PREV(price)", by="")),
    "no engine": statement(query("A B+", "B AS list_sum(list(price)) < 100", by=""), most=400),
    "GROUP BY and joins around it": statement(
        query(mode="ALL ROWS PER MATCH",
              columns="m.symbol, count(*) AS n, median(m.price) AS p, string_agg(m.symbol) AS s",
              after="JOIN ticks AS t ON t.symbol = m.symbol AND t.volume = m.volume GROUP BY m.symbol"),
    ),
    "PATTERN of patterns": statement(
        "WITH fall AS (" + query(measures="MEASURES FIRST(ts) AS since, LAST(price) AS price") + ") "
        + query("F G", "F AS PATTERN fall, G AS price > 99", measures="MEASURES F.since AS since",
                select="SELECTION SKIP TILL NEXT MATCH"),
    ),
    "a Parquet file": in_parquet,
    "a CSV file": in_csv,
    "a pandas frame of objects": in_pandas,
    "a list of dicts": in_dicts,
    "a join in DuckDB": in_duckdb,
    "evidence": evidence,
    "df and fetchall": show,
    "Database.sql": of_database(lambda db: db.sql(FALLS).arrow()),
    "Database.sql with history": of_database(lambda db: db.sql(JOINED).arrow()),
    "backtest": of_database(lambda db: db.backtest(FALLS, "2000-01-01").arrow()),
    "backtest with history": of_database(lambda db: db.backtest(JOINED, "2000-01-01").arrow()),
    "watch with the past": of_database(lambda db: db.watch(FALLS, start="2000-01-01")),
    "push in memory": pushing(archived=False),
    "push": pushing(archived=True),
    "push to a slow query": pushing(
        archived=True, most=1_000_000,
        text=query("A B* C", "A AS price > 50, B AS price < A.price, C AS price > 99.9", by="",
                   measures="MEASURES string_agg(B.symbol) AS s",
                   select="WITHIN INTERVAL 1 SECOND SELECTION SKIP TILL NEXT MATCH"),
    ),
    "archive compact": of_archive("compact", "--all"),
    "archive verify": of_archive("verify", "--deep"),
    "archive search": of_archive("search", FALLS, "-o", "DIR/found.csv"),
    "archive rewind": of_archive("rewind", "ticks", "--to", "2023-11-14 22:20:00"),
}  # fmt: skip


@dataclass(slots=True)
class Ended:
    """The end of an interrupted run. seconds, processor_s: from SIGINT on; None if the run had ended before. where: the
    last line of ours that it was in. wrong: what should not be."""

    seconds: float | None = None
    processor_s: float | None = None
    where: str = ""
    wrong: str = ""


def interrupted(scene: Scene, after_s: float) -> Ended:
    """Runs a scene and sends SIGINT after some seconds."""
    sent: list[tuple[float, float]] = []
    ended = Ended()
    over = threading.Event()

    def send() -> None:
        if not over.wait(after_s):
            sent.append((time.perf_counter(), time.process_time()))
            os.kill(os.getpid(), signal.SIGINT)

    before = {t.ident for t in threading.enumerate()}
    sender = threading.Thread(target=send)
    seen = (0.0, 0.0)
    try:
        sender.start()
        scene.run()
        over.set()
        sender.join()
    except KeyboardInterrupt as error:
        seen = time.perf_counter(), time.process_time()
        lines = traceback.extract_tb(error.__traceback__)
        ended.where = next((f"{Path(f.filename).name}:{f.lineno}" for f in reversed(lines) if OURS in f.filename), "")
    except BaseException as error:  # noqa: BLE001  (told)
        seen = time.perf_counter(), time.process_time()
        ended.wrong = f"{type(error).__name__}: {error}"[:300]
    over.set()
    with suppress(KeyboardInterrupt):
        sender.join()
    if sent and seen[0]:
        ended.seconds, ended.processor_s = (round(b - a, 3) for a, b in zip(sent[0], seen))
    time.sleep(0.5)
    left = [t.name for t in threading.enumerate() if t.ident not in before and not t.name.startswith(KEPT)]
    if left:
        ended.wrong += f" threads are left: {', '.join(left)}"
    try:
        scene.works()
    except BaseException as error:  # noqa: BLE001  (told)
        ended.wrong += f" afterwards {type(error).__name__}: {error}"[:300]
    return ended


OURS = str(Path(hybrid.__file__).parents[1])
#: Threads that stay for the next work.
KEPT = ("hybrid-read", "ThreadPool", "hybrid-compile", "pydev")


def one(name: str, rows: int, moments: int, seed: int) -> dict[str, Any]:
    """Returns the seconds of a case."""
    with tempfile.TemporaryDirectory(prefix="ctrl-c-") as place:
        scene = CASES[name](rows, Path(place))
        scene.run()
        scene.undo()
        began = time.perf_counter()
        scene.run()
        whole = time.perf_counter() - began
        found = []
        shares = (np.arange(moments) + generator(seed).random(moments)) / moments
        for share in shares.tolist():
            scene.undo()
            found.append({"at": round(share, 3), **asdict(interrupted(scene, share * whole))})
        scene.undo()
        for kept in scene.keeps:
            kept.close()
    slowest = max(found, key=lambda f: f["seconds"] or 0.0)
    wrong = [f"at {f['at']}: {f['wrong']}" for f in found if f["wrong"]]
    return {"whole_s": round(whole, 3), "slowest": slowest, "moments": found, "wrong": wrong}


HEAD = """| case | to its end, s | after Ctrl-C, s at most | of processor | in | wrong |
|---|---:|---:|---:|---|---|"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ctrl_c", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--moments", type=int, default=8)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--here", action="store_true", help="one case, in this process")
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(one(options.only[0], options.rows, options.moments, options.seed)))
        return 0
    cases: dict[str, Any] = {}
    print(HEAD, file=sys.stderr)
    for name in options.only:
        command = [sys.executable, "-m", "benchmarks.ctrl_c", "--here", "--only", name, "--rows", str(options.rows),
                   "--moments", str(options.moments), "--seed", str(options.seed)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            cases[name] = json.loads(done.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            cases[name] = {"whole_s": None, "slowest": {}, "moments": [], "wrong": [done.stderr.strip()[-300:]]}
        case = cases[name]
        told = "; ".join(case["wrong"]).replace("\n", " ")
        most = [str(case["slowest"].get(what)) for what in ("seconds", "processor_s", "where")]
        print(f"| {name} | {case['whole_s']} | {' | '.join(most)} | {told}", file=sys.stderr, flush=True)
    slow = [n for n, c in cases.items() if c["wrong"] or (c["slowest"].get("seconds") or 0.0) > LIMIT_S]
    result = {"benchmark": "ctrl_c", "machine": answers.machine(), "versions": answers.versions(), "rows": options.rows,
              "seed": options.seed, "cases": cases, "slow": slow}  # fmt: skip
    print(json.dumps(result, indent=2))
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
