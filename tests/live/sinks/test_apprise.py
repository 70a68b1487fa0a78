from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from live.sinks.apprise import AppriseSink
from query.errors import DataError
from tests.live.sinks.rows import matches
from tests.live.sinks.test_webhook import Answer, Receiver, fine, receiver

__all__ = ["receiver"]

pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")  # imported by apprise, before Python 3.13


def test_each_row_is_a_notification(receiver: Callable[[Answer], Receiver]) -> None:
    server = receiver(lambda n: (500, b"busy", {}) if n == 2 else fine(n))
    url = server.url.replace("http://", "json://ann:s3cret@")
    sink = AppriseSink([url], "{{symbol}} is at {{n}}", "row {{n}}")
    rows = matches(0, 3)
    sink.check(rows.schema)
    sink.open(None)
    with pytest.raises(OSError, match=r"a notification was not sent: .*500") as raised:
        sink.write(rows)
    assert "s3cret" not in str(raised.value)
    sink.write(rows)
    said = [(body["title"], body["message"]) for _, body in server.requests]  # type: ignore[index]
    # The row that was not sent is sent again, the one before it is not.
    assert said == [("row 0", "S0 is at 0"), ("row 1", "S1 is at 1"), ("row 1", "S1 is at 1"), ("row 2", "S2 is at 2")]
    assert sink.cursor() is None
    sink.close()


def test_the_default_is_the_row_as_json(receiver: Callable[[Answer], Receiver]) -> None:
    server = receiver(fine)
    sink = AppriseSink([server.url.replace("http://", "json://")], title="falls")
    sink.write(matches(0, 1))
    ((_, body),) = server.requests
    assert '"symbol":"S0"' in body["message"]  # type: ignore[index]
    assert body["title"] == "falls"  # type: ignore[index]


def test_what_cannot_be_sent_is_refused() -> None:
    with pytest.raises(DataError, match=r"does not know the URL number 1 \(mailt\)") as raised:
        AppriseSink(["mailt://ann:s3cret@host"])
    assert "s3cret" not in str(raised.value)
    with pytest.raises(DataError, match="the template names query, which rows do not have"):
        AppriseSink(["json://localhost"], title="{{query}}").check(matches(0, 1).schema)


def test_a_service_that_fails_does_not_make_the_others_repeat(receiver: Callable[[Answer], Receiver]) -> None:
    # Before: the one that had taken a row got it again with each retry.
    bad, good = receiver(lambda n: (500, b"", {}) if n < 3 else fine(n)), receiver(fine)
    sink = AppriseSink([server.url.replace("http://", "json://") for server in (bad, good)])
    rows = matches(0, 1).append_column("query", pa.array(["falls"]))
    sink.check(rows.schema)
    for _ in range(2):
        with pytest.raises(OSError, match=r"service 1: .*500"):
            sink.write(rows)
    sink.write(rows)
    assert (len(bad.requests), len(good.requests)) == (3, 1)
    assert good.requests[0][1]["title"] == "falls"  # type: ignore[index]
