"""Makes the sources and sinks that the tables of an app file describe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, assert_never
from urllib.parse import quote

from hybrid.service.app import App
from hybrid.service.app_tables import (
    AppriseSinkTable,
    FileSinkTable,
    FileSourceTable,
    KafkaSinkTable,
    KafkaSourceTable,
    MqttSinkTable,
    MqttSourceTable,
    SimulatorSourceTable,
    SinkTable,
    SourceTable,
    StdoutSinkTable,
    WebhookSinkTable,
)
from live.sinks.base import Sink
from live.sources.base import Source
from live.sources.marks import Marks
from query.errors import DataError
from query.schema import Schema

if TYPE_CHECKING:
    from live.sources.decode import Decoding
    from live.sources.files import FileSettings

#: Prefix of the files with the topics of a stream (live.sources.marks).
TOPICS = "topics-"
#: Prefix of the files with the facts of file sources (live.sources.known_files).
KNOWN_FILES = "files-"


def make_source(table: SourceTable, schema: Schema, app: App) -> Source:
    """Returns the source of a table, not opened. schema: of its stream. Raises DataError for invalid settings."""
    match table:
        case FileSourceTable():
            from live.sources.files import FileSource

            name = next((name for name, given in app.sources.items() if given is table), None)
            return FileSource(schema, file_settings(table, app), None if name is None else known_files(app.state, name))
        case KafkaSourceTable():
            from live.sources.kafka import KafkaSettings, KafkaSource

            return KafkaSource(schema, KafkaSettings(
                table.brokers, table.topic, table.group, _decoding(table, app), table.start, table.lost,
                table.recreated, options=table.options,
            ), marks_of(app, table.stream))  # fmt: skip
        case MqttSourceTable():
            from live.sources.mqtt import MqttSettings, MqttSource

            return MqttSource(schema, MqttSettings(
                table.host, table.topic, table.client_id, table.port, _decoding(table, app), table.user,
                table.password, table.tls,
            ))  # fmt: skip
        case SimulatorSourceTable():
            from hybrid.service.simulated import simulated

            return simulated(schema, table.type, table.seed, table.events, table.symbols, table.rate)
        case _:
            assert_never(table)


def file_settings(table: FileSourceTable, app: App) -> FileSettings:
    """Returns the settings of a file source."""
    from live.sources.files import FileSettings

    return FileSettings(
        app.place(table.path), table.format, table.follow, table.times, table.missing, table.delimiter, table.header,
        table.nulls, table.rotation, table.finer,
    )  # fmt: skip


def marks_of(app: App, stream: str) -> Marks:
    """Returns the facts about the partitions of a stream that complement the archive."""
    return Marks(app.state / f"{TOPICS}{quote(stream.lower(), safe='')}.json")


def known_files(state: Path, source: str) -> Path:
    """Returns the path of the facts of a file source."""
    return state / f"{KNOWN_FILES}{quote(source, safe='')}.log"


def _decoding(table: KafkaSourceTable | MqttSourceTable, app: App) -> Decoding:
    """Returns the decoding of payloads. Raises DataError if the Avro schema cannot be read."""
    from live.sources.decode import Decoding

    avro = table.avro_schema
    try:
        text = None if avro is None else Path(app.place(avro)).read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot read {avro}: {error.strerror}", "avro_schema names a file") from None
    return Decoding(table.format, table.times, table.missing, table.batched, text, finer=table.finer)


def target_of(table: SinkTable) -> str:
    """Returns the target for which a sink's cursor is valid: the cursor of another target must not be used."""
    return f"{table.format}:{table.path}" if isinstance(table, FileSinkTable) else table.type


def make_sink(table: SinkTable, app: App) -> Sink:
    """Returns the sink of a table, not opened. Raises DataError for invalid settings."""
    match table:
        case StdoutSinkTable():
            from live.sinks.stdout import StdoutSink

            return StdoutSink()
        case FileSinkTable(format="parquet"):
            from live.sinks.parquet import ParquetSink

            return ParquetSink(app.place(table.path))
        case FileSinkTable():
            from live.sinks.ndjson import NdjsonSink

            return NdjsonSink(app.place(table.path))
        case KafkaSinkTable():
            from live.sinks.kafka import KafkaSink

            return KafkaSink(table.brokers, table.topic, table.options)
        case MqttSinkTable():
            from live.sinks.mqtt import MqttSink

            return MqttSink(table.host, table.topic, table.port, table.user, table.password, table.tls, table.client_id)
        case WebhookSinkTable():
            from live.sinks.webhook import WebhookSink

            return WebhookSink(table.url, table.headers, template=table.template)
        case AppriseSinkTable():
            from live.sinks.apprise import AppriseSink

            return AppriseSink(table.urls, table.template, table.title)
        case _:
            assert_never(table)
