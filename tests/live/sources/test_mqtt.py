"""MQTT as a source, against Mosquitto: nothing is lost by restarts of the broker or of ours."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from live.sources.base import Bad, Piece
from live.sources.decode import Decoding
from live.sources.mqtt import MqttSettings, MqttSource
from query.errors import DataError
from query.schema import Field, Schema
from tests.live.proxy import proxy
from tests.live.servers import Broker, free_port, mqtt_broker, publish
from tests.waiting import GUARD_S, until

NUMBERS = Schema("numbers", (Field("ts", "TIMESTAMP"), Field("n", "BIGINT")), "ts")

pytestmark = pytest.mark.slow


def payload(n: int) -> bytes:
    return json.dumps({"ts": 1_704_196_800_000 + n, "n": n}).encode()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with mqtt_broker(tmp_path_factory.mktemp("mqtt")) as broker:
        yield broker


class Taken:
    """Rows as they came, those of them that are kept, bad payloads."""

    def __init__(self, name: str, count: int = 0) -> None:
        self.name, self.count = name, count
        self.rows: list[int] = []
        self.bad: list[Bad] = []

    def take(self, source: MqttSource, seconds: float = 0.5) -> int:
        pieces = 0
        for one in source.poll(seconds):
            if isinstance(one, Bad):
                assert (one.source, one.offset) == (self.name, None)
                self.bad.append(one)
                continue
            assert isinstance(one, Piece)
            assert (one.source, one.offsets, one.next) == (self.name, None, None)
            self.rows += one.rows.column(1).to_pylist()
            pieces += 1
        return pieces

    def keep(self, source: MqttSource) -> None:
        source.kept({self.name: self.count + len(self.rows)})

    def until(self, source: MqttSource, count: int, keep: bool = True) -> None:
        """Takes until there are so many different rows."""

        def step() -> None:
            self.take(source)
            if keep:
                self.keep(source)

        until(lambda: len(set(self.rows)) >= count, step, lambda: (len(set(self.rows)), source.trouble()))


class Heard(MqttSource):
    """A source whose subscription can be waited for."""

    def __init__(self, schema: Schema, settings: MqttSettings) -> None:
        super().__init__(schema, settings)
        self.subscribed = threading.Event()

    def _on_subscribe(self, *told: Any) -> None:
        super()._on_subscribe(*told)
        self.subscribed.set()


@pytest.fixture
def sources() -> Iterator[Any]:
    """Makes and opens sources, and closes them."""
    made = []

    def make(port: int, name: str, positions: Mapping[str, int] | None = None, **settings: Any) -> Heard:
        given = {"host": "127.0.0.1", "port": port, "topics": (f"{name}/+",), "client_id": name, **settings}
        source = Heard(NUMBERS, MqttSettings(**{"decoding": Decoding(times="ms"), **given}))
        made.append(source)
        source.open(positions or {})
        return source

    yield make
    for source in made:
        source.close()


def connected(source: Heard) -> Heard:
    until(lambda: source.trouble() is None, seen=source.trouble)
    assert source.subscribed.wait(GUARD_S)  # the answer to that comes behind the connection
    return source


def test_what_is_not_kept_comes_again(broker, sources):
    source, taken = connected(sources(broker.port, "again")), Taken("again")
    publish(broker, "again/x", [payload(i) for i in range(10)])
    taken.until(source, 10, keep=False)
    source.kept({"other": 100})
    source.kept({"again": 4})
    source.close()
    publish(broker, "again/y", [payload(10)])
    source, rest = sources(broker.port, "again", {"again": 4}), Taken("again", 4)
    rest.until(source, 7)
    assert rest.rows == [4, 5, 6, 7, 8, 9, 10]
    assert source.duplicates == 6
    assert source.trouble() is None
    source.close()
    source, rest = connected(sources(broker.port, "again", {"again": 11})), Taken("again", 11)
    assert not rest.take(source)
    assert not source.ended


def test_bad_payloads_are_acknowledged_with_what_stands_before_them(broker, sources):
    source, taken = connected(sources(broker.port, "bad")), Taken("bad")
    publish(broker, "bad/x", [b"{", payload(1), b"}", payload(2), b""])
    take_bad(taken, source, 3)
    assert taken.rows == [1, 2]
    assert [one.raw for one in taken.bad] == [b"{", b"}", b""]
    source.kept({"bad": 1})
    source.close()
    source, rest = sources(broker.port, "bad", {"bad": 1}), Taken("bad", 1)
    take_bad(rest, source, 1)
    assert rest.rows == [2]
    assert [one.raw for one in rest.bad] == [b""]


def take_bad(taken: Taken, source: MqttSource, count: int) -> None:
    until(lambda: len(taken.bad) >= count, lambda: taken.take(source))


def test_payloads_of_many_rows(broker, sources):
    settings = {"decoding": Decoding(times="ms", batched=True)}
    source, taken = connected(sources(broker.port, "many", **settings)), Taken("many")
    publish(broker, "many/x", [b"\n".join([payload(0), payload(1)]), b"\n".join([payload(2), b"{", payload(3)])])
    taken.until(source, 4, keep=False)
    assert taken.rows == [0, 1, 2, 3]
    source.kept({"many": 3})
    source.close()
    source, rest = sources(broker.port, "many", {"many": 3}, **settings), Taken("many", 3)
    rest.until(source, 2)
    assert rest.rows == [2, 3]


def test_the_broker_sends_no_more_than_may_be_unacknowledged(broker, sources):
    source, taken = connected(sources(broker.port, "few", unacknowledged=5)), Taken("few")
    publish(broker, "few/x", [payload(i) for i in range(12)])
    taken.until(source, 5, keep=False)
    assert not taken.take(source)
    assert taken.rows == [0, 1, 2, 3, 4]
    taken.until(source, 12)
    assert taken.rows == list(range(12))


def test_a_poll_that_may_wait_goes_on_while_messages_come(sources, monkeypatch):
    """Each rest lets the client's thread in; the first after which nothing is there is the last."""
    source = sources(free_port(), "gather")
    come = iter([1, 2, 0, 1])

    def rest(seconds: float) -> None:
        assert 0 < seconds < 0.01
        for i in range(next(come)):
            source._on_message(None, None, SimpleNamespace(mid=i + 1, payload=payload(i), dup=False))

    source._on_message(None, None, SimpleNamespace(mid=9, payload=payload(9), dup=False))
    monkeypatch.setattr("live.sources.mqtt.time", SimpleNamespace(sleep=rest, monotonic=lambda: 0.0))
    taken = Taken("gather")
    assert taken.take(source, 1) == 1
    assert taken.rows == [9, 0, 0, 1]
    assert taken.take(source, 0) == 0  # nothing is there, and it may not wait
    assert list(come) == [1]


