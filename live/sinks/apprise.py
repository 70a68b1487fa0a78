"""Sends rows as notifications, one per row, through apprise: e-mail, chats, pagers, text messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from live.sinks.base import check_ids, row_ids, trouble
from live.sinks.body_template import BodyTemplate
from live.sinks.json_lines import check_json, json_lines
from query.errors import DataError
from query.extras import not_installed


class AppriseSink:
    """Sends each row to services that apprise knows, at least once: a receiver cannot tell a repeated row.

    urls: of the services, such as mailto://user:password@host?to=ops@example.org; they are secrets, and no message
    shows them. body, title: templates, see BodyTemplate; a body of None is the JSON of the row, a title of None its
    column `query`. Needs the extra `apprise`. Raises DataError if apprise does not know a URL, and OSError if a service
    did not take a row, which is then sent again to the services that did not.
    """

    __slots__ = ("_answered", "_body", "_notifiers", "_title")

    def __init__(self, urls: Sequence[str], body: str | None = None, title: str | None = None) -> None:
        apprise = _module()
        self._body = None if body is None else BodyTemplate(body)
        self._title = None if title is None else BodyTemplate(title, may_be_constant=True)
        self._notifiers: list[Any] = []
        for number, url in enumerate(urls, 1):
            self._notifiers.append(apprise.Apprise())
            with apprise.LogCapture():
                known = self._notifiers[-1].add(url)
            if not known:
                kind = url.partition("://")[0] if "://" in url else "without a scheme"
                message = f"apprise does not know the URL number {number} ({kind})"
                raise DataError(message, "for mail it is mailto://user:password@host?to=address")
        self._answered: set[tuple[str, int]] = set()  # ids of rows, with the numbers of services that took them

    def check(self, schema: pa.Schema) -> None:
        check_ids(schema)
        check_json(schema)
        for template in filter(None, (self._body, self._title)):
            template.check(schema)

    def open(self, cursor: str | None) -> None:
        self._answered = set()

    def write(self, rows: pa.Table) -> None:
        apprise = _module()
        for row, id in zip(json_lines(rows), map(str, row_ids(rows))):
            body = row if self._body is None else self._body.filled(row)
            title = str(json.loads(row).get("query", "")) if self._title is None else self._title.filled(row)
            failure = ""
            for number, notifier in enumerate(self._notifiers, 1):
                if (id, number) in self._answered:
                    continue
                with apprise.LogCapture(level=apprise.logging.WARNING, fmt="%(message)s") as said:
                    if notifier.notify(body=body, title=title):
                        self._answered.add((id, number))
                    else:
                        failure = failure or f"service {number}: {said.getvalue().strip() or 'no reason given'}"
            if failure:
                raise trouble("a notification was not sent", failure, "the row is sent again to this service")
        self._answered = set()

    def cursor(self) -> str | None:
        return None

    def close(self) -> None: ...


def _module() -> Any:
    """Returns the module apprise. Raises DataError if it is not installed."""
    try:
        import apprise
    except ImportError:
        raise not_installed("notifications need apprise", "apprise") from None
    return apprise
