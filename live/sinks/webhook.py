"""Posts rows to a web server, one request per row."""

from __future__ import annotations

import base64
import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from live.sinks.base import Refused, check_ids, row_ids, trouble
from live.sinks.body_template import BodyTemplate
from live.sinks.json_lines import check_json, json_lines
from query.errors import DataError

#: Bytes of an answer that are read for the error message.
_ANSWER_BYTES = 4096
#: Status codes about the row, not about the server, the address or the user.
_REFUSING = (400, 413, 422)


class WebhookSink:
    """Sends a POST with the JSON of each row, and its id as `Idempotency-Key`: match, match/join, or match/join/number
    if a match has several rows. An answer other than 2xx raises OSError with the first line of its body, or Refused if
    it is about the row (400, 413, 422). Redirects are not followed.

    headers: of each request; one of them may be Content-Type. template: the body, see BodyTemplate; None: the JSON of
    the row. A user and password in the URL are sent as basic authentication; no message shows them.
    A failed write may be repeated: rows that were answered are skipped. After a crash, rows come again with the same
    key. seconds: timeout of the connection and of each part of the answer.
    """

    __slots__ = ("_answered", "_headers", "_opener", "_seconds", "_template", "_url")

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, seconds: float = 10.0, template: str | None = None
    ) -> None:
        if not _is_address(url):
            hint = "it begins with https:// or http://; `/`, `@` and `:` of a password are written %2F, %40 and %3A"
            raise DataError("invalid URL, which is not shown because it may have a secret", hint)
        wrong = next((name for name, value in (headers or {}).items() if not _is_header(name, value)), None)
        if wrong is not None:
            raise DataError(f"invalid request header {wrong!r}", "names and values are printable ASCII, on one line")
        given = {name.lower(): value for name, value in (headers or {}).items()}
        self._template = None if template is None else BodyTemplate(template)
        kind = "application/json" if self._template is None else self._template.content_type
        self._headers = {"user-agent": "hybrid", "content-type": kind, **given}
        self._url, user = _without_user(url)
        if user is not None:
            if "authorization" in given:
                raise DataError("two authorizations: of the URL's user and of a header", "leave one of them out")
            self._headers["authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        self._seconds = seconds
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._answered: set[str] = set()

    def check(self, schema: pa.Schema) -> None:
        check_ids(schema)
        check_json(schema)
        if self._template is not None:
            self._template.check(schema)

    def open(self, cursor: str | None) -> None:
        self._answered = set()

    def write(self, rows: pa.Table) -> None:
        for text, row in zip(json_lines(rows), row_ids(rows)):
            if str(row) not in self._answered:
                body = text if self._template is None else self._template.filled(text)
                self._post(body.encode(), str(row))
                self._answered.add(str(row))
        self._answered = set()

    def _post(self, body: bytes, key: str) -> None:
        request = urllib.request.Request(self._url, body, {**self._headers, "Idempotency-Key": key}, method="POST")
        try:
            with self._opener.open(request, timeout=self._seconds) as answer:
                answer.read(_ANSWER_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                try:
                    said = error.read(_ANSWER_BYTES).decode(errors="replace").strip().partition("\n")[0].strip()
                except (OSError, http.client.HTTPException):
                    said = ""
            what = f"{error.code} {error.reason}" + (f": {said}" if said else "")
            if error.code in _REFUSING:
                raise Refused(self._where(), what, {key: body.decode()}) from None
            raise self._trouble(what) from None
        except urllib.error.URLError as error:
            raise self._trouble(error.reason) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._trouble(str(error) or type(error).__name__) from None

    def leave_out(self, id: str) -> None:
        self._answered.add(id)

    def cursor(self) -> str | None:
        return None

    def close(self) -> None: ...

    def _where(self) -> str:
        """Returns the address without path and query, which are often secrets."""
        parts = urlsplit(self._url)
        return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")

    def _trouble(self, what: object) -> OSError:
        return trouble(f"{self._where()} did not accept a row", what, "see the reason; the row is sent again")


def _without_user(url: str) -> tuple[str, str | None]:
    """Returns a URL without its user and password, and these, joined by a colon."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None
    name, _, password = user.partition(":")
    return parts._replace(netloc=host).geturl(), f"{unquote(name)}:{unquote(password)}"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes redirects errors: a redirected POST would become a GET without the row."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        usable = url.isascii() and url.isprintable() and " " not in url and parts.port != 0
    except ValueError:
        return False
    return usable and parts.scheme in ("http", "https") and bool(parts.hostname)


def _is_header(name: str, value: str) -> bool:
    named = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return named and value.isascii() and value.isprintable()
