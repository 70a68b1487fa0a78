"""The events of archives as rows of Spark: of one stream, or of several merged by time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa

from archive.layout import DAY_US, LATE, OFFSET, SEQ, SOURCE, stored_schema, time_name
from archive.place import Place
from archive.reader import RangeRequest
from archive.scan import checked
from archive.spark.session import functions, ignore_pandas, in_words
from archive.spark.task import Search
from archive.spark.types import quoted, spark_type
from archive.sums import FOOTERS
from archive.table_snapshot import TableSnapshot
from matching.batch import Int64Array
from query.errors import DataError, first_line
from query.plan.merge import MergedInput, positions
from query.schema import STREAM, Schema

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Archived:
    """The events to search: those of a table snapshot in a range. request: the range, and late."""

    place: Place
    table: TableSnapshot
    schema: Schema
    request: RangeRequest

    def __str__(self) -> str:
        return f"the archive of {self.schema.name} in {self.place}"


@dataclass(frozen=True, slots=True)
class MergedArchives:
    """The events of several streams, merged by time. schema: the merged columns (query.plan.merge). members: the inputs
    of which they are merged; archives: of each."""

    schema: Schema
    members: tuple[MergedInput, ...]
    archives: tuple[Archived, ...]

    def __str__(self) -> str:
        return " and ".join(map(str, self.archives))


Archives: TypeAlias = Archived | MergedArchives


class SelectedFiles(NamedTuple):
    """The files of an archive that may hold events of its range. files: their indexes in its table. number: of its
    stream among the merged ones."""

    archived: Archived
    files: Int64Array
    number: int


def selected_files(archives: Archives) -> list[SelectedFiles]:
    """Returns the files to read; none of an archive without events in its range."""
    every = (archives,) if isinstance(archives, Archived) else archives.archives
    found = []
    for number, one in enumerate(every):
        index = one.table.select(one.request.low_us, one.request.end_us, {})
        found += [SelectedFiles(one, index, number)] if len(index) else []
    return found


def sources_of(archives: Archives) -> tuple[str, ...]:
    """Returns the sources of all events, as hybrid.rows.merged names those of merged ones."""
    if isinstance(archives, Archived):
        return archives.table.sources
    pairs = zip(archives.members, archives.archives, strict=True)
    return tuple(f"{member.name}/{source}" for member, one in pairs for source in one.table.sources)


def read_files(session: SparkSession, archives: Archives, files: list[SelectedFiles], wanted: Search) -> DataFrame:
    """Returns the stored rows of the range, with the columns for the tasks. files: at least those of one archive."""
    F = functions(session)
    if isinstance(archives, Archived):
        return _read(session, files[0]).select(*map(quoted, wanted.columns.names))
    parts = [_read(session, one).select(*_merged(F, archives, one, wanted)) for one in files]
    whole = reduce(lambda one, other: one.union(other), parts)
    keys = {
        field.name: F.coalesce(*(F.col(quoted(name)).cast(spark_type(wanted.columns.field(field.name).type))
                                 for name in names))
        for field, names in wanted.uneven
    }  # fmt: skip
    return whole.select(*(keys[n].alias(n) if n in keys else F.col(quoted(n)) for n in wanted.columns.names))


def _read(session: SparkSession, files: SelectedFiles) -> DataFrame:
    """Returns the stored rows of an archive in its range, with all columns."""
    F, archived = functions(session), files.archived
    schema, place, request = archived.schema, archived.place, archived.request
    ddl = ", ".join(f"{quoted(field.name)} {spark_type(field.type)}" for field in stored_schema(schema))
    # Only footers are checked here: executors verify the page checksums of what they read.
    checked(place, archived.table, files.files, schema, FOOTERS)
    with in_words_of(archived):
        reader = session.read.option("parquet.page.verify-checksum.enabled", "true").schema(ddl)
        frame = reader.parquet(*(spark_path(place / archived.table.paths[i]) for i in files.files))
    time = F.col(quoted(time_name(schema)))
    if request.low_us is not None:
        frame = frame.where(time >= F.timestamp_micros(F.lit(request.low_us)))
    if request.end_us is not None:
        frame = frame.where(time < F.timestamp_micros(F.lit(request.end_us)))
    return frame if request.late else frame.where(~F.col(LATE))


def _merged(F: Any, archives: MergedArchives, files: SelectedFiles, wanted: Search) -> list[SparkColumn]:
    """Returns the columns of one stream as those of merged rows, but for `uneven` keys; as hybrid.rows.merged does."""
    member, k, n = archives.members[files.number], files.number, len(archives.members)
    own = stored_schema(files.archived.schema)
    places = member.places or positions(archives.schema, member.schema)
    at = dict(zip(archives.schema.names, places, strict=True))
    uneven = {field.name for field, _ in wanted.uneven}
    out = []
    for field in wanted.columns:
        if field.name in uneven:
            continue
        if field.name == STREAM:
            column = F.lit(member.name)
        elif field.name == SOURCE:
            column = F.concat(F.lit(f"{member.name}/"), F.col(SOURCE))
        elif field.name == OFFSET:
            column = F.col(OFFSET)
        elif field.name == SEQ:
            column = F.col(SEQ) * F.lit(n) + F.lit(k)
        else:
            place = at[field.name]
            column = F.lit(None).cast(spark_type(field.type)) if place is None else _cast(F, own[place], field.type)
        out.append(column.alias(field.name))
    return out


def _cast(F: Any, field: pa.Field, type: pa.DataType) -> SparkColumn:
    """Returns a stored column in a stored type that holds all of its values."""
    column = F.col(quoted(field.name))
    if field.type == type:
        return column
    if pa.types.is_date(field.type):  # midnight in UTC, not in the session's time zone
        return F.timestamp_micros(F.unix_date(column).cast("bigint") * F.lit(DAY_US))
    return column.cast(spark_type(type))


def spark_path(place: Place) -> str:
    """Returns a file's path for Spark: with Hadoop's s3a scheme for a store, and with glob characters escaped."""
    root = place.root if place.on_disk else place.root.replace("s3://", "s3a://", 1)
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", root)


@contextmanager
def in_words_of(archives: Archives) -> Iterator[None]:
    """Context manager that turns errors of Spark into DataError."""
    ignore_pandas()
    with in_words(f"Spark could not search {archives}"):
        try:
            yield
        except Exception as error:
            if not re.search(r"PATH_NOT_FOUND|FILE_NOT_EXIST|FileNotFoundException", str(error)):
                raise
            why = f"{archives} cannot be read: {first_line(error)}"
            raise DataError(why, "a file was removed, or executors cannot see it") from None
