"""Decodes payloads (JSON, Avro, Arrow) to rows of a stream. A row with a value that has no exact form is bad.

The rules for values are in matching.values, shared with files that are archived.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, assert_never

import numpy as np
import pyarrow as pa

from live.incoming import Incoming
from live.sources.base import Bad
from matching.batch import Int64Array
from matching.checked import Checked, arrow_checked, by_name, objects_checked, shown_rows
from matching.json_rows import JsonRows
from matching.types import arrow_schema
from matching.value_types import Finer, Rules
from query.errors import DataError, first_line
from query.extras import not_installed
from query.schema import Schema

Format: TypeAlias = Literal["json", "avro", "arrow"]
Times: TypeAlias = Literal["iso", "s", "ms", "us", "ns"]

#: In a batched message, row j of message o has the position o << ROW_BITS | j. So a message may hold at most 2^20 rows,
#: and offsets must stay below 2^42, which no partition reaches.
ROW_BITS = 20


@dataclass(frozen=True, slots=True)
class Decoding:
    """Settings of the decoder.

    format: JSON objects; Avro, object containers or plain records; Arrow IPC streams.
    times: the form of times in formats without a time type.
    missing: the meaning of a declared column that a payload lacks. Undeclared members are ignored.
    finer: whether a time finer than its type is bad or truncated.
    batched: False: a message is one row, at the offset of the message. True: a message holds up to 2^20 rows (lines of
    JSON, records of a container, rows of an Arrow stream); the position of row j is offset * 2^20 + j.
    avro_schema: the writer's schema as JSON text, for plain records. avro_schemas: writers' schemas by id, for records
    in the Confluent wire format, which begin with a zero byte and a four-byte id.
    """

    format: Format = "json"
    times: Times = "iso"
    missing: Literal["error", "null"] = "error"
    batched: bool = False
    avro_schema: str | None = None
    avro_schemas: Mapping[int, str] = field(default_factory=dict)
    finer: Finer = "error"


class Decoder:
    """Decodes payloads of one stream. Raises DataError for contradictory settings."""

    __slots__ = ("_decoding", "_read", "nothing", "rules", "schema")

    def __init__(self, schema: Schema, decoding: Decoding) -> None:
        Incoming(schema)  # raises DataError for a bad declaration
        self.schema = schema
        self.rules = Rules(decoding.times, decoding.missing, decoding.finer)
        self.nothing = pa.RecordBatch.from_pylist([], schema=arrow_schema(schema))
        self._decoding = decoding
        match decoding.format:
            case "json":
                self._read: Callable[[Sequence[bytes | None], Int64Array], _Read] = _Json(self, decoding).read
            case "avro":
                self._read = _Avro(self, decoding).read
            case "arrow":
                self._read = self._arrow
            case other:
                assert_never(other)

    def decode(
        self, source: str, payloads: Sequence[bytes | None], offsets: Int64Array
    ) -> tuple[pa.RecordBatch, Int64Array, list[Bad]]:
        """Returns the rows with the declared columns; their positions, int64 (n,), ascending; and the bad payloads and
        rows, in order of position.

        source: the partition. offsets: int64, ascending, one for each payload. A payload of None (a Kafka tombstone)
        is bad. Cost for JSON: 1 to 2 us per small object.
        """
        rows, positions, bad = self._read(payloads, offsets << ROW_BITS if self._decoding.batched else offsets)
        return rows, positions, [Bad(source, position, raw, reason) for position, raw, reason in sorted(bad)]

    def _arrow(self, payloads: Sequence[bytes | None], positions: Int64Array) -> _Read:
        found, bad = [], []
        for payload, position in zip(payloads, positions.tolist()):
            try:
                if not payload:
                    raise DataError(_EMPTY)
                table = pa.ipc.open_stream(payload).read_all()
                _check_count(table.num_rows, self._decoding.batched)
                checked, raws = self.of_arrow(table)
            except (DataError, pa.ArrowException, OSError, ValueError) as error:
                bad.append((position, payload or b"", _reason(error)))
                continue
            found.append((checked.rows, checked.indices + position))
            bad += [(position + i, raw, reason) for (i, reason), raw in zip(checked.bad, raws)]
        rows = concat(self.schema, [rows for rows, _ in found])
        return rows, np.concatenate([_NONE, *(numbers for _, numbers in found)]), bad

    def of_arrow(self, table: pa.Table) -> tuple[Checked, list[bytes]]:
        """Returns the rows of a table and the text of each bad row. Column names are case-insensitive. Raises DataError
        for a missing column."""
        at = by_name(table.column_names, self.schema, self.rules)
        columns = [None if i is None else table.column(i).combine_chunks() for i in at]
        checked = arrow_checked(self.schema, columns, table.num_rows, self.rules)
        texts = shown_rows(table, [i for i, _ in checked.bad])
        return checked, [text.encode(errors="backslashreplace") for text in texts]


def concat(schema: Schema, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Returns all rows as one batch."""
    if len(batches) == 1:
        return batches[0]
    whole = pa.Table.from_batches(batches, schema=arrow_schema(schema)).combine_chunks().to_batches()
    return whole[0] if whole else pa.RecordBatch.from_pylist([], schema=arrow_schema(schema))


_Read: TypeAlias = tuple[pa.RecordBatch, Int64Array, list[tuple[int, bytes, str]]]
_NONE = np.zeros(0, np.int64)
_EMPTY = "the payload is empty (a tombstone?)"


