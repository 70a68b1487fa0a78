"""What sources and clients say of themselves in a service: payloads that are refused, options, lags, lines of a log.

"Before" tells of the code before sources had marks; "run as it is": with placeholders for the names that it did not
have.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from hybrid.service.app_file import AppError, load
from hybrid.service.client_log import ClientLog
from hybrid.service.connectors import make_source
from hybrid.service.repeated import Repeated
from live.sources.base import Bad, PartitionProgress
from live.sources.marks import Marks, Passed
from query.schema import Field, Schema
from tests.hybrid.services import APP, Bench, FakeSource, piece
from tests.live.sources.inside import kept_by

KAFKA = """
[streams.ticks]
columns = { ts = "TIMESTAMP", n = "BIGINT" }
time = "ts"

[sources.feed]
stream = "ticks"
type = "kafka"
brokers = "127.0.0.1:1"
topic = "t"
"""


def refused(offset: int) -> Bad:
    return Bad("feed/0", offset, b"{", "it is no JSON")


def behind(end: int) -> Any:
    """A piece of refused payloads only, up to an offset."""
    return piece(first=end, offset=end)


def dead_letters(directory: Path) -> list[int]:
    lines = (directory / "market" / "ticks" / "bad.ndjson").read_text().splitlines()
    return [json.loads(line)["offset"] for line in lines]


@pytest.mark.slow
def test_refused_payloads_behind_the_last_event_are_passed(tmp_path: Path) -> None:
    # Before: run as it is: {'feed/0': 2} was acknowledged; and, where the source gives 2 to 4 again, each of two starts
    # was opened at 2, and dead letters 2, 3, 4 were there three times.
    bench = Bench(tmp_path)
    source = bench.start()
    source.given = [piece(5, 4, first=0), *map(refused, (2, 3, 4)), behind(5)]
    bench.step(5)
    bench.pass_s(10.0)
    bench.step()
    assert source.acknowledged[-1] == {"feed/0": 5}
    assert bench.stop() == 0
    for _ in range(2):
        bench.again()
        source = bench.start()
        bench.step(2)
        assert source.opened == {"feed/0": 5}
        bench.stop()
    assert dead_letters(tmp_path) == [2, 3, 4]
    bench.again()
    source = bench.start()
    source.given = [piece(3, first=5, offset=5)]
    bench.step(2)
    bench.stop()
    bench.again()
    source = bench.start()
    bench.step()
    assert source.opened == {"feed/0": 6}
    bench.stop()


@pytest.mark.slow
def test_a_partition_of_refused_payloads_only_is_passed(tmp_path: Path) -> None:
    # Before: run as it is: opened at {}, its beginning.
    bench = Bench(tmp_path)
    source = bench.start()
    source.given = [refused(0), behind(1)]
    bench.step(3)
    bench.stop()
    bench.again()
    source = bench.start()
    bench.step()
    assert source.opened == {"feed/0": 1}
    bench.stop()


@pytest.mark.slow
def test_payloads_that_were_quarantined_before_a_crash_are_not_so_twice(tmp_path: Path) -> None:
    # Before: run as it is: dead letters 0, 1, 0, 1, 0, 1.
    bench = Bench(tmp_path)
    for _ in range(3):
        source = bench.start()
        source.given = [refused(0), refused(1), behind(2)]
        bench.step(3)
        crashed = bench.service
        bench.again()
        crashed.db.close()
        crashed.outlets.unlock()
    assert dead_letters(tmp_path) == [0, 1]


@pytest.mark.slow
def test_what_was_passed_says_nothing_of_an_archive_that_ends_elsewhere(tmp_path: Path) -> None:
    """A crash before a checkpoint, or an archive put back from a copy, takes events away: they are read again."""
    # Before: nothing was kept of what was passed; it guards that this takes no event away.
    bench = Bench(tmp_path)
    source = bench.start()
    source.given = [piece(5, 4, first=0)]
    bench.step(2)
    bench.stop()
    Marks(tmp_path / "market" / "_service" / "topics-ticks.json").keep(passed={"feed/0": Passed(7, 9)})
    bench.again()
    source = bench.start()
    bench.step()
    assert source.opened == {"feed/0": 2}
    bench.stop()


def test_marks_that_are_damaged_stop_their_source_and_no_other(tmp_path: Path) -> None:
    # Before: there was no such file: run as it is, no trouble.
    more = APP.replace("[queries", '[streams.others]\ncolumns = { ts = "TIMESTAMP" }\ntime = "ts"\n[sources.more]\n'
                       'stream = "others"\ntype = "file"\npath = "more.ndjson"\n\n[queries')  # fmt: skip
    bench = Bench(tmp_path, more)
    state = tmp_path / "market" / "_service"
    state.mkdir(parents=True)
    (state / "topics-ticks.json").write_bytes(b"")
    bench.start()
    bench.sources["more"].given = []
    bench.step(2)
    told = bench.status()["trouble"]["source feed"]
    assert "topics-ticks.json, the record of the topics read, is damaged" in told
    assert bench.sources["more"].opened == {}
    (state / "topics-ticks.json").unlink()
    bench.pass_s(10.0)
    bench.step()
    assert bench.sources["feed"].opened == {}
    bench.stop()


def test_a_database_in_memory_forgets_what_is_known_of_topics(tmp_path: Path) -> None:
    # Before: there was no such file.
    bench = Bench(tmp_path, APP.replace('path = "market"', 'state = "market"').replace('checkpoint = "10s"', ""))
    Marks(tmp_path / "market" / "topics-ticks.json").keep(passed={"feed/0": Passed(None, 9)})
    source = bench.start()
    bench.step()
    assert source.opened == {}
    bench.stop()


class Placed(FakeSource):
    def places(self) -> dict[str, PartitionProgress]:
        return {"feed/0": PartitionProgress(7, 10, 2), "feed/1": PartitionProgress(None, None)}


def test_lags_are_in_the_status_and_in_what_it_shows(tmp_path: Path) -> None:
    # Before: run as it is: the status has no `partitions` (KeyError), and no lag.
    from rich.console import Console

    from hybrid.service.status import rendered

    bench = Bench(tmp_path)
    bench.sources["feed"] = Placed()
    bench.start()
    bench.step()
    told = bench.status()
    assert told["sources"]["feed"]["partitions"] == {
        "feed/0": {"position": 7, "end": 10, "lag": 3, "lost": 2},
        "feed/1": {"position": None, "end": None, "lag": None, "lost": 0},
    }
    assert (told["sources"]["feed"]["lag"], told["sources"]["feed"]["lost"]) == (3, 2)
    console = Console(width=200)
    with console.capture() as shown:
        console.print(rendered(told, told["written"]))
    line = next(line for line in shown.get().splitlines() if "feed: feed/0" in line)
    assert line.split() == ["feed:", "feed/0", "7", "10", "3"]
    bench.stop()


@pytest.mark.slow
def test_lags_are_in_the_metrics() -> None:
    # Before: run as it is: no such line.
    pytest.importorskip("prometheus_client")
    from urllib.request import urlopen

    from hybrid.service.metrics import serve

    place = {"position": 7, "end": 10, "lag": 3, "lost": 0}
    source = {"queued": 0, "lag": 3, "lost": 0, "partitions": {"t/0": place, "t/1": dict.fromkeys(place)}}
    endpoint = serve("127.0.0.1", 0, lambda: {"sources": {"feed": source}})
    with urlopen(f"http://127.0.0.1:{endpoint.port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    endpoint.close()
    assert 'hybrid_source_partition_lag{partition="t/0",source="feed"} 3.0' in lines
    assert 'hybrid_source_lag{source="feed"} 3.0' in lines
    assert not any("t/1" in line for line in lines)


@pytest.mark.parametrize(
    "options",
    ['"no.such" = "1"', '"sasl.mechanism" = "NOPE"', '"enable.auto.commit" = "true"',
     '"security.protocol" = "ssl", "ssl.ca.location" = "/no/such/file"'],
)  # fmt: skip
def test_options_that_a_client_refuses_are_faults_of_the_file(tmp_path: Path, options: str) -> None:
    # Before: run as it is: each of the four is taken, nothing raised.
    pytest.importorskip("confluent_kafka")
    file = tmp_path / "app.toml"
    file.write_text(KAFKA)
    load(file)
    file.write_text(f"{KAFKA}options = {{ {options} }}\n")
    with pytest.raises(AppError, match=r"app.toml:6") as raised:
        load(file)
    assert "the Kafka " in str(raised.value)


def test_a_reload_with_an_option_that_a_client_refuses_closes_nothing(tmp_path: Path) -> None:
    # Before: run as it is: the old source is closed.
    pytest.importorskip("confluent_kafka")
    text = KAFKA.replace("[sources.feed]", '[database]\npath = "market"\n[sources.feed]')
    bench = Bench(tmp_path, text, sinks=())
    source = bench.start()
    bench.rewrite(text + 'options = { "sasl.mechanism" = "NOPE", "security.protocol" = "sasl_plaintext" }\n')
    bench.step()
    assert not source.closed
    assert not bench.service.done
    assert "not reloaded: " in bench.status()["trouble"]["app"]
    assert bench.stop() == 0


def test_a_source_says_where_it_keeps_what_it_knows(tmp_path: Path) -> None:
    # Before: run as it is: "sources.feed has no key recreated".
    pytest.importorskip("confluent_kafka")
    file = tmp_path / "app.toml"
    file.write_text(KAFKA + 'recreated = "anew"\n[database]\npath = "market"\n')
    app = load(file)
    source = make_source(app.sources["feed"], Schema("ticks", (Field("ts", "TIMESTAMP"),), "ts"), app)
    assert kept_by(source) == (tmp_path / "market" / "_service" / "topics-ticks.json", "anew")


def test_lines_of_clients_are_said_once_a_minute() -> None:
    # Before: nothing gathered these lines (ClientLog is new). librdkafka's went to standard error, each of them.
    # Later: the four that were like the first one were said when there was another, and else never.
    said: list[str] = []
    now = [0.0]
    lines = Repeated(said.append)
    log = ClientLog(lines, lambda: now[0])
    log.start()
    try:
        logger = logging.getLogger("live.sources.kafka")
        for port in range(5):
            logger.error("%s", f"127.0.0.1:{port}: Connection\n refused (after {port}ms)")
        logger.warning("another")
        logger.info("not this")
        lines.tell(59.0)
        assert len(said) == 2
        lines.tell(61.0)
        now[0] = 62.0
        logger.error("127.0.0.1:9: Connection refused (after 9ms)")
        now[0] = 125.0
        logger.error("127.0.0.1:7: Connection refused (after 9ms)")
        logger.error("127.0.0.1:8: Connection refused (after 9ms)")
        lines.tell(126.0, all=True)
    finally:
        log.stop()
    logger.error("nobody says this")
    assert said == [
        "sources.kafka: error: 127.0.0.1:0: Connection refused (after 0ms)",
        "sources.kafka: warning: another",
        "sources.kafka: error: 127.0.0.1:4: Connection refused (after 4ms) (4 more like it, the last one)",
        "sources.kafka: error: 127.0.0.1:7: Connection refused (after 9ms) (2 more like it, the last one)",
        "sources.kafka: error: 127.0.0.1:8: Connection refused (after 9ms) (once more)",
    ]


@pytest.mark.slow
def test_the_service_says_what_clients_repeat_when_the_minute_is_over(tmp_path: Path) -> None:
    # Before: three lines of one kind were one line for ever; nobody said that two more had come.
    bench = Bench(tmp_path)
    bench.start()
    bench.service.client_log.start()
    try:
        for port in range(3):
            logging.getLogger("live.sources.kafka").error("127.0.0.1:%d: refused", port)
        bench.pass_s(61.0)
    finally:
        bench.service.client_log.stop()
    said = [line for line in bench.said if line.startswith("sources.kafka")]
    assert said == [
        "sources.kafka: error: 127.0.0.1:0: refused",
        "sources.kafka: error: 127.0.0.1:2: refused (2 more like it, the last one)",
    ]
    bench.stop()
