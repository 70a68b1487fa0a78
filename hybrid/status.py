"""What a service says of itself once a second, in a file: written whole, read by `hybrid status` and `hybrid top`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from query.errors import DataError

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Of the files that a service keeps in its directory.
VERSION = 1
STATUS_FILE = "status.json"
#: A status older than this, in seconds, is not that of a service that is well.
OLD_S = 5.0


def write_status(directory: Path, status: dict[str, Any]) -> None:
    """Atomic."""
    part = directory / f"{STATUS_FILE}.part"
    part.write_text(json.dumps(status), encoding="utf-8")
    os.replace(part, directory / STATUS_FILE)


def read_status(directory: Path, now: Callable[[], float] = time.time) -> dict[str, Any]:
    """The status with `state` as it is now: running, stopped; `gone` where the process is no more, `silent` where it
    has not written for some seconds. Raises DataError where there is none."""
    file = directory / STATUS_FILE
    try:
        status: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"there is no service with {directory}", "hybrid run app.toml starts one") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}", "hybrid run writes it anew every second") from None
    if status.get("version") != VERSION:
        raise DataError(f"{file} has version {status.get('version')}", f"this program reads version {VERSION}")
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
        sources = [[name, s["state"], s["stream"], s["queued"]] for name, s in status["sources"].items()]
        parts.append(table("source|state|stream|read ahead", sources))
    if status["sinks"]:
        sinks = [[name, s["rows"], s["rate"], s["unread"], s["failures"]] for name, s in status["sinks"].items()]
        parts.append(table("sink|rows|per s|unread|failures", sinks))
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
