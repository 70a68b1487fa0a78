"""The examples of docs/errors.md have the faults they stand for, each its own and no other."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import hybrid
from hybrid.service.app_file import AppError, load
from query.errors import CODES, QueryError
from tests.docs.documents import ROOT
from tests.query.plan.test_bind import plan_of

TEXT = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
EXAMPLES: list[tuple[str, str, str]] = re.findall(
    r"^\| (HQ\d+) \| .* \| `([^`]+)`([^|`]*)(?:`[^`]*`)? \|$", TEXT, re.MULTILINE
)
TICKS = [
    {"ts": datetime(2024, 1, 1) + timedelta(minutes=i), "symbol": "x", "price": float(i), "volume": i} for i in range(4)
]


def test_every_code_has_an_example() -> None:
    assert [code for code, _, _ in EXAMPLES] == list(CODES)


def ask(example: str, where: str, directory: Path) -> None:
    if where == "in an app file":
        (directory / "app.toml").write_text(example)
        load(directory / "app.toml")
        return
    if where == "with":  # `timeout=0.1`
        hybrid.sql(example, timeout=0.1)
    query = example if example.startswith(("SELECT", "FROM")) else f"SELECT * FROM ticks MATCH_RECOGNIZE ({example})"
    plan_of(query, live=where == "in")  # in `db.watch`
    if where == "when it runs":
        hybrid.sql(query, ticks=TICKS)


@pytest.mark.parametrize(("code", "example", "where"), EXAMPLES)
def test_the_example_has_its_fault(
    code: str, example: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if code == "HQ705":
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises((QueryError, AppError)) as caught:
        ask(example, where.strip(), tmp_path)
    parts = caught.value.parts if isinstance(caught.value, AppError) else [("", caught.value)]
    assert {d.code for _, error in parts for d in error.diagnostics} == {code}