def test_a_broker_that_is_away_or_refuses(tmp_path, sources):
    source = sources(free_port(), "away")
    trouble_with(source, "is unreachable: Connection refused")
    with mqtt_broker(tmp_path / "1", allow_anonymous="false") as strict:
        source = sources(strict.port, "refused")
        trouble_with(source, "refuses the connection: Not authorized (see user and password)")


def test_a_subscription_that_is_refused(sources):
    """As the client hears it: Mosquitto with a list of rights grants each subscription, and sends nothing."""
    source = sources(free_port(), "denied")
    source._on_subscribe(None, None, 1, [ReasonCode(PacketTypes.SUBACK, "Not authorized")], None)
    with pytest.raises(DataError, match=r"refuses the subscription to denied/\+: Not authorized"):
        source.poll(0)


def test_a_session_that_the_broker_has_forgotten(broker, sources):
    source = sources(broker.port, "unknown", {"unknown": 5})
    trouble_with(source, "has no session unknown: messages published meanwhile are lost")


def test_settings_that_do_not_hang_together(sources, monkeypatch):
    with pytest.raises(DataError, match="needs a client_id"):
        sources(1883, "")
    with pytest.raises(DataError, match="invalid MQTT topic filter"):
        sources(1883, "x", topics=("a#",))
    monkeypatch.setitem(sys.modules, "paho.mqtt", None)
    monkeypatch.setitem(sys.modules, "paho", None)
    with pytest.raises(DataError, match=r"which is not installed\nhint: pip install .*mqtt"):
        sources(1883, "x")


