"""A session with a database that can be ended anywhere: at every line of our code, or at every call of the system.

Used by test_interrupts. A session is a list of steps; one of them is disturbed at its n-th point, the user then tries
the same step again and goes on, and the rows are compared with those of an undisturbed session."""

from __future__ import annotations

import datetime as dt
import dis
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import hybrid
from hybrid.database.database import Database
from hybrid.watch.alerts import Alerts
from hybrid.watch.stream import Stream
from live.stream import Arrival

ROOT = str(Path(hybrid.__file__).parents[1])
OURS = tuple(f"{ROOT}/{name}/" for name in ("hybrid", "live", "archive", "matching", "query"))

#: Calls that the system does not refuse; a descriptor is closed whatever `close` says.
GRANTED = ("close", "getpid", "fspath")
#: The standard library's own way to the system.
BETWEEN = ("/pathlib.py", "/os.py", "/shutil.py", "/tempfile.py", "<frozen os>", "<frozen posixpath>")

START = dt.datetime(2024, 1, 1)
FALLS = """
    SELECT * FROM ticks MATCH_RECOGNIZE (
        PARTITION BY k ORDER BY ts MEASURES FIRST(ts) AS since, LAST(v) AS v, count(*) AS n
        PATTERN (A B+ C) DEFINE B AS v < PREV(v), C AS v > PREV(v))"""
JOINED = """
    SELECT m.k, m.b, h.v AS earlier FROM ticks MATCH_RECOGNIZE (
        PARTITION BY k ORDER BY ts MEASURES FIRST(A.ts) AS a, LAST(B.v) AS b
        PATTERN (A B) DEFINE A AS v > 60, B AS v < 40) AS m
    LEFT JOIN HISTORY OF ticks FROM m.a - INTERVAL 30 SECOND TO m.a AS h ON h.k = m.k AND h.v > 70"""
ONCE = FALLS + " ALERT ONCE PER k WITHIN INTERVAL '20' SECOND"
QUERIES = {"falls": FALLS, "joined": JOINED}
#: Only in memory: a stream that a query feeds, and ALERT ONCE.
MORE = {"once": ONCE}
BATCHES, ROWS = 4, 12


def events(batch: int) -> list[dict[str, Any]]:
    """Of two keys, in order of time; a value every second."""
    first = batch * ROWS
    return [
        {"ts": START + dt.timedelta(seconds=i), "k": "ab"[i % 2], "v": float((i * i * 37 + i * 11) % 100)}
        for i in range(first, first + ROWS)
    ]


