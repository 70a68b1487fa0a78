"""The status file of a service, written once a second as a whole, read by `hybrid status` and `hybrid top`."""

from __future__ import annotations

import json
import os
import socket
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archive.place import open_private
from query.errors import DataError
from query.printable import printable_values

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Version of the status file.
VERSION = 1
STATUS_FILE = "status.json"
#: Age in seconds above which a status is stale.
OLD_S = 5.0
#: Seconds without an event after which a source is told to send nothing.
SILENT_S = 10.0
#: Longest line of a column's head, where it has several words.
HEAD_MAX = 9
#: Number of partitions shown, those with the largest lag.
PARTITIONS_SHOWN = 12
#: Seconds without a turn of the loop after which a service is not ready.
READY_S = 10.0
#: The states of a live process.
ALIVE = ("starting", "running", "stopping")


def write_status(directory: Path, status: dict[str, Any]) -> None:
    """Writes the status atomically, readable by its owner only. The mtime is the `written` of the status."""
    part = directory / f"{STATUS_FILE}.part"
    with open(open_private(part, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as out:
        out.write(json.dumps(status))
    os.utime(part, (status["written"], status["written"]))
    os.replace(part, directory / STATUS_FILE)


def touch_status(directory: Path, now: float) -> None:
    """Updates the mtime of the status file, as a sign of life if it cannot be written: this works on a full disk."""
    with suppress(OSError):
        os.utime(directory / STATUS_FILE, (now, now))


def read_status(directory: Path, now: Callable[[], float] = time.time) -> dict[str, Any]:
    """Returns the status with its present `state`: starting, running, stopping, stopped; `gone` if the process no
    longer exists, `halted` if a signal has stopped it, `silent` without a sign of life for OLD_S. A process on another
    host, or in another container, can only be judged by its signs of life. If it lives and cannot write, `trouble` has
    the age of the figures. Raises DataError if there is no readable status."""
    file = directory / STATUS_FILE
    try:
        touched = file.stat().st_mtime
        status: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"no service has run with {directory}", "hybrid run app.toml starts one") from None
    except PermissionError:
        hint = "only the user of the service can read its files: run this command as that user"
        raise DataError(f"{file} cannot be read: permission denied", hint) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}", "hybrid run rewrites it every second") from None
    if not isinstance(status, dict) or not status.keys() >= {"version", "pid", "app", "state", "started", "written"}:
        raise DataError(f"{file} is not the status of a service", "hybrid run rewrites it every second")
    if status["version"] != VERSION:
        raise DataError(f"{file} has version {status['version']}", f"this program reads version {VERSION}")
    if status["state"] in ALIVE:
        here = status.get("host") in (None, socket.gethostname())
        if here and not _alive(status["pid"], status.get("began")):
            status["state"] = "gone"
        elif here and _proc_stat(status["pid"])[:1] in (["T"], ["t"]):
            status["state"] = "halted"
        elif now() - max(status["written"], touched) > OLD_S:
            status["state"] = "silent"
        elif (age := now() - status["written"]) > OLD_S:
            what = f"it cannot be written, and these figures are {_span(age)} old: is the disk full?"
            status["trouble"] = {**status.get("trouble", {}), "status": what}
    return status


def ready(status: dict[str, Any], now: float) -> bool:
    """True if a service takes events now, by its status."""
    return status["state"] == "running" and now - status.get("loop", {}).get("turned", now) <= READY_S


def process_began(pid: int) -> int | None:
    """Returns the start time of a process, in clock ticks since boot; None if unknown. It distinguishes processes that
    had the same number."""
    fields = _proc_stat(pid)
    return int(fields[19]) if len(fields) > 19 else None


