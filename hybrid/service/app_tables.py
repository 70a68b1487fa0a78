"""The tables of an app file, as pydantic models. A field has a type, a default and a description; its type is the whole
check of a value."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from hybrid.rows.times import BadTime, NotADuration, duration_us, instant_us, positive_us


def _microseconds(read: Callable[[Any, str], int], value: Any) -> int:
    """Returns a time or a duration as `read` does; raises ValueError with a BadTime, as pydantic expects."""
    try:
        return read(value, "it")
    except NotADuration as error:
        hint = 'write a number and a unit of fixed length, such as "500 ms", "2s" or "400 days"'
        raise ValueError(NotADuration(error.what, value, error.reason, hint)) from None
    except BadTime as error:
        raise ValueError(error) from None


def _duration(value: Any) -> timedelta:
    return timedelta(microseconds=_microseconds(duration_us, value))


def _instant(value: Any) -> int:
    if not isinstance(value, (str, date)):
        hint = "write a time, such as 2024-01-01 or 2024-01-01T09:30:00"
        raise ValueError(BadTime("it", value, ", not a point in time", hint))
    return _microseconds(instant_us, value)


def _names(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _positive(value: Any) -> timedelta:
    return timedelta(microseconds=_microseconds(positive_us, value))


def _ahead(value: Any) -> timedelta | None:
    return None if value == "off" else _positive(value)


Duration = Annotated[timedelta, BeforeValidator(_duration)]
#: A duration above 0.
Positive = Annotated[timedelta, BeforeValidator(_positive)]
#: Longest lead of an event over the clock; None: no limit.
Ahead = Annotated[timedelta | None, BeforeValidator(_ahead)]
Instant = Annotated[int, BeforeValidator(_instant)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Sharing: TypeAlias = Literal["dynamic", "static", "hamlet", "none"]
Count = Annotated[int, Field(gt=0)]
Payload: TypeAlias = Literal["json", "avro", "arrow"]
Times: TypeAlias = Literal["iso", "s", "ms", "us", "ns"]
Missing: TypeAlias = Literal["error", "null"]
Port = Annotated[int, Field(gt=0, le=65535)]


class AppTable(BaseModel):
    """One table of the file. The text below a field is its hint in errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class DatabaseTable(AppTable):
    path: str | None = None
    """the directory or s3://bucket/prefix of the database; default: in memory, not stored"""
    options: dict[str, str] = {}
    """options of the store, such as aws_endpoint_url"""
    memory_limit: str | None = None
    """the limit of partial matches, and that of DuckDB for reading history, such as "2GB" each"""
    checkpoint: Positive = timedelta(seconds=10)
    """the interval between checkpoints, such as "10s" or "1 min" """
    log: Literal["fsync", "os", "none"] | None = None
    """the write-ahead log of events: fsync, os or none; default: os on disk, none in a store, which has no log"""
    state: str | None = None
    """the local directory of status and cursors; default: <path>/_service on disk"""
    spark: str | None = None
    """the Spark that searches large ranges of history, such as spark://host:7077; default: none"""
    spark_events: Annotated[int, Field(ge=0)] | None = None
    """a range of history with more events is large; default: 100 million"""
    sharing: Sharing = "dynamic"
    """how the trends of queries are counted together: dynamic, static, hamlet or none"""
    files: Names = ()
    """the files that queries may read: a file, a directory with all its files, or a list; default: none"""


class StreamTable(AppTable):
    columns: dict[str, str]
    """column names with DuckDB types, { ts = "TIMESTAMP", price = "DOUBLE" }"""
    time: str
    """the column of the event time"""
    key: Names = ()
    """the column, or list of columns, that most queries partition by"""
    order: Names = ()
    """the tie columns, which order events of equal time"""
    lateness: Duration = timedelta(0)
    """the longest delay of an event behind the newest one, such as "2s"; default: 0"""
    retention: Positive | None = None
    """how long events are kept, such as "400 days"; default: without limit"""
    idle: Positive | None = None
    """a source silent for so long, such as "30s", no longer holds the watermark"""
    heartbeat: Positive | None = None
    """after so long without events from any source, event time follows the clock with that delay"""
    max_ahead: Ahead = timedelta(days=1)
    """the longest lead of an event over the clock, such as "1 hour", or "off"; other events are quarantined"""
    late: str | None = None
    """the sink of late events"""


