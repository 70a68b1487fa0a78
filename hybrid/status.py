"""What a service says of itself once a second, in a file: written whole, read by `hybrid status` and `hybrid top`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archive.place import open_private
from query.errors import DataError

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Of the files that a service keeps in its directory.
VERSION = 1
STATUS_FILE = "status.json"
#: A status older than this, in seconds, is not that of a service that is well.
OLD_S = 5.0
#: So many partitions of sources are shown, those that are furthest behind.
PARTITIONS_SHOWN = 12


def write_status(directory: Path, status: dict[str, Any]) -> None:
    """Atomic; for its owner alone."""
    part = directory / f"{STATUS_FILE}.part"
    with open(open_private(part, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as out:
        out.write(json.dumps(status))
    os.replace(part, directory / STATUS_FILE)


def read_status(directory: Path, now: Callable[[], float] = time.time) -> dict[str, Any]:
    """The status with `state` as it is now: running, stopped; `gone` where the process is no more, `silent` where it
    has not written for some seconds. Raises DataError where there is none."""
    file = directory / STATUS_FILE
    try:
        status: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"there is no service with {directory}", "hybrid run app.toml starts one") from None
    except PermissionError:
        hint = "its files are for the user who runs the service: ask as that one"
        raise DataError(f"{file} cannot be read: permission denied", hint) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}", "hybrid run writes it anew every second") from None
    if not isinstance(status, dict) or not status.keys() >= {"version", "pid", "app", "state", "started", "written"}:
        raise DataError(f"{file} is no status of a service", "hybrid run writes it anew every second")
    if status["version"] != VERSION:
        raise DataError(f"{file} has version {status['version']}", f"this program reads version {VERSION}")
    if status["state"] == "running":
        if not _alive(status["pid"]):
            status["state"] = "gone"
        elif now() - status["written"] > OLD_S:
            status["state"] = "silent"
    return status


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def headline(status: dict[str, Any], now: float) -> str:
    """Whether it runs, in a line."""
    app, pid, age = Path(status["app"]).name, status["pid"], now - status["written"]
    match status["state"]:
        case "running":
            return f"{app} runs as process {pid}, since {_span(now - status['started'])}"
        case "stopped":
            return f"{app} is not running: it was stopped {_span(age)} ago; this is how it was then"
        case "gone":
            return f"{app} is not running: process {pid} is gone, {_span(age)} at the most; this is how it was then"
        case state:
            return f"{app}: process {pid} has said nothing for {_span(age)} ({state})"


def rendered(status: dict[str, Any], now: float) -> RenderableType:
    """The status as tables for a terminal."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def table(columns: str, rows: list[list[Any]]) -> Table:
        found = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for i, column in enumerate(columns.split("|")):
            found.add_column(column, justify="left" if i == 0 else "right", no_wrap=i == 0 or column == "watermark")
        for row in rows:
            found.add_row(*map(_cell, row))
        return found

    running = status["state"] == "running"
    parts: list[RenderableType] = [Text(headline(status, now), style="bold" if running else "bold red")]
    streams = [
        [name, s["accepted"], s["rate"], "ended" if s["ended"] else (s["watermark"] or "-")[:21], _span(s["lag_s"]),
         _span(s["behind_newest_s"]), s["late"], s["bad"], s["duplicates"]]
        for name, s in status["streams"].items()
    ]  # fmt: skip
    parts.append(table("stream|events|per s|watermark|behind the clock|the newest|late|bad|again", streams))
    for name, s in status["streams"].items():
        if s["held_by"] is not None:
            parts.append(Text(f"the watermark of {name} waits for {s['held_by']}, silent since {s['held_since']}"))
    if status["queries"]:
        queries = [
            [name, q["state"], q["matches"], q["rows"], q["rate"], q["suppressed"], q["runs"], q["spilled"],
             q["history_reads"], q["waiting_for_history"], q["unread"]]
            for name, q in status["queries"].items()
        ]  # fmt: skip
        parts.append(table("query|state|matches|rows|per s|suppressed|runs|spilled|reads|waiting|unread", queries))
    if status["sources"]:
        known = any(s.get("partitions") for s in status["sources"].values())
        sources = [
            [name, s["state"], s["stream"], s["queued"], *([s["lag"], s["lost"]] if known else [])]
            for name, s in status["sources"].items()
        ]
        parts.append(table("source|state|stream|read ahead" + ("|behind the end|lost" if known else ""), sources))
        places = [
            [f"{name}: {partition}", p["position"], p["end"], p["lag"]]
            for name, s in status["sources"].items()
            for partition, p in s.get("partitions", {}).items()
        ]  # fmt: skip
        if places:
            furthest = sorted(places, key=lambda place: -(place[3] or 0))[:PARTITIONS_SHOWN]
            more = f" ({len(furthest)} of {len(places)})" if len(furthest) < len(places) else ""
            parts.append(table(f"partition{more}|position|end|behind the end", furthest))
    if status["sinks"]:
        sinks = [
            [name, s["rows"], s["rate"], s["unread"], _span(s["oldest_s"]) if s["oldest_s"] else "-", s["failures"]]
            for name, s in status["sinks"].items()
        ]  # fmt: skip
        parts.append(table("sink|rows|per s|unread|oldest|failures", sinks))
    for where, what in status["trouble"].items():
        parts.append(Text(f"{where}: {what}", style="red"))
    return Group(*parts)


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case int() | float():
            return f"{value:,}"
        case _:
            return str(value)


def _span(seconds: float | None) -> str:
    """A length of time for people: 4.2 s, 3 min, 5 h, 12 d."""
    if seconds is None:
        return "-"
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.1f} s"
