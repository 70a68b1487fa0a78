"""The tables of an app file. They are pydantic's: a field is its type, its default and a line about it, and that is the
whole check of a value."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from hybrid.rows.times import duration_us, instant_us, positive_us
from query.errors import DataError


def _duration(value: Any) -> timedelta:
    try:
        return timedelta(microseconds=duration_us(value, "it"))
    except DataError as error:
        raise ValueError(error) from None


def _instant(value: Any) -> int:
    if not isinstance(value, (str, date)):
        hint = "write a time, such as 2024-01-01 or 2024-01-01T09:30:00"
        raise ValueError(DataError(f"it is {value!r}, not a point in time", hint))
    try:
        return instant_us(value, "it")
    except DataError as error:
        raise ValueError(error) from None


def _names(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _positive(value: Any) -> timedelta:
    try:
        return timedelta(microseconds=positive_us(value, "it"))
    except DataError as error:
        raise ValueError(error) from None


def _ahead(value: Any) -> timedelta | None:
    return None if value == "off" else _positive(value)


Duration = Annotated[timedelta, BeforeValidator(_duration)]
#: One that may not be nothing.
Positive = Annotated[timedelta, BeforeValidator(_positive)]
#: How far ahead of the clock an event may be; None: as far as it likes.
Ahead = Annotated[timedelta | None, BeforeValidator(_ahead)]
Instant = Annotated[int, BeforeValidator(_instant)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Count = Annotated[int, Field(gt=0)]
Payload: TypeAlias = Literal["json", "avro", "arrow"]
Times: TypeAlias = Literal["iso", "s", "ms", "us", "ns"]
Missing: TypeAlias = Literal["error", "null"]
Port = Annotated[int, Field(gt=0, le=65535)]


class Table(BaseModel):
    """One table of the file. What stands below a field is its hint in errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class DatabaseTable(Table):
    path: str | None = None
    """a directory or s3://bucket/prefix; left out: memory, kept nowhere"""
    options: dict[str, str] = {}
    """how a store is reached, such as aws_endpoint_url"""
    memory_limit: str | None = None
    """of partial matches, and of DuckDB for reading history, each: "2GB", say"""
    checkpoint: Positive = timedelta(seconds=10)
    """how often a checkpoint is taken: "10s", say"""
    log: Literal["fsync", "os", "none"] | None = None
    """of what is pushed: fsync, os or none; os on disk, none in a store, which cannot have one"""
    state: str | None = None
    """a local directory for status and cursors; <path>/_service on disk"""
    spark: str | None = None
    """the Spark that searches in large ranges of history, such as spark://host:7077; else none does"""
    spark_events: Annotated[int, Field(ge=0)] | None = None
    """ranges of history with more events than so many are large; 100 million"""
    files: Names = ()
    """that queries may read, a file or a list, a directory standing for all in it; they read no others"""


class StreamTable(Table):
    columns: dict[str, str]
    """names with DuckDB types, { ts = "TIMESTAMP", price = "DOUBLE" }"""
    time: str
    """the column of the event time"""
    key: Names = ()
    """what most queries partition by, a column or a list"""
    order: Names = ()
    """tie columns, which order events of equal time"""
    lateness: Duration = timedelta(0)
    """how far behind the newest event one may be: "2s", say"""
    retention: Positive | None = None
    """how long events are kept, such as "400 days"; else for ever"""
    idle: Positive | None = None
    """a source that is silent for so long no longer holds back the watermark: "30s", say"""
    heartbeat: Positive | None = None
    """where no source sends anything for so long, event time goes on with the clock, that far behind it"""
    max_ahead: Ahead = timedelta(days=1)
    """how far ahead of the clock an event may be, "1 hour", say, or "off"; others are quarantined"""
    late: str | None = None
    """the sink of late events"""


class Source(Table):
    """What all sources say."""

    stream: str
    """the stream that takes the events"""


class Records(Source):
    """A source of texts and the like, from which columns are read."""

    times: Times = "iso"
    """how times are written: iso, or s, ms, us or ns since 1970"""
    missing: Missing = "error"
    """what a declared column means that a record lacks: error or null"""
    finer: Literal["error", "cut"] = "error"
    """what a time is that is finer than a microsecond: error, or cut"""


class Payloads(Records):
    """A source of messages."""

    format: Payload = "json"
    """of the payloads: json, avro or arrow"""
    batched: bool = False
    """whether a payload holds several rows"""
    avro_schema: str | None = None
    """a file with the schema of plain Avro records"""


class Mqtt(Table):
    """A broker of MQTT, and who we are there."""

    host: str
    """where the broker is"""
    port: Port = 1883
    """of the broker"""
    user: str | None = None
    """as the broker knows it"""
    password: str | None = None
    """of the user"""
    tls: bool = False
    """whether the connection is encrypted"""