class CommonSourceTable(AppTable):
    """The keys of all sources."""

    stream: str
    """the stream that takes the events"""


class RecordSourceTable(CommonSourceTable):
    """A source of records from which columns are read."""

    times: Times = "iso"
    """the form of times: iso, or s, ms, us or ns since 1970"""
    missing: Missing = "error"
    """the meaning of a declared column that a record lacks: error or null"""
    finer: Literal["error", "cut"] = "error"
    """the handling of times finer than a microsecond: error or cut"""


class PayloadSourceTable(RecordSourceTable):
    """A source of messages."""

    format: Payload = "json"
    """the format of payloads: json, avro or arrow"""
    batched: bool = False
    """true if a payload has several rows"""
    avro_schema: str | None = None
    """the file with the schema of plain Avro records"""


class Mqtt(AppTable):
    """The connection to an MQTT broker."""

    host: str
    """the address of the broker"""
    port: Port = 1883
    """the port of the broker"""
    user: str | None = None
    """the user name at the broker"""
    password: str | None = None
    """the password of the user"""
    tls: bool = False
    """true to encrypt the connection"""


class FileSourceTable(RecordSourceTable):
    type: Literal["file"]
    path: str
    """a file, a directory or a glob"""
    format: Literal["csv", "ndjson", "parquet"] | None = None
    """the format of all files; default: by suffix"""
    follow: bool = True
    """true to wait for new records and files; false to read everything once"""
    rotation: Literal["error", "follow"] = "error"
    """the handling of a file that replaced one that was read: error, or follow to read it as a new file"""
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    """the delimiter of CSV"""
    header: bool = True
    """true if the first line of CSV has the column names"""
    nulls: tuple[str, ...] = Field(default=("",), strict=False)
    """the CSV fields that mean null"""


class KafkaSourceTable(PayloadSourceTable):
    type: Literal["kafka"]
    brokers: str
    """host:port, separated by commas"""
    topic: Names
    """the topic to read, or a list"""
    group: str | None = None
    """the consumer group whose members share the partitions; default: reads all partitions"""
    start: Literal["earliest", "latest"] = "earliest"
    """the beginning of a partition not read before: earliest or latest"""
    lost: Literal["error", "skip"] = "error"
    """the handling of messages deleted before they were read: error or skip"""
    recreated: Literal["error", "anew"] = "error"
    """the handling of a recreated topic: error, or anew to read it from its beginning"""
    options: dict[str, str] = {}
    """more settings of librdkafka"""


class MqttSourceTable(PayloadSourceTable, Mqtt):
    type: Literal["mqtt"]
    topic: Names
    """a topic filter, such as shop/+/readings, or a list"""
    client_id: str
    """the name of the session at the broker: unique to this source, and always the same"""


class SimulatorSourceTable(CommonSourceTable):
    type: Literal["stock", "rfid", "highway"]
    seed: int = Field(default=1, ge=0)
    """the same seed gives the same events"""
    events: int = Field(default=100_000, ge=0)
    """the number of ticks (stock)"""
    symbols: Count = 100
    """the number of symbols (stock)"""
    rate: Annotated[float, Field(gt=0, strict=False)] | None = None
    """events per second; default: without pauses"""


class ShedTable(AppTable):
    lag: Positive = timedelta(seconds=10)
    """the longest age of the newest event, by the clock, when it is taken, such as "10s"; older is overload"""
    after: Duration = timedelta(seconds=5)
    """the duration of overload before half of the keys are shed"""
    least: float = Field(default=1 / 16, gt=0, le=1)
    """the share of the keys that is always kept"""