def _reason(error: BaseException) -> str:
    text = error.message if isinstance(error, DataError) else first_line(error)
    return text.replace(", row 0:", ":", 1)  # the payload has one row: its number says nothing


def _check_count(count: int, batched: bool) -> None:
    if batched and count > 1 << ROW_BITS:
        raise DataError(f"the payload has {count} rows; a message may have up to {1 << ROW_BITS}")
    if not batched and count != 1:
        raise DataError(f"the payload has {count} rows, not one: set `batched` if messages hold several")


# ---- JSON


class _Json:
    """Decodes JSON objects by their declared members."""

    __slots__ = ("_batched", "_rows")

    def __init__(self, decoder: Decoder, decoding: Decoding) -> None:
        self._rows = JsonRows(decoder.schema, decoder.rules)
        self._batched = decoding.batched

    def read(self, payloads: Sequence[bytes | None], positions: Int64Array) -> _Read:
        bad: list[tuple[int, bytes, str]] = []
        if self._batched:
            payloads, positions = _lines(payloads, positions, bad)
        found = self._rows.read(payloads)
        bad += [(int(positions[i]), payloads[i] or b"", reason) for i, reason in found.bad]
        return found.rows, positions[found.indices], bad


def _lines(
    payloads: Sequence[bytes | None], positions: Int64Array, bad: list[tuple[int, bytes, str]]
) -> tuple[list[bytes | None], Int64Array]:
    """Returns the lines of payloads that are not blank, and their row positions. Appends payloads with too many lines
    to `bad`."""
    lines: list[bytes | None] = []
    at: list[int] = []
    for payload, position in zip(payloads, positions.tolist()):
        parts = (payload or b"").split(b"\n")
        if len(parts) > 1 << ROW_BITS or not payload:
            bad.append((position, payload or b"", "the payload has too many lines" if payload else _EMPTY))
            continue
        for j, line in enumerate(parts):
            if line and not line.isspace():
                lines.append(line)
                at.append(position + j)
    return lines, np.array(at, np.int64)


# ---- Avro


class _Avro:
    """Decodes Avro records: object containers, plain records of one schema, or the Confluent wire format."""

    __slots__ = ("_batched", "_by_id", "_containers", "_decoder", "_plain", "_record")

    def __init__(self, decoder: Decoder, decoding: Decoding) -> None:
        try:
            import fastavro
        except ImportError:
            raise not_installed("Avro payloads need fastavro", "kafka") from None
        if decoding.avro_schema is not None and decoding.avro_schemas:
            message = "avro_schema is for plain records, avro_schemas for the Confluent wire format"
            raise DataError(message, "give only one of them")

        def parsed(text: str) -> Any:
            try:
                return fastavro.parse_schema(json.loads(text))
            except Exception as error:
                message = f"invalid Avro schema: {first_line(error)}"
                raise DataError(message, "give the writer's schema as JSON") from error

        self._plain = None if decoding.avro_schema is None else parsed(decoding.avro_schema)
        self._by_id = {id: parsed(text) for id, text in decoding.avro_schemas.items()}
        self._record = fastavro.schemaless_reader
        self._containers = fastavro.reader
        self._decoder = decoder
        self._batched = decoding.batched

    def read(self, payloads: Sequence[bytes | None], positions: Int64Array) -> _Read:
        bad: list[tuple[int, bytes, str]] = []
        records: list[Any] = []
        at: list[int] = []
        raws: list[bytes] = []
        for payload, position in zip(payloads, positions.tolist()):
            try:
                found = self._records(payload)
            except DataError as error:
                bad.append((position, payload or b"", error.message))
                continue
            except Exception as error:  # noqa: BLE001  fastavro raises EOFError, struct.error, KeyError and others
                reason = f"invalid Avro record: {type(error).__name__} {first_line(error)}"
                bad.append((position, payload or b"", reason))
                continue
            records += found
            at += range(position, position + len(found))
            raws += [payload or b""] * len(found)
        checked = objects_checked(self._decoder.schema, records, self._decoder.rules)
        where = np.array(at, np.int64)
        bad += [(at[i], raws[i], reason) for i, reason in checked.bad]
        return checked.rows, where[checked.indices], bad

    def _records(self, payload: bytes | None) -> list[Any]:
        if not payload:
            raise DataError(_EMPTY)
        stream = io.BytesIO(payload)
        if payload.startswith(b"Obj\x01"):
            records = list(self._containers(stream))
            _check_count(len(records), self._batched)
            return records
        if self._by_id:
            id = int.from_bytes(payload[1:5], "big")
            if len(payload) < 5 or payload[0] != 0:
                raise DataError("not in the Confluent wire format, which begins with a zero byte and a schema id")
            if id not in self._by_id:
                raise DataError(f"no schema is configured for schema id {id}")
            schema = self._by_id[id]
            stream.seek(5)
        elif self._plain is not None:
            schema = self._plain
        elif len(payload) > 5 and payload[0] == 0:
            id = int.from_bytes(payload[1:5], "big")
            hint = f"if it has the Confluent wire format, give `avro_schemas` with id {id}"
            raise DataError(f"not an object container; {hint}")
        else:
            raise DataError("not an object container; give the writer's schema as `avro_schema`")
        record = self._record(stream, schema, None)
        if stream.tell() != len(payload):
            raise DataError("bytes follow the record: it was written with another schema")
        return [record]
