"""What the log says of payloads that are refused."""

from __future__ import annotations

import errno
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from hybrid.service import dead_letters
from hybrid.service.refused import tell_refused
from hybrid.service.repeated import EVERY_S, KINDS_MAX, Repeated
from live.sinks.base import Refused
from live.sources.base import Bad
from tests.hybrid.services import APP, Bench, FakeSink, piece


def test_each_kind_is_said_at_most_once_a_minute_with_its_count() -> None:
    """Before: nothing was said of what is refused; one had to look into bad.ndjson."""
    said: list[str] = []
    refused = Repeated(said.append)
    for i in range(1000):
        tell_refused(refused, "ticks", f"t/0, {i}", f"price: '{i}x' is no BIGINT", 0.05 * i)
        if i % 2:
            tell_refused(refused, "ticks", f"t/1, {i}", "broken JSON: trailing comma (byte 7)", 0.05 * i)
    assert said == [
        "stream ticks: payload rejected: price: '0x' is no BIGINT (t/0, 0)",
        "stream ticks: payload rejected: broken JSON: trailing comma (byte 7) (t/1, 1)",
    ]
    refused.tell(EVERY_S - 1)
    assert len(said) == 2
    refused.tell(EVERY_S + 1)
    assert said[2:] == [
        "stream ticks: 999 more payloads rejected, the last one: price: '999x' is no BIGINT (t/0, 999)",
        "stream ticks: 499 more payloads rejected, the last one: broken JSON: trailing comma (byte 7) (t/1, 999)",
    ]
    tell_refused(refused, "ticks", "t/0, 1000", "price: 'a' is no BIGINT", EVERY_S + 2)
    refused.tell(EVERY_S + 2, all=True)
    assert said[4:] == ["stream ticks: 1 more payload rejected, the last one: price: 'a' is no BIGINT (t/0, 1000)"]
    refused.tell(3 * EVERY_S + 3)
    tell_refused(refused, "ticks", "t/0, 1001", "price: 'b' is no BIGINT", 3 * EVERY_S + 3)
    assert said[5:] == ["stream ticks: payload rejected: price: 'b' is no BIGINT (t/0, 1001)"]


def test_a_thousand_kinds_are_few_lines() -> None:
    # Before: nothing was said of what is refused.
    said: list[str] = []
    refused = Repeated(said.append)
    for i in range(1000):
        tell_refused(refused, "ticks", "t", "no member is declared: there is " + "x" * (i + 1), 0.0)
    tell_refused(refused, "other", "t", "price is missing", 0.0)
    assert len(said) == KINDS_MAX + 2
    refused.tell(EVERY_S)
    assert len(said) == KINDS_MAX + 3
    assert said[-1].startswith("stream ticks: 949 more payloads rejected")
    assert max(map(len, said)) < 300


WEBHOOK = 'type = "webhook"\nurl = "http://127.0.0.1:9"\n'


@dataclass
class Particular(FakeSink):
    """Takes one row at a time, and none with a certain price."""

    price: int = 8
    left_out: set[str] = field(default_factory=set)

    def write(self, rows: pa.Table) -> None:
        for row in rows.to_pylist():
            if row["match_id"] in self.left_out or row in self.rows:
                continue
            self.tries.append(self.now())
            if row["high"] == self.price:
                raise Refused("the hook", "422 no", {row["match_id"]: json.dumps(row)})
            self.rows.append(row)

    def leave_out(self, id: str) -> None:
        self.left_out.add(id)


def with_refusals(directory: Path, refusals: str) -> tuple[Bench, Particular]:
    bench = Bench(directory, APP.replace('type = "stdout"', WEBHOOK + refusals))
    sink = bench.sinks["alerts"] = Particular(now=lambda: bench.seconds)
    bench.start().given += [piece(5, 3, 8, 7, 6, 2)]
    for _ in range(20):
        bench.pass_s(1.0)
    return bench, sink


@pytest.mark.slow
def test_a_row_that_a_sink_refuses_for_good_is_named_and_waits(tmp_path: Path) -> None:
    # Before: "did not take a row: 422", without its id or what to do.
    bench, sink = with_refusals(tmp_path, "")
    assert sink.pairs() == [(5, 3)]
    trouble = bench.status()["trouble"]["sink alerts"]
    assert re.match(r"the hook rejects row [0-9a-f]{32}: 422 no\nhint: .*`refusals` of the sink", trouble)
    assert bench.status()["sinks"]["alerts"]["unread"] == 3
    bench.stop()


@pytest.mark.slow
@pytest.mark.parametrize("refusals", [1, 3])
def test_a_row_that_a_sink_refuses_is_set_aside_and_the_others_go_on(tmp_path: Path, refusals: int) -> None:
    bench, sink = with_refusals(tmp_path, f"refusals = {refusals}")
    assert sink.pairs() == [(5, 3), (6, 2)]
    assert len(sink.tries) == 2 + refusals
    bench.pass_s(10.0)
    status = bench.status()
    assert "sink alerts" not in status["trouble"]
    assert [status["sinks"]["alerts"][key] for key in ("rows", "refused", "unread")] == [2, 1, 0]
    (line,) = (tmp_path / "market/_service/refused-alerts.ndjson").read_text().splitlines()
    kept = json.loads(line)
    assert (kept["sink"], kept["row"]["high"], kept["row"]["match_id"]) == ("alerts", 8, kept["id"])
    assert kept["reason"] == f"the hook rejects row {kept['id']}: 422 no"
    said = [text for text in bench.said if "skipped" in text]
    assert said == [f"sink alerts: row skipped and kept in refused-alerts.ndjson: {kept['reason']}"]
    bench.stop()


@pytest.mark.slow
def test_a_refused_row_that_cannot_be_kept_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(dead_letters, "append", full)
        bench, sink = with_refusals(tmp_path, "refusals = 1")
        said = "a rejected row cannot be stored: [Errno 28] No space left"
        assert bench.status()["trouble"]["sink alerts"].startswith(said)
        assert sink.pairs() == [(5, 3)]
    for _ in range(70):
        bench.pass_s(1.0)
    assert sink.pairs() == [(5, 3), (6, 2)]
    assert len((tmp_path / "market/_service/refused-alerts.ndjson").read_text().splitlines()) == 1
    bench.stop()


@pytest.mark.slow
def test_the_service_says_it(tmp_path: Path) -> None:
    # Before: run as it is: it said nothing.
    bench = Bench(tmp_path)
    source = bench.start()
    source.given += [*(Bad("feed/0", i, b"{", f"broken JSON (byte {i})") for i in range(5)), piece(1, first=5)]
    bench.step(6)
    assert bench.status()["streams"]["ticks"]["bad"] == 5
    said = [line for line in bench.said if "rejected" in line]
    assert said == ["stream ticks: payload rejected: broken JSON (byte 0) (feed/0, 0)"]
    bench.pass_s(61)
    said = [line for line in bench.said if "rejected" in line][1:]
    assert said == ["stream ticks: 4 more payloads rejected, the last one: broken JSON (byte 4) (feed/0, 4)"]
    source.given += [Bad("feed/0", i, b"{", f"broken JSON (byte {i})") for i in (6, 7)]
    bench.step(2)
    bench.stop()
    assert "2 more payloads rejected" in [line for line in bench.said if "rejected" in line][-1]
