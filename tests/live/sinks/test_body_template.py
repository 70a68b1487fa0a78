from __future__ import annotations

import json
from decimal import Decimal

import pyarrow as pa
import pytest

from live.sinks.body_template import BodyTemplate
from live.sinks.json_lines import json_lines
from query.errors import DataError

ROWS = pa.table({
    "text": ['a "b" \\ {{n}}\n'], "n": [7], "half": [0.5], "money": [Decimal("12345678901234567890.10")],
    "none": pa.array([None], pa.string()), "some": [[1, 2]], "yes": [True],
})  # fmt: skip


def filled(template: str) -> str:
    (row,) = json_lines(ROWS)
    return BodyTemplate(template).filled(row)


def test_json_stays_json_whatever_the_values_are() -> None:
    body = json.loads(filled('{"a": "{{text}}|{{n}}", "b": [{"c{{n}}": "{{none}}"}], "d": 1.5}'))
    assert body == {"a": 'a "b" \\ {{n}}\n|7', "b": [{"c7": ""}], "d": 1.5}
    assert BodyTemplate('{"a": "{{n}}"}').content_type == "application/json"


def test_any_other_text_is_plain() -> None:
    template = "{{half}} {{money}} {{some}} {{yes}}{{none}}, {{ n }}"
    assert filled(template) == "0.5 12345678901234567890.10 [1, 2] true, 7"
    assert BodyTemplate(template).content_type == "text/plain; charset=utf-8"
    assert BodyTemplate('"{{n}}"').content_type == "text/plain; charset=utf-8"


def test_a_template_without_a_column_is_refused() -> None:
    with pytest.raises(DataError, match="names no column"):
        BodyTemplate('{"text": "$symbol"}')
