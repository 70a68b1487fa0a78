"""Every benchmark runs small in the ordinary suite, so that it cannot rot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_v_pattern_contenders_agree() -> None:
    command = [sys.executable, "-m", "benchmarks.v_pattern", "--rows", "20_000", "--symbols", "50", "--repeat", "1"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    full = {name: r for name, r in result["contenders"].items() if r["rows"] == 20_000}
    assert {"hybrid watch", "hybrid sql", "hybrid watch, archiving", "numba by hand"} <= set(full)
    assert len({(r["matches"], r["hash"]) for r in full.values()}) == 1
    assert full["hybrid watch"]["matches"] > 1000
    assert len(result["drawn"]) == 3
    for drawn in result["drawn"]:
        assert drawn["hybrid watch"]["matches"] == drawn["hybrid sql"]["matches"] > 0
