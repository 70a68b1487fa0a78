"""CORE, by its Python package pycer, in an environment of its own (`make pycer`), which needs Python 3.13.

It finds all matches, in windows and by partition: Q4 enumerated. It parses other strategies and finds all the same; it
has no aggregates over what a run has taken; and it counts by enumerating only.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path as Folder

import numpy as np
import pyarrow as pa

from benchmarks.peers.columns import since, written
from benchmarks.peers.questions import Funnel, Question
from simulator.scenario import MINUTE_US

PYTHON = Folder(__file__).parents[2] / ".pycer" / "bin" / "python"


def absent() -> str:
    """Why it cannot run on this machine, or nothing."""
    return "" if PYTHON.exists() else "make pycer installs it, where there is a Python 3.13"


def version() -> str:
    found = sorted(PYTHON.parents[1].glob("lib/python3*/site-packages/pycer-*.dist-info"))
    return found[0].name.removeprefix("pycer-").removesuffix(".dist-info") if found else ""


def run(events: pa.Table, question: Question, warm_rows: int) -> tuple[dict[str, float], pa.Table]:
    """Q4 enumerated: what core_child measured, and the answer."""
    constants = question.constants
    assert isinstance(constants, Funnel)
    assert not constants.counted
    with tempfile.TemporaryDirectory(prefix="pycer_") as made:
        folder = Folder(made)
        keys = written(events, question, folder)
        script = str(Folder(__file__).parent / "core_child.py")
        command = [str(PYTHON), script, made, ",".join(constants.actions)]
        command += [str(constants.minutes * MINUTE_US), str(warm_rows)]
        # in the folder, because it writes its log where it runs
        child = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if child.returncode:
            raise RuntimeError(f"pycer failed:\n{child.stderr[-2000:]}")
        measured = json.loads(child.stdout.splitlines()[-1])
        words = np.fromfile(folder / "answer", np.int64).reshape(4, -1)
        columns = {name: since(us, events) for name, us in zip(question.columns[1:], words[1:])}
        return measured, pa.table({"visitor": keys.take(pa.array(words[0]))} | columns)
