"""What the log says of payloads that are refused."""

from __future__ import annotations

from pathlib import Path

from hybrid.refused import tell_refused
from hybrid.repeated import EVERY_S, KINDS_MAX, Repeated
from live.sources.base import Bad
from tests.hybrid.services import Bench, piece


def test_each_kind_is_said_at_most_once_a_minute_with_its_count() -> None:
    """Before: nothing was said of what is refused; one had to look into bad.ndjson."""
    said: list[str] = []
    refused = Repeated(said.append)
    for i in range(1000):
        tell_refused(refused, "ticks", f"t/0, {i}", f"price: '{i}x' is no BIGINT", 0.05 * i)
        if i % 2:
            tell_refused(refused, "ticks", f"t/1, {i}", "broken JSON: trailing comma (byte 7)", 0.05 * i)
    assert said == [
        "stream ticks: a payload is refused: price: '0x' is no BIGINT (t/0, 0)",
        "stream ticks: a payload is refused: broken JSON: trailing comma (byte 7) (t/1, 1)",
    ]
    refused.tell(EVERY_S - 1)
    assert len(said) == 2
    refused.tell(EVERY_S + 1)
    assert said[2:] == [
        "stream ticks: 999 more payloads are refused, the last one: price: '999x' is no BIGINT (t/0, 999)",
        "stream ticks: 499 more payloads are refused, the last one: broken JSON: trailing comma (byte 7) (t/1, 999)",
    ]
    tell_refused(refused, "ticks", "t/0, 1000", "price: 'a' is no BIGINT", EVERY_S + 2)
    refused.tell(EVERY_S + 2, all=True)
    assert said[4:] == ["stream ticks: one more payload is refused, the last one: price: 'a' is no BIGINT (t/0, 1000)"]
    refused.tell(3 * EVERY_S + 3)
    tell_refused(refused, "ticks", "t/0, 1001", "price: 'b' is no BIGINT", 3 * EVERY_S + 3)
    assert said[5:] == ["stream ticks: a payload is refused: price: 'b' is no BIGINT (t/0, 1001)"]


def test_a_thousand_kinds_are_few_lines() -> None:
    said: list[str] = []
    refused = Repeated(said.append)
    for i in range(1000):
        tell_refused(refused, "ticks", "t", "no member is declared: there is " + "x" * (i + 1), 0.0)
    tell_refused(refused, "other", "t", "price is missing", 0.0)
    assert len(said) == KINDS_MAX + 2
    refused.tell(EVERY_S)
    assert len(said) == KINDS_MAX + 3
    assert said[-1].startswith("stream ticks: 949 more payloads are refused")
    assert max(map(len, said)) < 300


def test_the_service_says_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    source = bench.start()
    source.given += [*(Bad("feed/0", i, b"{", f"broken JSON (byte {i})") for i in range(5)), piece(1, first=5)]
    bench.step(6)
    assert bench.status()["streams"]["ticks"]["bad"] == 5
    said = [line for line in bench.said if "refused" in line]
    assert said == ["stream ticks: a payload is refused: broken JSON (byte 0) (feed/0, 0)"]
    bench.pass_s(61)
    said = [line for line in bench.said if "refused" in line][1:]
    assert said == ["stream ticks: 4 more payloads are refused, the last one: broken JSON (byte 4) (feed/0, 4)"]
    source.given += [Bad("feed/0", i, b"{", f"broken JSON (byte {i})") for i in (6, 7)]
    bench.step(2)
    bench.stop()
    assert "2 more payloads are refused" in [line for line in bench.said if "refused" in line][-1]