def _proc_stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat after the process name, the state first; [] if there are none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _alive(pid: int, began: int | None) -> bool:
    if began is not None and (now := process_began(pid)) is not None:
        return now == began
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def headline(status: dict[str, Any], now: float) -> str:
    """Returns the state of the service in one line."""
    status = printable_values(status)
    app, pid, age = Path(status["app"]).name, status["pid"], now - status["written"]
    old = f" (these figures are {_span(age)} old: the status cannot be written)" if age > OLD_S else ""
    match status["state"]:
        case "running":
            return f"{app} runs as process {pid}, since {_span(now - status['started'])}{old}"
        case "stopped":
            return f"{app} is not running: it was stopped {_span(age)} ago; these are its last figures"
        case "gone":
            return f"{app} is not running: process {pid} ended within the last {_span(age)}; these are its last figures"
        case "halted":
            return f"{app}: process {pid} was stopped by a signal {_span(age)} ago; kill -CONT {pid} resumes it"
        case "starting" | "stopping" as state:
            doing = status.get("loop", {}).get("doing", "")
            return f"{app} is {state} as process {pid}, since {_span(now - status['started'])}: {doing}{old}"
        case state:
            host = status.get("host")
            where = "" if host in (None, socket.gethostname()) else f" on {host}"
            return f"{app}: process {pid}{where} has given no sign of life for {_span(age)} ({state})"


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of things of one kind: a row for each. The first column has the name."""

    kind: str
    columns: tuple[str, ...]
    rows: list[list[Any]]


def parts(status: dict[str, Any], now: float) -> list[Figures]:
    """Returns the figures of a status: of streams, queries, sources with their partitions, and sinks."""
    streams = [
        [name, s["accepted"], s["rate"], "ended" if s["ended"] else (s["watermark"] or "-")[:19], _span(s["lag_s"]),
         _span(s["behind_newest_s"]), s["late"], s["bad"], s["duplicates"]]
        for name, s in status["streams"].items()
    ]  # fmt: skip
    queries = [
        [name, q["state"], q["matches"], q["rows"], q["rate"], q["suppressed"], q["runs"], q["spilled"],
         q["history_reads"], q["waiting_for_history"], q["unread"]]
        for name, q in status["queries"].items()
    ]  # fmt: skip
    counted = [[n, q["sharing"], q["counted_with"]] for n, q in status["queries"].items() if q.get("sharing")]
    known = any(s.get("partitions") for s in status["sources"].values())
    sources = [
        [name, s["state"], s["stream"], s["queued"], *([s["lag"], s["lost"]] if known else [])]
        for name, s in status["sources"].items()
    ]
    places = [
        [f"{name}: {partition}", p["position"], p["end"], p["lag"]]
        for name, s in status["sources"].items()
        for partition, p in s.get("partitions", {}).items()
    ]  # fmt: skip
    furthest = sorted(places, key=lambda place: -(place[3] or 0))[:PARTITIONS_SHOWN]
    more = f" ({len(furthest)} of {len(places)})" if len(furthest) < len(places) else ""
    sinks = [
        [name, s["rows"], s["rate"], s["unread"], _span(s["oldest_s"]) if s["oldest_s"] else "-", s["failures"]]
        for name, s in status["sinks"].items()
    ]  # fmt: skip
    found = [
        ("stream", "events|per s|watermark|behind the clock|the newest|late|bad|again", streams),
        ("query", "state|matches|rows|per s|suppressed|runs|spilled|reads|waiting|unread", queries),
        ("trends of", "sharing|counted with others", counted),
        ("source", "state|stream|read ahead" + ("|behind the end|lost" if known else ""), sources),
        (f"partition{more}", "position|end|behind the end", furthest),
        ("sink", "rows|per s|unread|oldest|failures", sinks),
    ]
    return [Figures(kind, tuple(columns.split("|")), rows) for kind, columns, rows in found if rows]


def remarks(status: dict[str, Any], now: float) -> list[str]:
    """Returns what is to be said of streams and queries besides their figures."""
    found = [
        f"the watermark of {name} waits for {s['held_by']}, {delivers(s['held_s'])}"
        for name, s in status["streams"].items()
        if s["held_by"] is not None
    ]
    for name, until in status.get("removed", {}).items():
        found.append(f"query {name} was removed from the file; it keeps running for {_span(until - now)}")
    return found


def delivers(silent_s: float | None) -> str:
    """Returns what a source does that holds the watermark back. silent_s: since its last event."""
    if silent_s is None or silent_s < SILENT_S:
        return "which is behind the others"
    return f"which has sent nothing for {_span(silent_s)}"


def lines(status: dict[str, Any], now: float) -> list[str]:
    """Returns the status as plain lines for pipes and logs: one for each stream, query, source and sink."""
    status = printable_values(status)
    found = [headline(status, now)]
    for part in parts(status, now):
        kind = part.kind.partition(" (")[0]
        for name, *figures in part.rows:
            told = ", ".join(f"{column} {_cell(value)}" for column, value in zip(part.columns, figures))
            found.append(f"{kind} {name}: {told}")
    return found + remarks(status, now) + [f"{where}: {what}" for where, what in status["trouble"].items()]


def rendered(status: dict[str, Any], now: float, width: int = 80) -> RenderableType:
    """Returns the status as tables for a terminal of so many columns. A table that is wider leaves out what is 0, then
    becomes a paragraph for each row: a figure is never cut."""
    from rich.console import Group
    from rich.text import Text

    status = printable_values(status)
    running = status["state"] in ALIVE
    shown: list[RenderableType] = [Text(headline(status, now), style="bold" if running else "bold red")]
    for part in parts(status, now):
        shown.append(Text())
        cells = [[str(name), *map(_short, figures)] for name, *figures in part.rows]
        columns = list(zip((part.kind, *part.columns), *cells))
        some = [column for i, column in enumerate(columns) if i == 0 or set(column[1:]) - {"0", "0.0", "-"}]
        table = _table(columns, width) or _table(some, width)
        if table:
            heads = len(table) - len(cells)
            shown += [Text(line, style="dim" if i < heads else "") for i, line in enumerate(table)]
            continue
        for row in cells:
            shown.append(Text(f"{part.kind} {row[0]}", style="bold"))
            told = ", ".join(f"{column} {cell}".replace(" ", "\0") for column, cell in zip(part.columns, row[1:]))
            wrapped = textwrap.wrap(told.replace(",\0", ", "), width, initial_indent="  ", subsequent_indent="  ")
            shown += [Text(line.replace("\0", " ")) for line in wrapped]
    if said := remarks(status, now):
        shown += [Text(), *map(Text, said)]
    if status["trouble"]:
        shown += [Text(), *(Text(f"{where}: {what}", style="red") for where, what in status["trouble"].items())]
    return Group(*shown)


def _table(columns: Sequence[Sequence[str]], width: int) -> list[str]:
    """Returns columns, each with its head first, as the lines of a table; [] if these are wider. The head may have
    several lines."""
    heads = [textwrap.wrap(column[0], HEAD_MAX, break_long_words=False) for column in columns]
    deep = max(map(len, heads))
    whole = [[""] * (deep - len(head)) + head + list(column[1:]) for head, column in zip(heads, columns)]
    widths = [max(map(len, column)) for column in whole]
    if sum(widths) + 2 * (len(widths) - 1) > width:
        return []
    first, *others = ([cell.rjust(w) for cell in column] for column, w in zip(whole, widths))
    first = [cell.strip().ljust(widths[0]) for cell in first]
    return ["  ".join(row).rstrip() for row in zip(first, *others)]


def _short(value: Any) -> str:
    """Returns a figure of a table: from 100,000 on its first three digits."""
    if isinstance(value, int | float):
        for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
            if abs(value) >= max(size, 1e5):
                return f"{value / size:,.{max(0, 3 - len(str(int(abs(value) / size))))}f} {unit}"
    return _cell(value)


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case int() | float():
            return f"{value:,}"
        case _:
            return str(value)


def _span(seconds: float | None) -> str:
    """Returns a duration for people: 4.2 s, 3 min, 5 h, 12 d."""
    if seconds is None:
        return "-"
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.1f} s"