class Session:
    """One database and its user. rows: of each query, by the id of their match, what has been fetched."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.rows: dict[str, dict[str, list[str]]] = {}
        self.failed: dict[str, str] = {}
        self.db: Database
        self.alerts: dict[str, Alerts] = {}
        self.open()

    def open(self) -> None:
        options: dict[str, Any] = {"maintenance": False}
        if self.directory is None:
            self.db = hybrid.connect(**options)
        else:
            self.db = hybrid.connect(self.directory, **options)
        self.declare()

    def declare(self) -> None:
        columns = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "DOUBLE"}
        self.db.create_stream("ticks", columns, time="ts", key="k", lateness="2s")

    def watch(self) -> None:
        for name, text in (QUERIES | (MORE if self.directory is None else {})).items():
            if name not in self.alerts:
                named = name if self.directory is not None else None
                self.alerts[name] = self.db.watch(text, name=named, evidence=True)

    def push(self, batch: int) -> None:
        self.db.push("ticks", events(batch), "s", batch * ROWS)

    def fetch(self) -> None:
        for name, alerts in self.alerts.items():
            if name not in self.failed:
                try:
                    table = alerts.fetch()
                except hybrid.DataError as error:
                    self.failed[name] = str(error)
                    continue
                for row in table.to_pylist():
                    key = str(row.get("join_id") or row["match_id"])
                    some = self.rows.setdefault(name, {}).setdefault(key, [])
                    if self.directory is None or repr(row) not in some:  # after a restart rows may come again
                        some.append(repr(row))

    def end(self) -> None:
        """Pushes the last batch, reads everything, closes."""
        self.db.advance("ticks", None)
        self.fetch()
        self.fetch()  # of a query that has failed, what it had found came first
        self.kept = self.db.sql("SELECT ts, k, v FROM ticks ORDER BY ts").arrow().to_pylist()
        self.db.close()

    def reopen(self) -> None:
        """As a user would who has seen an error: closes, opens, and goes on with what has not been taken."""
        self.db.close()
        self.alerts, self.failed = {}, {}
        self.open()
        if self.directory is not None:
            self.watch()


#: The steps of a session. A step may be done twice.
STEPS: dict[str, Callable[[Session], None]] = {
    "watch": Session.watch,
    "push": lambda s: s.push(0),
    "fetch": Session.fetch,
    "push more": lambda s: s.push(1),
    "advance": lambda s: s.db.advance("ticks", START + dt.timedelta(seconds=2 * ROWS)),
    "checkpoint": lambda s: s.db.checkpoint() if s.directory is not None else None,
    "flush": lambda s: s.db.flush(),
    "push again": lambda s: s.push(2),
    "fetch again": Session.fetch,
    "push last": lambda s: s.push(3),
    "close": lambda s: s.db.close() if s.directory is not None else None,
}


#: Lines that begin with these are no points: Python raises nothing there, neither of a signal nor for want of memory,
#: and where a block begins with `try:` or is left, it compiles them outside of the `with` around it.
QUIET = {dis.opmap["NOP"], dis.opmap["LOAD_CONST"], dis.opmap["SWAP"]}


class Disturbance:
    """Counts the lines of our code that the main thread reaches, or the calls of functions of the system, and does
    something at one of them.

    at: which one, from 1 on; 0: none. act: what is done there."""

    def __init__(self, at: int, act: Callable[[], None], calls: bool = False) -> None:
        self.at, self.act, self.calls = at, act, calls
        self.count = 0
        self.where = ""
        self.places: list[str] = []  # of all points, where nothing is done

    def __enter__(self) -> Disturbance:
        if self.calls:
            sys.setprofile(self._called)
        else:
            sys.settrace(self._entered)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        sys.settrace(None)

    def _entered(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        return self._reached if name.startswith(OURS) and "interrupts.py" not in name else None

    def _reached(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and frame.f_code.co_code[frame.f_lasti] not in QUIET:
            self._one(frame)
        return self._reached

    def _called(self, frame: FrameType, event: str, function: Any) -> None:
        if (
            event == "c_call" and getattr(function, "__module__", None) in ("posix", "_io", "io", "fcntl")
            and function.__name__ not in GRANTED
        ):  # fmt: skip
            caller: FrameType | None = frame
            while caller is not None and caller.f_code.co_filename.endswith(BETWEEN):
                caller = caller.f_back
            if caller is not None and caller.f_code.co_filename.startswith(OURS):
                self._one(caller)

    def _one(self, frame: FrameType) -> None:
        self.count += 1
        place = f"{frame.f_code.co_filename.removeprefix(ROOT)}:{frame.f_lineno} {frame.f_code.co_name}"
        if self.at == 0:
            self.places.append(place)
        if self.count == self.at:
            self.where = place
            sys.setprofile(None)
            sys.settrace(None)
            self.act()


def interrupt() -> None:
    """A Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


def interrupted_between_parts(monkeypatch: pytest.MonkeyPatch, rows: int) -> list[int]:
    """Lets a push reach the queries in parts of so many rows. Returns one number: before which part a Ctrl-C comes."""
    monkeypatch.setattr("hybrid.watch.flow.PART_ROWS", rows)
    monkeypatch.setattr("hybrid.watch.flow.PART_LEAST", rows)
    pay, left = Stream.pay, [0]

    def paid(stream: Stream, rows: int) -> Arrival:
        left[0] -= 1
        if left[0] == 0:
            interrupt()
        return pay(stream, rows)

    monkeypatch.setattr(Stream, "pay", paid)
    return left


def raising(error: type[BaseException]) -> Callable[[], None]:
    def act() -> None:
        raise error("no more of it")

    return act


def undisturbed(directory: Path | None) -> Session:
    session = Session(directory)
    for name, step in STEPS.items():
        step(session)
        if name == "close" and directory is not None:
            session.reopen()
    session.end()
    return session


def points(directory: Path | None, calls: bool = False) -> dict[str, list[str]]:
    """Of each step the places of its points, in order."""
    session, found = Session(directory), {}
    for name, step in STEPS.items():
        with Disturbance(0, lambda: None, calls) as disturbance:
            step(session)
        found[name] = disturbance.places
    session.db.close()
    return found


def disturbed(
    directory: Path | None, name: str, at: int, act: Callable[[], None], calls: bool = False, reopen: bool = False
) -> tuple[Session, Disturbance, BaseException | None]:
    """A session in which one step is disturbed at one point; the step is then done again, if the disturbance was seen.

    reopen: the user closes and opens the database first."""
    session = Session(directory)
    seen: BaseException | None = None
    disturbance = Disturbance(at, act, calls)
    for step, do in STEPS.items():
        if step != name:
            try:
                do(session)
            except hybrid.DataError as error:
                if directory is None or "interrupted" not in str(error):
                    raise
                session.reopen()  # which is what the hint says
                do(session)
        else:
            try:
                with disturbance:
                    do(session)
            except (KeyboardInterrupt, MemoryError, OSError, hybrid.DataError, hybrid.QueryError) as error:
                seen = error
                if reopen and directory is not None:
                    session.reopen()
                do(session)
        if step == "close" and directory is not None:
            session.reopen()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hybrid.HybridWarning)
        session.end()
    return session, disturbance, seen