class PatternTable(AppTable):
    sql: str | None = None
    """the text of the pattern"""
    file: str | None = None
    """the file with the text of the pattern"""


class QueryTable(AppTable):
    sql: str | None = None
    """the text of the query"""
    file: str | None = None
    """the file with the text of the query"""
    sinks: tuple[str, ...] = Field(strict=False)
    """the list of sinks that get its rows"""
    start: Instant | None = None
    """the time, such as 2024-01-01, from which archived events are read first (backfill); default: new events only"""
    sharing: Sharing | None = None
    """how its trends are counted with those of others: dynamic, static, hamlet or none; default: that of `database`"""
    shed: ShedTable | None = None
    """load shedding of keys under overload, { lag = "10s", after = "5s", least = 0.1 }; default: never"""


class RefusingSinkTable(AppTable):
    """A sink whose receiver may reject a row for its content."""

    refusals: Count | None = None
    """a row rejected so many times for its content goes to refused-NAME.ndjson below `state`; default: never"""


class StdoutSinkTable(AppTable):
    type: Literal["stdout"]


class FileSinkTable(AppTable):
    type: Literal["file"]
    path: str
    """the file, or the directory for Parquet"""
    format: Literal["ndjson", "parquet"] = "ndjson"
    """ndjson or parquet"""


class KafkaSinkTable(RefusingSinkTable):
    type: Literal["kafka"]
    brokers: str
    """host:port, separated by commas"""
    topic: str
    """the topic to write to"""
    options: dict[str, str] = {}
    """more settings of librdkafka"""


class MqttSinkTable(Mqtt):
    type: Literal["mqtt"]
    topic: str
    """the topic to write to"""
    client_id: str = ""
    """the name of the session at the broker"""


class WebhookSinkTable(RefusingSinkTable):
    type: Literal["webhook"]
    url: str = Field(pattern=r"^https?://")
    """the address to which rows are posted"""
    headers: dict[str, str] = {}
    """the headers of each request"""
    template: str | None = None
    """the body, with {{column}} for the values of a row; default: the row as JSON"""


class AppriseSinkTable(AppTable):
    type: Literal["apprise"]
    urls: Names
    """the services as apprise writes them, such as mailto://user:password@host?to=address"""
    title: str | None = None
    """the title of a notification, with {{column}} for the values of a row; default: the name of the query"""
    template: str | None = None
    """the text of a notification, with {{column}} for the values of a row; default: the row as JSON"""


class MetricsTable(AppTable):
    port: int = Field(ge=0, le=65535)
    """the port of the Prometheus endpoint, such as 9100"""
    host: str = "127.0.0.1"
    """the address at which it listens"""


class LimitsTable(AppTable):
    queue_rows: Count = 100_000
    """the most rows read ahead of a source; then it waits"""
    unread_rows: Count = 100_000
    """the most rows of a query that a sink has not taken; then the streams of the query wait"""
    dead_letter_bytes: Count = 100_000_000
    """the largest file of dead letters (rejected payloads or rows); nine full files are kept"""


SourceTable: TypeAlias = FileSourceTable | KafkaSourceTable | MqttSourceTable | SimulatorSourceTable
SinkTable: TypeAlias = (
    StdoutSinkTable | FileSinkTable | KafkaSinkTable | MqttSinkTable | WebhookSinkTable | AppriseSinkTable
)

SOURCES: dict[str, type[AppTable]] = {
    "file": FileSourceTable, "kafka": KafkaSourceTable, "mqtt": MqttSourceTable,
    "stock": SimulatorSourceTable, "rfid": SimulatorSourceTable, "highway": SimulatorSourceTable,
}  # fmt: skip
SINKS: dict[str, type[AppTable]] = {
    "stdout": StdoutSinkTable, "file": FileSinkTable, "kafka": KafkaSinkTable, "mqtt": MqttSinkTable,
    "webhook": WebhookSinkTable, "apprise": AppriseSinkTable,
}