class FileSource(Records):
    type: Literal["file"]
    path: str
    """a file, a directory or a glob"""
    format: Literal["csv", "ndjson", "parquet"] | None = None
    """of all files; else by suffix"""
    follow: bool = True
    """whether more may come; otherwise all is read once"""
    rotation: Literal["error", "follow"] = "error"
    """what a file is that stands where another was read, which is gone: error, or follow for a new one"""
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    """of CSV"""
    header: bool = True
    """whether the first line of CSV has names"""
    nulls: tuple[str, ...] = Field(default=("",), strict=False)
    """texts of CSV that are no value"""


class KafkaSource(Payloads):
    type: Literal["kafka"]
    brokers: str
    """host:port, several with commas"""
    topic: Names
    """the topic that is read, or a list"""
    group: str | None = None
    """the consumer group whose members share the partitions; left out: all partitions"""
    start: Literal["earliest", "latest"] = "earliest"
    """where a partition not read before begins: earliest or latest"""
    lost: Literal["error", "skip"] = "error"
    """what happens where a position is no longer in the topic: error or skip"""
    recreated: Literal["error", "anew"] = "error"
    """what happens where the topic is another one than was read: error, or anew to read it from its beginning"""
    options: dict[str, str] = {}
    """more settings of librdkafka"""


class MqttSource(Payloads, Mqtt):
    type: Literal["mqtt"]
    topic: Names
    """a topic filter, such as shop/+/readings, or a list"""
    client_id: str
    """under which the broker keeps the session: of this source only, and always the same"""


class SimulatorSource(Source):
    type: Literal["stock", "rfid", "highway"]
    seed: int = Field(default=1, ge=0)
    """the same seed gives the same events"""
    events: int = Field(default=100_000, ge=0)
    """how many ticks (stock)"""
    symbols: Count = 100
    """of how many symbols (stock)"""
    rate: Annotated[float, Field(gt=0, strict=False)] | None = None
    """events a second; left out: as fast as they are taken"""


class ShedTable(Table):
    lag: Positive = timedelta(seconds=10)
    """how old the newest event may be, by the clock, when it is taken: "10s", say"""
    after: Duration = timedelta(seconds=5)
    """for how long it has to be older before half of the keys are left out"""
    least: float = Field(default=1 / 16, gt=0, le=1)
    """the share of the keys that is kept whatever comes"""


class QueryTable(Table):
    sql: str | None = None
    """the text of the query"""
    file: str | None = None
    """the file with the text of the query"""
    sinks: tuple[str, ...] = Field(strict=False)
    """where its rows go, a list of sinks"""
    start: Instant | None = None
    """the time from which on it reads what is archived before it goes on live, 2024-01-01; left out: only what comes"""
    shed: ShedTable | None = None
    """lets it leave out keys under overload, { lag = "10s", after = "5s", least = 0.1 }; left out: never"""


class RefusingSink(Table):
    """One that may refuse a row for what it is."""

    refusals: Count | None = None
    """a row that was refused so often for what it is goes to refused-NAME.ndjson below `state`; left out: never"""


class StdoutSink(Table):
    type: Literal["stdout"]


class FileSink(Table):
    type: Literal["file"]
    path: str
    """the file, or for Parquet the directory"""
    format: Literal["ndjson", "parquet"] = "ndjson"
    """ndjson or parquet"""


class KafkaSink(RefusingSink):
    type: Literal["kafka"]
    brokers: str
    """host:port, several with commas"""
    topic: str
    """the topic that is written"""
    options: dict[str, str] = {}
    """more settings of librdkafka"""


class MqttSink(Mqtt):
    type: Literal["mqtt"]
    topic: str
    """the topic that is written"""
    client_id: str = ""
    """under which the broker keeps the session"""


class WebhookSink(RefusingSink):
    type: Literal["webhook"]
    url: str = Field(pattern=r"^https?://")
    """where rows are posted"""
    headers: dict[str, str] = {}
    """of each request"""


class MetricsTable(Table):
    port: int = Field(ge=0, le=65535)
    """of the Prometheus endpoint, such as 9100"""
    host: str = "127.0.0.1"
    """the address it listens at"""


class LimitsTable(Table):
    queue_rows: Count = 100_000
    """read ahead of each source; more and it waits"""
    unread_rows: Count = 100_000
    """of a query that a sink has not taken; more and its streams wait"""
    dead_letter_bytes: Count = 100_000_000
    """of a file of refused payloads; then a new one is begun, and nine full ones are kept"""


SourceTable: TypeAlias = FileSource | KafkaSource | MqttSource | SimulatorSource
SinkTable: TypeAlias = StdoutSink | FileSink | KafkaSink | MqttSink | WebhookSink

SOURCES: dict[str, type[Table]] = {
    "file": FileSource, "kafka": KafkaSource, "mqtt": MqttSource,
    "stock": SimulatorSource, "rfid": SimulatorSource, "highway": SimulatorSource,
}  # fmt: skip
SINKS: dict[str, type[Table]] = {
    "stdout": StdoutSink, "file": FileSink, "kafka": KafkaSink, "mqtt": MqttSink, "webhook": WebhookSink,
}
