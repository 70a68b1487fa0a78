"""Flink CEP and Flink SQL, each in a JVM of its own: FlinkPeer.java, compiled against the jars of `make flink`.

Flink SQL's MATCH_RECOGNIZE is translated to Flink CEP. What it cannot say is left out, with the reason: it has no
strategy that passes over rows, which Q3 gets round by a variable for the rows between, and Q2 and Q4 cannot.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path as Folder
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.peers.columns import since, written
from benchmarks.peers.questions import Drop, Funnel, Path, Question, Rise
from simulator.scenario import MINUTE_US, SECOND_US

ROOT = Folder(__file__).parents[2]
SOURCE = Folder(__file__).parent / "FlinkPeer.java"
MEMORY = "8g"
#: Modules of Java that Flink looks into.
OPENED = ("java.base/java.lang", "java.base/java.util")

RISE_SQL = """
SELECT name, start_ts, top, low FROM ticks MATCH_RECOGNIZE (
    PARTITION BY name ORDER BY rt
    MEASURES A.ts AS start_ts, LAST(B.price) AS top, C.price AS low
    ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW
    PATTERN (A B+ C)
    DEFINE B AS price > COALESCE(LAST(B.price, 1), A.price), C AS price < LAST(B.price)
) AS m"""

PATH_SQL = """
SELECT name, a_ts, b_ts, c_ts, d_ts FROM readings MATCH_RECOGNIZE (
    PARTITION BY name ORDER BY rt
    MEASURES A.ts AS a_ts, B.ts AS b_ts, C.ts AS c_ts, D.ts AS d_ts
    ONE ROW PER MATCH AFTER MATCH SKIP TO NEXT ROW
    PATTERN (A X* B Y* C Z* D) WITHIN INTERVAL '{seconds}.001' SECOND(9, 3)
    DEFINE A AS word = '{a}', X AS word <> '{b}', B AS word = '{b}', Y AS word <> '{c}', C AS word = '{c}',
           Z AS word <> '{d}', D AS word = '{d}'
) AS m"""


def jars() -> list[Folder]:
    return sorted(ROOT.glob(".flink/lib/python3*/site-packages/pyflink/lib/*.jar"))


def absent() -> str:
    """Why it cannot run on this machine, or nothing."""
    if not jars():
        return "make flink installs it"
    return "" if shutil.which("javac") and shutil.which("java") else "there is no Java compiler (JDK 17)"


def version() -> str:
    found = [jar.stem.removeprefix("flink-dist-") for jar in jars() if jar.stem.startswith("flink-dist-")]
    return found[0] if found else ""


def settings(question: Question) -> tuple[str, dict[str, object]]:
    """What FlinkPeer calls the question, and its constants. WITHIN is in milliseconds that are microseconds."""
    match question.constants:
        case Rise():
            return "rise", {}
        case Drop(volume, percent, seconds):
            return "drop", {"volume": volume, "percent": percent, "within": seconds * SECOND_US}
        case Path(readers, minutes):
            return "path", {"words": ",".join(readers), "within": minutes * MINUTE_US}
        case Funnel(counted, actions, minutes):
            name = "counted" if counted else "funnel"
            return name, {"words": ",".join(actions), "within": minutes * MINUTE_US}


def statement(question: Question) -> tuple[str, dict[str, object]]:
    """The question in Flink's SQL, and its table. Only for Q1 and Q3."""
    match question.constants:
        case Rise():
            return RISE_SQL, {"table": "ticks", "columns": "ts BIGINT,name STRING,price DOUBLE"}
        case Path(readers, minutes):
            text = PATH_SQL.format(seconds=minutes * 60 * 1000, **dict(zip("abcd", readers)))
            return text, {"table": "readings", "columns": "ts BIGINT,name STRING,word STRING"}
    raise ValueError(f"Flink SQL has no words for {question.name}")


def answered(question: Question, keys: pa.Array, events: pa.Table, words: np.ndarray) -> pa.Table:
    """The answer from what FlinkPeer wrote: int64 (5, n)."""
    if isinstance(question.constants, Funnel) and question.constants.counted:
        there = np.flatnonzero(words[0])
        return pa.table({"visitor": keys.take(pa.array(there)), "found": words[0][there]})
    columns: list[Any] = [keys.take(pa.array(words[0]))]
    for name, word in zip(question.columns[1:], words[1:]):
        columns.append(since(word, events) if name.endswith("_ts") else word)
    if isinstance(question.constants, Rise):
        columns[2:] = [word.view(np.float64) for word in words[2:4]]
    return pa.table(dict(zip(question.columns, columns)))


def class_path(folder: Folder) -> str:
    """Compiles FlinkPeer into a folder; the path of all that it needs."""
    path = os.pathsep.join(map(str, jars()))
    subprocess.run(["javac", "-cp", path, "-d", str(folder), str(SOURCE)], check=True, stdin=subprocess.DEVNULL)
    return os.pathsep.join([str(folder), path])


def run(events: pa.Table, question: Question, engine: str, warm_rows: int) -> tuple[dict[str, float], pa.Table]:
    """engine: cep or sql. warm_rows: so many of the first events go through a job of their own beforehand.

    Returns seconds and cpu_seconds of the process, from the first event to the last match; job_seconds and
    job_cpu_seconds, with planning and starting the job in the warm process too; and the answer."""
    name, options = settings(question)
    with tempfile.TemporaryDirectory(prefix="flink_") as made:
        folder = Folder(made)
        keys = written(events, question, folder)
        (folder / "classes").mkdir()
        options |= {"input": folder, "answer": folder / "answer", "warm": warm_rows, "keys": len(keys)}
        if engine == "sql":
            text, table = statement(question)
            (folder / "statement").write_text(text, encoding="utf-8")
            options |= table | {"statement": folder / "statement"}
        command = ["java", f"-Xmx{MEMORY}", "-Dlog4j2.level=ERROR"]
        command += [f"--add-opens={module}=ALL-UNNAMED" for module in OPENED]
        command += ["-cp", class_path(folder / "classes"), "FlinkPeer", engine, name]
        command += [f"{key}={value}" for key, value in options.items()]
        child = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if child.returncode:
            raise RuntimeError(f"FlinkPeer {engine} {name} failed:\n{child.stderr[-2000:]}")
        words = np.fromfile(folder / "answer", "<i8").reshape(5, -1)
        return json.loads(child.stdout.splitlines()[-1]), answered(question, keys, events, words)
