from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pytest

from live.sinks.base import Refused
from live.sinks.webhook import WebhookSink
from query.errors import DataError
from tests.live.sinks.rows import matches, table
from tests.waiting import GUARD_S

#: What a server answers the n-th request: status, body, headers.
Answer = Callable[[int], tuple[int, bytes, dict[str, str]]]


class Receiver:
    """A web server on loopback that keeps what it is sent: (key, body, path, headers) of each POST."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[tuple[str, object]] = []
        self.headers: list[dict[str, str]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((self.headers["Idempotency-Key"], json.loads(body)))
                receiver.headers.append(dict(self.headers))
                status, text, headers = answer(len(receiver.requests))
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(text))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            def do_GET(self) -> None:
                receiver.requests.append(("GET", None))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def receiver() -> Iterator[Callable[[Answer], Receiver]]:
    started: list[Receiver] = []

    def start(answer: Answer) -> Receiver:
        started.append(Receiver(answer))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def fine(n: int) -> tuple[int, bytes, dict[str, str]]:
    return 204, b"", {}


def test_every_row_is_posted_with_its_id(receiver: Callable[[Answer], Receiver]) -> None:
    server = receiver(fine)
    sink = WebhookSink(f"{server.url}/alerts?token=s3cret", {"Authorization": "Bearer x"})
    rows = table([("aa", None, 0), ("aa", None, 1), ("bb", "jj", 2)])
    sink.check(rows.schema)
    sink.open(None)
    sink.write(rows)
    assert [key for key, _ in server.requests] == ["aa", "aa/1", "bb/jj"]
    assert server.requests[0][1] == {"symbol": "S0", "n": 0, "match_id": "aa", "join_id": None}
    assert server.headers[0]["Content-Type"] == "application/json"
    assert server.headers[0]["Authorization"] == "Bearer x"
    assert sink.cursor() is None
    sink.close()


def test_a_refusal_says_why_and_a_retry_sends_what_is_left(receiver: Callable[[Answer], Receiver]) -> None:
    server = receiver(lambda n: (500, b"\nthe pager is on fire\nat line 3\n", {}) if n == 2 else fine(n))
    sink = WebhookSink(f"{server.url}/alerts?token=s3cret")
    sink.open(None)
    said = r"127.0.0.1:\d+ did not accept a row: 500 .*: the pager is on fire\nhint"
    with pytest.raises(OSError, match=said) as raised:
        sink.write(matches(0, 3))
    assert "s3cret" not in str(raised.value)
    sink.write(matches(0, 3))
    assert [row["n"] for _, row in server.requests] == [0, 1, 1, 2]  # type: ignore[index]
    sink.write(matches(0, 1))
    assert len(server.requests) == 5


@pytest.mark.parametrize("status", [302, 307, 401, 404, 429, 503])
def test_what_is_not_taken_is_an_error(status: int, receiver: Callable[[Answer], Receiver]) -> None:
    server = receiver(lambda n: (status, b"", {"Location": "/elsewhere"} if status < 400 else {}))
    sink = WebhookSink(server.url)
    with pytest.raises(OSError, match=f"did not accept a row: {status}"):
        sink.write(matches(0, 1))
    assert [key for key, _ in server.requests] == [f"{0:016x}"]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_row_that_is_refused_for_what_it_is_is_named_and_can_be_left_out(
    status: int, receiver: Callable[[Answer], Receiver]
) -> None:
    # Before: "did not take a row: 422"; nobody knew which, and nothing behind it was posted, ever.
    server = receiver(lambda n: (status, b"no such symbol", {}) if n in (2, 3) else fine(n))
    sink = WebhookSink(server.url)
    sink.open(None)
    rows = table([("aa", None, 0), ("bb", None, 1), ("bb", None, 2)])
    for _ in range(2):
        with pytest.raises(Refused, match=rf"rejects row bb: {status} .*: no such symbol\nhint: .*`refusals`") as c:
            sink.write(rows)
    assert [json.loads(text)["n"] for text in c.value.rows.values()] == [1]
    sink.leave_out("bb")
    sink.write(rows)
    assert [key for key, _ in server.requests] == ["aa", "bb", "bb", "bb/1"]


def test_a_server_that_hangs_is_left_after_a_while(receiver: Callable[[Answer], Receiver]) -> None:
    go = threading.Event()

    def hang(n: int) -> tuple[int, bytes, dict[str, str]]:
        go.wait(GUARD_S)
        return fine(n)

    server = receiver(hang)
    with pytest.raises(OSError, match=r"did not accept a row: timed out"):
        WebhookSink(server.url, seconds=0.2).write(matches(0, 1))
    assert not go.is_set()
    go.set()


def test_a_server_that_answers_no_http_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"hello?\r\n\r\n")

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(OSError, match="did not accept a row: hello"):
            WebhookSink(f"http://127.0.0.1:{server.getsockname()[1]}").write(matches(0, 1))
        thread.join()


def test_a_server_that_is_not_there_is_an_error() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(OSError, match=r"127.0.0.1:\d+ did not accept a row: .*refused"):
            WebhookSink(f"http://127.0.0.1:{port}").write(matches(0, 1))


@pytest.mark.parametrize("url", ["", "alerts", "file:///etc/passwd", "http://", "http://a b", "http://a:99999", "http://ü"])
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(DataError, match="invalid URL"):
        WebhookSink(url)


def test_headers_that_are_none_are_refused() -> None:
    for headers in ({"A": "x\r\nB: y"}, {"A:": "x"}, {"A": "ü"}, {"": "x"}):
        with pytest.raises(DataError, match="invalid request header"):
            WebhookSink("http://localhost", headers)


def test_a_row_that_was_taken_and_not_answered_comes_again_with_its_key(
    receiver: Callable[[Answer], Receiver],
) -> None:
    """The connection breaks behind the second row: those before it do not come again, it does, under the same key."""

    def cut(n: int) -> tuple[int, bytes, dict[str, str]]:
        if n == 2:
            raise ConnectionError
        return fine(n)

    server = receiver(cut)
    server.server.handle_error = lambda *_: None  # type: ignore[method-assign]
    sink = WebhookSink(server.url, seconds=5.0)
    with pytest.raises(OSError, match="did not accept a row: "):
        sink.write(matches(0, 3))
    sink.write(matches(0, 3))
    assert [row["n"] for _, row in server.requests] == [0, 1, 1, 2]  # type: ignore[index]
    assert [key for key, _ in server.requests] == [f"{n:016x}" for n in (0, 1, 1, 2)]


def test_a_user_in_the_url_is_sent_as_basic_authentication_and_never_shown(
    receiver: Callable[[Answer], Receiver]
) -> None:
    # Before: valid for `check`, and no request was ever sent: urllib took user and password for the host.
    server = receiver(lambda n: (503, b"", {}) if n == 2 else fine(n))
    sink = WebhookSink(server.url.replace("//", "//ann:p%40ss@"))
    sink.write(matches(0, 1))
    assert server.headers[0]["Authorization"] == "Basic " + base64.b64encode(b"ann:p@ss").decode()
    with pytest.raises(OSError, match="503") as raised:
        sink.write(matches(1, 1))
    assert "p@ss" not in str(raised.value)
    assert "p%40ss" not in str(raised.value)
    with pytest.raises(DataError, match="two authorizations"):
        WebhookSink("https://ann:x@host/", {"authorization": "Bearer x"})
    with pytest.raises(DataError, match="invalid URL") as invalid:
        WebhookSink("https://ann:s3/cret@host :1/")
    assert "cret" not in str(invalid.value).replace("secret", "")


def test_a_template_makes_the_body(receiver: Callable[[Answer], Receiver]) -> None:
    server = receiver(fine)
    sink = WebhookSink(server.url, template='{"text": "{{symbol}} is at {{ n }}", "key": ["{{match_id}}"]}')
    rows = matches(0, 1).set_column(0, "symbol", pa.array(['say "hi"\n']))
    sink.check(rows.schema)
    sink.write(rows)
    assert server.requests[0] == (f"{0:016x}", {"text": 'say "hi"\n is at 0', "key": [f"{0:016x}"]})
    assert server.headers[0]["Content-Type"] == "application/json"
    with pytest.raises(DataError, match=r"(?s)the template names simbol, which rows do not have.*symbol"):
        WebhookSink(server.url, template="{{simbol}}").check(rows.schema)
