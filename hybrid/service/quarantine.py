"""Rejected payloads of sources and rejected rows of sinks: counted, logged, and stored as dead letters."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from hybrid.service import dead_letters
from hybrid.service.context import Context
from hybrid.service.passed import last_lines
from hybrid.service.refused import tell_refused, tell_refused_row
from hybrid.service.source_reader import line_of
from live.sources.base import Bad

#: Prefix of the files with rows that a sink rejected.
REFUSED_ROWS = "refused-"


class Quarantine:
    """The dead letters of a service. bad: the number of rejected payloads, by stream in lower case. Payloads come from
    the thread of the loop, rows from those of the sinks."""

    def __init__(self, context: Context) -> None:
        self.bad: Counter[str] = Counter()
        self._context = context
        self._told_before: dict[Path, frozenset[str]] = {}

    def payload(self, stream: str, bad: Bad) -> None:
        """Counts a rejected payload, and adds it to the dead letters of the stream."""
        context = self._context
        app = context.app
        self.bad[stream] += 1
        where = bad.source if bad.offset is None else f"{bad.source}, {bad.offset}"
        tell_refused(context.repeated, stream, where, bad.reason, context.clock.ticks())
        path = app.database.path
        name = next(n for n in app.streams if n.lower() == stream)
        local = path is not None and "://" not in path
        file = (Path(app.place(str(path))) if local else app.state) / name / "bad.ndjson"
        line = line_of(bad)
        if file not in self._told_before:
            self._told_before[file] = last_lines(file)
        if bad.offset is not None and line in self._told_before[file]:
            return  # written before a crash, and read again after it
        where = f"dead letters of {name}"
        try:
            removed = dead_letters.append(file, line, app.limits.dead_letter_bytes)
        except OSError as error:
            context.trouble.fault(where, f"{file} cannot be written: {error.strerror}; missing there: {line}")
            return
        context.trouble.well(where)
        if removed is not None:
            context.say(f"{where}: the oldest file, {removed.name}, was deleted for newer ones")

    def row(self, sink: str, id: str, row: str, reason: str) -> None:
        """Stores a row that a sink rejected. Runs in the sink's thread. Raises OSError."""
        context = self._context
        file = context.app.state / f"{REFUSED_ROWS}{sink}.ndjson"
        line = json.dumps({"sink": sink, "id": id, "reason": reason, "row": json.loads(row)}, ensure_ascii=False)
        removed = dead_letters.append(file, line, context.app.limits.dead_letter_bytes)
        tell_refused_row(context.repeated, sink, id, reason, file.name, context.clock.ticks())
        if removed is not None:
            context.say(f"sink {sink}: the oldest file, {removed.name}, was deleted for newer ones")
