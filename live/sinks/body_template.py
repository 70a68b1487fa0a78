"""The body of a message as a text with places for the columns of a row."""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from query.errors import DataError, nearest

_PLACE = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")


class _Number(str):
    """A number as JSON writes it: a double would round it."""


class BodyTemplate:
    """A text in which `{{column}}` is the value of that column: `{"text": "{{symbol}} fell to {{low}}"}`.

    A text that is JSON stays JSON whatever the values are: places are in its strings. Any other text is sent as plain
    text. Values are as in the JSON of a row, texts without their quotes, nulls empty. Raises DataError for a text
    without a place, unless it may be constant.
    """

    __slots__ = ("_body", "_columns", "content_type")

    def __init__(self, text: str, may_be_constant: bool = False) -> None:
        try:
            self._body = json.loads(text)
        except ValueError:
            self._body = None
        self.content_type = "application/json"
        if not isinstance(self._body, dict | list):
            self._body, self.content_type = text, "text/plain; charset=utf-8"
        self._columns = tuple(dict.fromkeys(_PLACE.findall(text)))
        if not self._columns and not may_be_constant:
            raise DataError("the template names no column", 'write one as {{column}}: {"text": "{{symbol}} fell"}')

    def check(self, schema: pa.Schema) -> None:
        """Raises DataError for a column that rows do not have."""
        lacking = next((name for name in self._columns if name not in schema.names), None)
        if lacking is not None:
            raise DataError(f"the template names {lacking}, which rows do not have", nearest(lacking, schema.names))

    def filled(self, row: str) -> str:
        """Returns the body for a row. row: its JSON."""
        values = json.loads(row, parse_int=_Number, parse_float=_Number)
        texts = {name: _text(values[name]) for name in self._columns}
        body = _filled(self._body, texts)
        return body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)


def _filled(body: Any, texts: dict[str, str]) -> Any:
    match body:
        case str():
            return _PLACE.sub(lambda place: texts[place[1]], body)
        case dict():
            return {_filled(key, texts): _filled(value, texts) for key, value in body.items()}
        case list():
            return [_filled(value, texts) for value in body]
    return body


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    match value:
        case _Number():
            return value
        case list():
            return f"[{', '.join(map(_json, value))}]"
        case dict():
            return f"{{{', '.join(f'{_json(name)}: {_json(one)}' for name, one in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)
