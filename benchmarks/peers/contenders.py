"""Who answers which question: this engine, code by hand, and other engines in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from benchmarks.peers import core, flink, frames, limit
from benchmarks.peers.questions import Drop, Funnel, Path, Question, Rise
from benchmarks.v_pattern import (
    PEER_PYTHON,
    PEER_ROWS_MAX,
    Timed,
    by_hand,
    stopwatch,
    through_pandas_match_recognize,
    through_sql,
    through_watch,
)

BY_HAND = "numba by hand"
READY = "arrow table from ready arrays"
PANDAS = "pandas_match_recognize"
CEP, SQL, CORE = "flink cep", "flink sql", "core (pycer)"
#: So many events at most go through an engine that takes some seconds for them.
SLOW_ROWS = 1_000_000
#: Flink forks a run at each row it takes in Q2, thousands after some hundred rows: it gets one window of one symbol.
DROP_ROWS = 300


@dataclass(frozen=True, slots=True)
class Inside:
    """Runs in this process, after once on the first rows, several times. rows_max: None for any number."""

    run: Callable[[pa.Table, str], Timed]
    rows_max: int | None = None


@dataclass(frozen=True, slots=True)
class Outside:
    """Runs in a process of its own, once, and warms that up itself.

    run: (events, rows to warm up with) -> what it measured, seconds and cpu_seconds among it, and the answer. absent:
    why it is not there, or nothing. other: why its matches are not those of the question, or nothing."""

    run: Callable[[pa.Table, int], tuple[Mapping[str, float], pa.Table]]
    rows_max: int
    absent: str
    other: str = ""


Contender = Inside | Outside


def with_kernels(kernels: str, run: Callable[[pa.Table, str], Timed]) -> Callable[[pa.Table, str], Timed]:
    """The same with HYBRID_KERNELS set to `kernels`."""

    def timed(events: pa.Table, query: str) -> Timed:
        before = os.environ.get("HYBRID_KERNELS")
        os.environ["HYBRID_KERNELS"] = kernels
        try:
            return run(events, query)
        finally:
            os.environ.pop("HYBRID_KERNELS")
            if before is not None:
                os.environ["HYBRID_KERNELS"] = before

    return timed


def ours(question: Question) -> dict[str, Contender]:
    """This engine as it comes. Where a query may get a kernel of its own, which is where conditions read the match so
    far, before that with one from the start, so that it then is in the cache, and behind it never with one."""
    sql, watch = partial(through_sql, name=question.schema.name), partial(through_watch, schema=question.schema)
    found: dict[str, Contender] = {}
    special = isinstance(question.constants, Drop)
    if special:
        found["hybrid sql, specialised"] = Inside(with_kernels("specialised", sql))
        found["hybrid watch, specialised"] = Inside(with_kernels("specialised", watch))
    found["hybrid sql"] = Inside(sql)
    if not question.counts:
        found["hybrid watch"] = Inside(watch)
    if special:
        found["hybrid sql, interpreted"] = Inside(with_kernels("interpreted", sql))
    return found


def contenders(question: Question) -> dict[str, Contender]:
    """All that can answer the question, by name."""
    found = ours(question)
    match question.constants:
        case Rise():
            found[BY_HAND] = Inside(by_hand(limit.rise))
            found["polars by hand"] = Inside(by_hand(frames.rise_polars))
            found["duckdb by hand"] = Inside(by_hand(frames.rise_duckdb))
            missing = "" if PEER_PYTHON.exists() else "make peers installs it"
            found[PANDAS] = Outside(through_pandas(question), PEER_ROWS_MAX, missing)
            found[CEP], found[SQL] = through_flink(question, "cep"), through_flink(question, "sql")
        case Drop() as constants:
            found[BY_HAND] = Inside(by_hand(partial(limit.drop, constants=constants)))
            found[CEP] = through_flink(question, "cep", DROP_ROWS)
        case Path() as constants:
            found[BY_HAND] = Inside(by_hand(partial(limit.path, constants=constants)))
            found["polars by hand"] = Inside(by_hand(partial(frames.path_polars, constants=constants)))
            found[CEP], found[SQL] = through_flink(question, "cep"), through_flink(question, "sql")
        case Funnel() as constants:
            found[BY_HAND] = Inside(by_hand(partial(limit.funnel, constants=constants)))
            found["duckdb by hand"] = Inside(by_hand(partial(frames.funnel_duckdb, constants=constants)))
            if not constants.counted:
                found[READY] = Inside(written_from_arrays(constants))
                found[CORE] = Outside(partial(_core, question), SLOW_ROWS, core.absent())
            found[CEP] = through_flink(question, "cep")
    return found


def unable(question: Question) -> dict[str, str]:
    """Who cannot answer the question at all, and why."""
    no_skip = "its MATCH_RECOGNIZE has no strategy that passes over rows"
    match question.constants:
        case Rise():
            return {CORE: "it has no conditions on two rows"}
        case Drop():
            return {SQL: no_skip, CORE: "it has no aggregates over what a run has taken"}
        case Path():
            return {CORE: "it finds all matches; skip till next match is parsed and ignored"}
        case Funnel(counted=True):
            return {
                "hybrid watch": "a count over an unbounded stream is refused",
                SQL: no_skip,
                CORE: "it counts by enumerating only, see q4",
            }
        case Funnel():
            return {SQL: no_skip}


def through_flink(question: Question, engine: str, rows_max: int = SLOW_ROWS) -> Outside:
    other = ""
    if isinstance(question.constants, Drop):
        other = (
            "it leaves a repetition also before a row that would have been taken, and ends a match with the first row "
            "that can, which here may be passed over; its matches are others, and only its time is compared"
        )

    def run(events: pa.Table, warm_rows: int) -> tuple[Mapping[str, float], pa.Table]:
        return flink.run(events, question, engine, warm_rows)

    return Outside(run, rows_max, flink.absent(), other)


def through_pandas(question: Question) -> Callable[[pa.Table, int], tuple[Mapping[str, float], pa.Table]]:
    def run(events: pa.Table, warm_rows: int) -> tuple[Mapping[str, float], pa.Table]:
        seconds, cpu_seconds, answer = through_pandas_match_recognize(events, question.text)
        return {"seconds": seconds, "cpu_seconds": cpu_seconds}, answer

    return run


def _core(question: Question, events: pa.Table, warm_rows: int) -> tuple[Mapping[str, float], pa.Table]:
    return core.run(events, question, warm_rows)


def written_from_arrays(constants: Funnel) -> Callable[[pa.Table, str], Timed]:
    """Only what the answer of Q4 costs: its values are there, in its order, and are copied into a table."""

    def run(events: pa.Table, query: str) -> Timed:
        ready = limit.funnel(events, constants)
        arrays = [column.combine_chunks().cast(pa.int64()).to_numpy() for column in ready.columns]
        stop = stopwatch()
        visitor, *us = [array.copy() for array in arrays]
        answer = pa.table([pa.array(visitor), *map(limit.times, us)], names=ready.column_names)
        return *stop(), answer

    return run
