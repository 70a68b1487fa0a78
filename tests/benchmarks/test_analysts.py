"""Questions of analysts: this engine, DuckDB's window functions and Polars find the same rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks import answers
from benchmarks.analysts.contenders import CONTENDERS, SOURCES, given, write
from benchmarks.analysts.questions import QUESTIONS
from benchmarks.analysts.rows import ORDERS, events
from hybrid.statement import by_key, gathered
from tests.benchmarks.test_benchmarks import printed


@pytest.mark.slow
@pytest.mark.thinned(4)
@pytest.mark.parametrize("label", QUESTIONS)
@pytest.mark.parametrize("order", ORDERS)
def test_all_find_the_same_rows(label: str, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (by_key, gathered):
        monkeypatch.setattr(module, "ROWS_MIN", 0)
    monkeypatch.setattr(gathered, "KEYS_MANY", 50)
    question, path = QUESTIONS[label], tmp_path / "events.parquet"
    for keys, source in zip((1, 20, 300, 300), SOURCES, strict=True):
        write(events(3, 6_000, keys, order, question.reads, 6), path)
        found: dict[str, pa.Table] = {
            name: run(question, given(path, source, name), order == "ties") for name, run in CONTENDERS.items()
        }
        hashes = {name: (len(rows), answers.fingerprint(rows, list(question.columns))) for name, rows in found.items()}
        assert len(set(hashes.values())) == 1, (keys, source, hashes)
        assert len(found["hybrid"]) > 5


@pytest.mark.slow
def test_the_benchmark_runs_small() -> None:
    result = printed("benchmarks.analysts", "--rows", "3_000", "--keys", "30", "--orders", "time", "--only", "v",
                     "--repeat", "1")  # fmt: skip
    assert result["disagreements"] == []
    (sample,) = result["samples"]
    assert set(sample["contenders"]) == set(CONTENDERS)
    assert all(r["cpu_seconds"] > 0 and r["peak_mib"] > 0 and r["rows"] for r in sample["contenders"].values())