@pytest.mark.nightly
def test_nothing_is_lost_though_the_broker_and_we_are_restarted_half_way(tmp_path, sources, record_property):
    count, name, unkept = 40_000, "half", 5_000
    with mqtt_broker(tmp_path) as broker:
        source, taken = connected(sources(broker.port, name, unacknowledged=unkept)), Taken(name)
        publish(broker, f"{name}/x", [payload(i) for i in range(count // 2)])
        taken.until(source, count // 4)
        kept = len(taken.rows)
        taken.take(source, 10)  # handed out, and not kept when the broker goes
        assert count // 4 <= kept < len(taken.rows) < count // 2
        broker.stop()
        until(source.trouble, lambda: taken.take(source, 0.1))
        assert "is unreachable" in str(source.trouble())
        while taken.take(source, 0):
            pass
        of_broker = len(taken.rows) - kept
        taken.keep(source)
        broker.start()
        publish(broker, f"{name}/y", [payload(i) for i in range(count // 2, count)])
        taken.until(source, count * 3 // 4)
        assert source.trouble() is None
        assert source.duplicates > 0
        # We are stopped too: what was kept is what counts, and the rest comes again.
        kept = len(taken.rows)
        taken.keep(source)
        until(lambda: len(taken.rows) >= kept + 1000, lambda: taken.take(source))
        source.close()
        of_ours = len(taken.rows) - kept
        del taken.rows[kept:]
        source, rest = connected(sources(broker.port, name, {name: kept})), Taken(name, kept)
        rest.until(source, count - len(set(taken.rows)))
        while rest.take(source):
            rest.keep(source)
        assert set(taken.rows + rest.rows) == set(range(count))
        # What had not been kept when the broker was stopped came twice, and what had been and was not yet said.
        twice = len(taken.rows) + len(rest.rows) - count
        assert 0 < twice <= of_broker + 2 * unkept
        record_property("examples", f"{twice:,} of {count:,} events came twice, {of_ours:,} again after our restart")


def single(port: int, topic: str, qos: int, retain: bool, *numbers: int) -> None:
    from paho.mqtt import publish as once

    messages = [{"topic": topic, "payload": payload(n), "qos": qos, "retain": retain} for n in numbers]
    once.multiple(messages, hostname="127.0.0.1", port=port)


def test_messages_of_qos_0_are_taken_and_not_acknowledged(broker, sources):
    # Before: kept, they were acknowledged as number 0, for which the broker threw us out: "is away: Unspecified error",
    # and what was published until we were back was lost.
    source, taken = connected(sources(broker.port, "qos0")), Taken("qos0")
    for n in range(3):
        single(broker.port, "qos0/x", 0, False, n)
        taken.until(source, n + 1)
        for _ in range(10):
            assert source.trouble() is None
            source.poll(0.05)
    single(broker.port, "qos0/x", 1, False, 3)
    taken.until(source, 4)
    assert taken.rows == [0, 1, 2, 3]


def test_retained_messages_come_with_a_new_session_only(broker, sources):
    # Before: run as it is: passes. It guards what held.
    single(broker.port, "kept/x", 1, True, 7)
    source, taken = connected(sources(broker.port, "kept")), Taken("kept")
    taken.until(source, 1)
    source.close()
    source = connected(sources(broker.port, "kept", {"kept": 1}))
    assert not taken.take(source, 0.5)
    assert taken.rows == [7]


def test_two_clients_with_one_id(broker, sources):
    # Before: each said now and then "is away: Unspecified error", and None when it was back.
    first = connected(sources(broker.port, "twin"))
    second = sources(broker.port, "twin")
    until(lambda: "another client" in str(first.trouble()), lambda: (first.poll(0.05), second.poll(0.05)))
    said = "ended at least 3 times in 60 s; if another client connects as twin, each disconnects the other"
    assert said in str(first.trouble())
    first._connected = True
    first._on_disconnect(None, None, None, ReasonCode(PacketTypes.DISCONNECT, "Session taken over"), None)
    assert "; another client connects as twin, each disconnects the other" in str(first.trouble())
    second.close()
    assert "another client" in str(first.trouble())  # though the connection is there again


def trouble_with(source: MqttSource, what: str) -> str:
    def said() -> bool:
        assert source.poll(0.05) == []
        return what in str(source.trouble())

    until(said, seen=source.trouble)
    return str(source.trouble())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # sockets that the client forgets
def test_tls_where_there_is_none_and_none_where_it_is(tmp_path, broker, sources):
    # Before: "is away: there is no answer", or "Unspecified error".
    secret = sources(broker.port, "tls", tls=True)
    assert "Connection reset by peer (does it use TLS at this port?)" in trouble_with(secret, "TLS")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    try:
        subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no openssl")
    with mqtt_broker(tmp_path / "tls", certfile=str(certificate), keyfile=str(key)) as encrypted:
        plain, other = sources(encrypted.port, "plain"), sources(encrypted.port, "other", tls=True)
        assert "ended without an answer (does this port require TLS?)" in trouble_with(plain, "TLS")
        assert "is not trusted: " in trouble_with(other, "trusted")


@pytest.mark.parametrize("host", ["", "a b", "x" * 70 + ".y"])
def test_hosts_that_are_none(host):
    # Before: accepted; the client's thread ended, and "there is no connection yet" was said for ever.
    with pytest.raises(DataError, match="invalid MQTT broker host"):
        MqttSource(NUMBERS, MqttSettings(host, ("t",), "id"))


def test_rows_behind_a_network_that_delays_cuts_and_hangs(tmp_path, sources):
    """Each at least once, whatever happens to the connection."""
    name, sent = "net", [0]
    with mqtt_broker(tmp_path) as broker, proxy(broker.port) as between:
        source, taken = connected(sources(between.listens_at, name, keepalive_s=2, unacknowledged=50)), Taken(name)

        def send() -> None:
            publish(broker, f"{name}/x", [payload(n) for n in range(sent[0], sent[0] + 200)])
            sent[0] += 200

        def take() -> None:
            taken.until(source, sent[0])

        send()
        take()
        between.delay_s = 0.1
        send()
        take()
        between.delay_s = 0.0
        for _ in range(2):
            send()
            taken.take(source, 0.5)
            taken.keep(source)
            between.reset()  # with messages and acknowledgements under way
            send()
            take()
        between.stalled = True  # until the broker, or we, give the connection up
        until(lambda: "unreachable" in str(source.trouble()))
        send()
        between.stalled = False
        take()
        between.silent = True  # what we acknowledge arrives, what the broker sends does not
        send()
        taken.take(source, 0.5)
        taken.keep(source)
        between.silent = False
        between.reset()
        take()
        assert set(taken.rows) == set(range(sent[0]))
        assert between.connections >= 5
