"""`hybrid archive`: fills, inspects, maintains and searches the archive of a database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hybrid.cli.ingest import Memory, ingest
from hybrid.cli.output import FileFormats, Formats, RowFormat, report, say, write

if TYPE_CHECKING:
    import pyarrow as pa

    from archive.table import Table
    from query.errors import DataError

app = typer.Typer(no_args_is_help=True, help="Fills and maintains the archive of a database.", rich_markup_mode=None)
app.command()(ingest)

Where = Annotated[str, typer.Option("--directory", "-d", help="The database: a directory, or s3://bucket/prefix.")]
Stream = Annotated[str | None, typer.Argument(help="One stream. Default: all streams.")]


@app.command()
def stat(directory: Where, stream: Stream = None, format: Formats = RowFormat.table) -> None:
    """Shows files, rows, bytes and times of each stream."""
    import pyarrow as pa

    from archive.layout import is_by_key
    from hybrid.rows.times import show_us

    rows = []
    for table in _tables(directory, stream):
        snapshot = table.snapshot()
        closed = sum(map(is_by_key, snapshot.paths))
        span = snapshot.span_us()
        rows.append({
            "stream": table.schema.name,
            "version": snapshot.version,
            "files": len(snapshot.paths),
            "by_key": closed,
            "rows": int(snapshot.rows.sum()),
            "bytes": int(snapshot.sizes.sum()),
            "first": None if span is None else show_us(span[0]),
            "last": None if span is None else show_us(span[1]),
            "sources": len(snapshot.sources),
        })
    write(pa.Table.from_pylist(rows), format, None)


@app.command()
def compact(
    directory: Where,
    stream: Stream = None,
    all_periods: Annotated[
        bool, typer.Option("--all", help="Include the day of the newest event, which may be incomplete.")
    ] = False,
    memory_limit: Annotated[str, typer.Option(help="Memory for sorting; the rest spills to local disk.")] = "1GB",
    spark: Annotated[
        str | None,
        typer.Option(metavar="MASTER", help="Rewrite past days by Spark: local[*], spark://host:7077, sc://host."),
    ] = None,
    memory: Memory = None,
) -> None:
    """Rewrites small files into large ones, and sorts files of past days by key."""
    from archive import upkeep
    from hybrid.cli.output import progress
    from hybrid.rows.words import counted_are

    for table in _tables(directory, stream):
        before = table.snapshot()
        edge_us = 2**62 if all_periods else None
        with upkeep.one_at_a_time(table.directory) as mine:
            if not mine:
                say(f"{table.schema.name}: another process is compacting it")
                continue
            if spark is not None:
                _compact_by_spark(table, _edge(table, edge_us), spark, memory)
            total = sum(r.rows for r in upkeep.plan_rewrites(before, _edge(table, edge_us)))
            with progress(f"compacting {table.schema.name}, rows", total) as advance:
                for done in upkeep.compact(table, closed_us=edge_us, memory_limit=memory_limit):
                    advance(done.rows)
        files, now = len(before.paths), len(table.snapshot().paths)
        say(f"{table.schema.name}: {counted_are(files, 'file')} now {now:,}")


@app.command()
def expire(
    directory: Where,
    stream: Stream = None,
    before: Annotated[
        str | None, typer.Option(help="Remove events before this time. Default: the retention of the stream.")
    ] = None,
    grace: Annotated[int, typer.Option(help="Hours that removed files stay on disk for running queries.", min=0)] = 24,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print actions without doing them.")] = False,
) -> None:
    """Removes files with only expired events from the archive, and deletes files that were removed before the grace
    period or left by a crash."""
    from archive import upkeep
    from hybrid.rows.times import instant_us, show_us
    from hybrid.rows.words import counted

    for table in _tables(directory, stream):
        snapshot = table.snapshot()
        edge_us = None if before is None else instant_us(before, "--before")
        span = snapshot.span_us()
        if edge_us is None and table.schema.retention_us is not None and span is not None:
            edge_us = span[1] - table.schema.lateness_us - table.schema.retention_us
        if edge_us is not None:
            old = snapshot.max_us < edge_us
            files, events = counted(int(old.sum()), "file"), counted(int(snapshot.rows[old].sum()), "event")
            said = f"{files}, {events} before {show_us(edge_us)}"
            if not dry_run:
                upkeep.expire(table, edge_us)
            say(f"{table.schema.name}: {'would remove' if dry_run else 'removed'} {said}")
        deleted = upkeep.vacuum(table, grace, dry_run)
        say(f"{table.schema.name}: {'would delete' if dry_run else 'deleted'} {counted(len(deleted), 'file')}")


@app.command()
def rewind(
    directory: Where,
    stream: Annotated[str, typer.Argument(help="The stream.")],
    to: Annotated[
        str | None, typer.Option(help="Set aside events after this time, such as '2024-01-02 10:00'. Default: now.")
    ] = None,
) -> None:
    """Resets the watermark of a stream, after an event or a clock far ahead made all other events late.

    Events after the time are set aside: they stay in the archive as late events, and each adds a line to the dead
    letters of the stream. Later arrivals are classified as on time or late again, and live queries replay them. Stop
    the service first; its next start delivers the new rows."""
    from hybrid.cli.output import progress
    from hybrid.database.database import Database
    from hybrid.rows.times import show_us
    from hybrid.rows.words import counted, counted_are

    _chosen(directory, stream)  # raises if missing; Database would create it
    with progress(f"opening {directory}"):
        db = Database(directory, maintenance=False, ticking=False)
    with db:
        done = db.rewind(stream, to, abandon=True)
    if "://" not in directory:
        _as_dead_letters(Path(directory) / done.stream / "bad.ndjson", done.aside)
    say(f"{done.stream}: {counted_are(done.aside.num_rows, 'event')} set aside")
    later = counted(done.replayed, "later event")
    say(f"of {later}, {done.on_time:,} late ones are now on time, {done.late:,} are now late")
    say(f"the watermark is {show_us(done.watermark_us) or 'none'}")
    if done.queries:
        say(f"queries that replayed these events: {', '.join(done.queries)}")
    if done.lost:
        say(f"queries that may miss a match, as not all their events are kept: {', '.join(done.lost)}")


@app.command()
def verify(
    directory: Where,
    stream: Stream = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read all rows: times, sources, duplicates.")] = False,
) -> None:
    """Compares each table with its files, and checks the logs unless a process has the database open. Exit code 1:
    faults found."""
    from archive import upkeep
    from archive.place import place_of
    from archive.sums import has_sums
    from hybrid.cli.output import progress
    from hybrid.database.pattern_file import patterns_fault
    from hybrid.database.repair import declaration_fault
    from hybrid.rows.words import counted
    from query.errors import DataError

    wrong = False
    for name, table in _each(directory, stream):
        fault = declaration_fault(place_of(directory) / name)
        if fault is not None:
            wrong = True
            report(f"{name}: broken: {fault}")
        if isinstance(table, DataError):
            wrong = True
            report(f"{name}: broken: {table}")
            continue
        count = len(table.snapshot().paths)
        with progress(f"verifying {name}, files", count) as advance:
            found = upkeep.verify(table, deep, lambda done, of: advance(1))
        kinds = Counter(finding.kind for finding in found)
        for finding in found:
            if finding.kind != "waiting":
                report(f"{name}: {finding.kind}: {finding.path + ' ' if finding.path else ''}{finding.message}")
        wrong |= kinds["broken"] > 0
        plain = sum(not has_sums(path) for path in table.snapshot().paths)
        if plain:
            say(f"{name}: {counted(plain, 'file')} without checksums, from an earlier release or another program")
        beside = f"{counted(kinds['waiting'], 'removed file')} and {kinds['orphan']:,} left by a crash"
        beside = f"; hybrid archive expire deletes {beside}"
        said = f"{name}: {counted(count, 'file')}, {counted(kinds['broken'], 'fault')}"
        say(said + (beside if kinds["waiting"] or kinds["orphan"] else ""))
    if (message := patterns_fault(place_of(directory))) is not None:
        wrong = True
        report(f"patterns: broken: {message}")
    for name, message in _log_faults(directory, stream):
        wrong = True
        report(f"{name}: broken: {message}")
    if wrong:
        say(f"restore broken files from a backup, if possible; then run hybrid archive repair -d {directory}")
        raise typer.Exit(1)


def _log_faults(directory: str, stream: str | None) -> list[tuple[str, str]]:
    """Returns (stream, fault) pairs of the logs; none while a process has the database open."""
    from archive.place import place_of
    from archive.writer import WriterLocked, claim
    from hybrid.database.repair import log_faults
    from query.errors import DataError

    place, found = place_of(directory), []
    if not place.on_disk:
        return []
    names = _chosen(directory, stream)
    try:
        writer = claim(place, [])
    except WriterLocked:
        say("logs are not checked: a process has the database open")
        return []
    except DataError:  # a read-only disk
        say("logs are not checked: the directory is not writable")
        return []
    try:
        for name in names:
            try:
                found += [(name, message) for message in log_faults(place / name)]
            except DataError as error:
                found.append((name, str(error)))
    finally:
        writer.release()
    return found


@app.command()
def repair(directory: Where, stream: Stream = None) -> None:
    """Sets damaged data aside, restores it from copies, and reports missing events. Close the database first. Deletes
    nothing."""
    from archive.place import place_of
    from archive.writer import claim
    from hybrid.cli.output import progress
    from hybrid.database.repair import mend, mend_patterns

    place = place_of(directory)
    names = _chosen(directory, stream)
    writer = claim(place, [])
    try:
        for one in mend_patterns(place):
            report(f"patterns: {one}")
        for name in names:
            with progress(f"repairing {name}"):
                done = mend(place / name)
            for one in done:
                report(f"{name}: {one}")
            lost = sum(bool(one.missing or one.again) for one in done)
            faults = f"{len(done):,} fault{'s' if len(done) > 1 else ''} repaired"
            more = f"; {lost:,} of them lost events, see above" if lost else ""
            say(f"{name}: {faults}{more}" if done else f"{name}: no faults")
    finally:
        writer.release()


@app.command()
def snapshot(
    target: Annotated[str, typer.Argument(help="Target of the copy: a directory, or s3://bucket/prefix.")],
    directory: Where,
) -> None:
    """Copies a database, even while another process writes to it: archive, log and checkpoints, as of one moment. An
    existing copy gets only new files."""
    from archive.place import place_of
    from hybrid.cli.output import progress
    from hybrid.database.backup import snapshot as copy
    from hybrid.rows.words import counted

    with progress(f"copying {directory}"):
        done = copy(place_of(directory), place_of(target))
    say(f"{counted(done.streams, 'stream')} in {target}: {counted(done.files, 'data file')} of {done.bytes:,} bytes "
        f"copied, {done.known:,} already there")  # fmt: skip


@app.command()
def search(
    text: Annotated[str, typer.Argument(help="The statement, or a file with it.")],
    directory: Where,
    since: Annotated[str | None, typer.Option("--from", help="Events at or after this time.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="Events before this time.")] = None,
    late: Annotated[bool, typer.Option("--late/--on-time", help="Include late events.")] = True,
    spark: Annotated[
        str | None,
        typer.Option(metavar="MASTER", help="Search by Spark: local[*], spark://host:7077 or sc://host:15002."),
    ] = None,
    memory: Memory = None,
    format: FileFormats = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write to this file, not to stdout. Its suffix is the default of -f."),
    ] = None,
    evidence: Annotated[bool, typer.Option("--evidence", help="Write the matched events instead of the rows.")] = False,
) -> None:
    """Searches the archive in bounded memory, without opening the database: a service may be running.

    Ranges of keys are matched in parallel, with --spark in Spark's tasks. --from and --to bound the events of each
    pattern; times are written as in SQL, 2024-01-02 or '2024-01-02 10:00'."""
    from archive.place import place_of
    from archive.snapshot import HistorySnapshot
    from hybrid.cli.given import query_text
    from hybrid.database.pattern_file import read_patterns
    from hybrid.rows.duck import interruptible
    from hybrid.rows.limited import limited
    from hybrid.rows.times import instant_us
    from hybrid.statement.progress import of_statement, progress
    from hybrid.statement.relations import Relations
    from hybrid.statement.statement import answer
    from hybrid.statement.stream_input import StreamInput
    from query.language.named import used_patterns

    low_us = None if since is None else instant_us(since, "--from")
    high_us = None if until is None else instant_us(until, "--to")
    streams = {}
    for table in _tables(directory, None):
        snapshot = table.snapshot()
        span = snapshot.span_us()
        history = HistorySnapshot(table.schema, (), tuple(sorted(snapshot.sources)), table.directory, snapshot)
        first_us = None if span is None else span[0]
        streams[table.schema.name.lower()] = StreamInput(table.schema, history, first_us, late, low_us, high_us)
    statement = query_text(text)
    by_spark = None
    if spark is not None:
        from archive.spark.session import spark_session
        from hybrid.statement.on_spark import OnSpark

        by_spark = OnSpark(spark_session(spark, memory=memory))
    texts = {key: pattern.text for key, pattern in read_patterns(place_of(directory)).items()}
    used = used_patterns(statement, texts, list(streams))
    given = Relations(statement, {}, streams, search_rows_min=-1, spark=by_spark, patterns=used)
    with (
        interruptible(),
        limited(statement, None, None) as stop,
        progress(of_statement(stop)),
        given.open() as relations,
    ):
        stop.bytes_max = relations.bytes_max
        result = answer(statement, relations)
    write((result.evidence() if evidence else result).arrow(), format, output)
    for alias, searched in relations.reports.items():
        say(f"{alias}: {searched}")


def _as_dead_letters(file: Path, events: pa.Table) -> None:
    """Appends a line for each event that was set aside to the dead letters of its stream."""
    import json

    from hybrid.service.source_reader import line_of
    from live.sources.base import Bad

    with open(file, "a", encoding="utf-8") as out:
        for row in events.to_pylist():
            source, offset = row.pop("_source"), row.pop("_offset")
            raw = json.dumps(row, default=str, ensure_ascii=False).encode()
            out.write(line_of(Bad(source, offset, raw, "set aside by hybrid archive rewind: too far ahead")) + "\n")


def _compact_by_spark(table: Table, edge_us: int, spark: str, memory: str | None) -> None:
    """Rewrites files of past days by Spark, in one commit."""
    from archive import upkeep
    from archive.spark.compact import compact as by_spark
    from archive.spark.session import spark_session

    rewrites = upkeep.plan_rewrites(table.snapshot(), edge_us)
    paths = [path for rewrite in rewrites if rewrite.unit is not None for path in rewrite.paths]
    if paths and by_spark(spark_session(spark, memory=memory), table.directory, paths) is None:
        say(f"{table.schema.name}: another process committed first; Spark's files are not used")


def _edge(table: Table, edge_us: int | None) -> int:
    from archive import upkeep

    return upkeep.closed_before_us(table.snapshot(), table.schema) if edge_us is None else edge_us


def _tables(directory: str, stream: str | None) -> Iterator[Table]:
    from query.errors import DataError

    for _, table in _each(directory, stream):
        if isinstance(table, DataError):
            raise table
        yield table


def _each(directory: str, stream: str | None) -> Iterator[tuple[str, Table | DataError]]:
    """Yields the tables of a database by name, or the error of a table that cannot be opened. Raises DataError if the
    database or the stream does not exist."""
    from archive.place import place_of
    from archive.table import Table
    from query.errors import DataError

    place = place_of(directory)
    for name in _chosen(directory, stream):
        try:
            yield name, Table.open(place / name / "table")
        except DataError as error:
            yield name, error


def _chosen(directory: str, stream: str | None) -> list[str]:
    """Returns the stream names of a database, or the one given. Raises DataError if the database or the stream does not
    exist."""
    from archive.place import place_of
    from hybrid.watch.declaration import stream_names
    from query.errors import DataError, nearest

    place = place_of(directory)
    names = stream_names(place)
    if not names:
        raise DataError(f"database {directory} does not exist", "hybrid.connect creates one")
    chosen = [name for name in names if stream is None or name.lower() == stream.lower()]
    if not chosen:
        raise DataError(f"{directory} has no stream {stream}", nearest(str(stream), names))
    return chosen
