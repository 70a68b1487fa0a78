"""Measures conditions on three paths, in a process that is replaced where one takes too long."""

from __future__ import annotations

import multiprocessing
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection

import pyarrow as pa

import hybrid
from benchmarks.answers import fingerprint
from benchmarks.conditions.cases import EVENTS, Case, events
from query.errors import Error

PATHS = ("batch", "live", "backtest")
#: Events of one push of a live query.
BATCH_ROWS = 8_192
#: Events of a first run, which loads or compiles what later runs share, and may take so many times the limit.
WARM_ROWS, WARM_TIMES = 400, 12
#: A condition falls short beyond: times its neighbour; times as long for four times the rows.
TIMES_MAX, GROWTH_MAX = 10.0, 6.0
#: Faster runs, in seconds, are measured again, and the best counts; growth below this time is noise.
QUICK_S, NOISE_S = 0.5, 0.02


@dataclass(frozen=True, slots=True)
class Run:
    """seconds: of the processor, None if it took longer than the limit, or failed. error: its first line."""

    seconds: float | None
    matches: int | None = None
    hash: str = ""
    error: str = ""


def run(case: Case, path: str, table: pa.Table) -> pa.Table:
    """Returns the matches of a case over events."""
    text = case.text()
    if path == "batch":
        return hybrid.sql(text, t=table).arrow()
    with hybrid.connect() as db:
        db.create_stream("t", {f.name: f.type for f in EVENTS.fields}, time="ts", key="k")
        if path == "backtest":
            db.push("t", table)
            db.advance("t", None)
            start = table.column("ts")[0].as_py()
            return db.backtest(text, start).arrow()
        found = []
        alerts = db.watch(text)
        for batch in table.to_batches(max_chunksize=BATCH_ROWS):
            db.push("t", pa.Table.from_batches([batch]))
            found.append(alerts.take())
        db.advance("t", None)
        found.append(alerts.take())
        return pa.concat_tables(found)


def timed(case: Case, path: str, table: pa.Table) -> Run:
    """Returns the best time of a case, and what it found."""
    best: float | None = None
    for _ in range(3):
        start = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", hybrid.HybridWarning)  # the table shows what the reference costs
                found = run(case, path, table)
        except Error as error:
            return Run(None, error=str(error).splitlines()[0])
        seconds = time.process_time() - start
        best = seconds if best is None else min(best, seconds)
        if seconds > QUICK_S:
            break
    return Run(best, len(found), fingerprint(found, found.column_names))


def _serve(pipe: Connection, keys: int, seed: int) -> None:
    """Answers (case, path, rows, limit) by a Run until the other end closes. Dies of SIGPROF after that many seconds of
    processor time."""
    made: dict[int, pa.Table] = {}
    while True:
        try:
            case, path, rows, limit_s = pipe.recv()
        except EOFError:
            return
        if rows not in made:
            made[rows] = events(rows, keys, seed)
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        answered = timed(case, path, made[rows])
        signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.send(answered)


class Worker:
    """A process that runs cases. limit_s: of processor time for one run; the next one gets another process."""

    def __init__(self, keys: int, seed: int, limit_s: float) -> None:
        self._given, self._limit_s = (keys, seed), limit_s
        self._process: multiprocessing.process.BaseProcess | None = None

    def ask(self, case: Case, path: str, rows: int, times: int = 1) -> Run:
        """Runs a case. times: the limit."""
        limit_s = self._limit_s * times
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, *self._given), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._pipe.send((case, path, rows, limit_s))
            found: Run = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            late = self._process.exitcode == -signal.SIGPROF
            self.close()
            return Run(None, error=f"more than {limit_s:g} s" if late else "the process died")
        return found

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None


def measured(
    cases: Sequence[Case], paths: Sequence[str], rows: int, keys: int, seed: int, limit_s: float,
    say: Callable[[str], None],
) -> list[dict[str, object]]:  # fmt: skip
    """Returns a row for each case and path: its times at `rows` and four times as many, beside its neighbour's."""
    out: list[dict[str, object]] = []
    worker = Worker(keys, seed, limit_s)
    cheap: dict[tuple[str, str], Run] = {}
    try:
        for case in cases:
            for path in paths:
                worker.ask(case, path, WARM_ROWS, WARM_TIMES)
                few = worker.ask(case, path, rows)
                many = worker.ask(case, path, 4 * rows) if few.seconds is not None else few
                if case.name == case.neighbour:
                    cheap[case.neighbour, path] = many
                out.append(_row(case, path, few, many, cheap[case.neighbour, path]))
                say(f"{path:8} {case.kind:10} {case.name:60} {_shown(out[-1])}")
    finally:
        worker.close()
    return out


def _row(case: Case, path: str, few: Run, many: Run, cheap: Run) -> dict[str, object]:
    times = growth = None
    if many.seconds is not None and cheap.seconds is not None:
        times = round(many.seconds / cheap.seconds, 2)
    if many.seconds is not None and few.seconds is not None:
        growth = round(many.seconds / max(few.seconds, 1e-9), 2)
    short = many.seconds is None or (times is not None and times > TIMES_MAX)
    steep = growth is not None and growth > GROWTH_MAX and (many.seconds or 0) > 4 * NOISE_S
    return {
        "kind": case.kind, "condition": case.name, "neighbour": case.neighbour, "path": path,
        "few": asdict(few), "many": asdict(many), "times": times, "growth": growth, "short": short or steep,
    }  # fmt: skip


def _shown(row: dict[str, object]) -> str:
    many = row["many"]
    assert isinstance(many, dict)
    seconds = many["seconds"]
    said = many["error"] if seconds is None else f"{seconds:.3f} s, {row['times']} times, growth {row['growth']}"
    return f"{said}{'  falls short' if row['short'] else ''}"
