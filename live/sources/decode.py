"""Payloads as rows of a stream: JSON, Avro, Arrow and fields of CSV, each value exactly or the row is bad.

A value is taken where it means the same in the declared type (live.incoming); beyond that
- a time is ISO text, naive as UTC, or a number in the configured unit since 1970; more digits than a microsecond has
  make the row bad unless they are zeros;
- in JSON a DECIMAL is a number or a text, a BLOB is text in base64, a TIME is ISO text, and DOUBLE takes the nearest
  double of the digits, as every JSON reader does;
- an object of JSON that has a declared member twice is bad;
- a field of CSV is read as the declared type, without blanks around it unless it is a string.

What is bad is found by halving: rows are converted together, and only where that fails in parts, down to the row that
is at fault. So one bad payload among n costs 2 log n conversions and nothing of its neighbours.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import functools
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, TypeAlias, assert_never

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from live.incoming import Incoming
from live.sources.base import Bad
from matching.batch import Int64Array
from matching.json_members import members_twice
from query.errors import DataError, first_line, nearest
from query.schema import Schema

Format: TypeAlias = Literal["json", "avro", "arrow"]
Times: TypeAlias = Literal["iso", "s", "ms", "us", "ns"]

#: Where a message holds many rows, row j of message o has the position o << ROW_BITS | j. So no message may hold more
#: than 2^20 rows, and offsets stay below 2^42, which no partition reaches.
ROW_BITS = 20

_SCALE = {"s": decimal.Decimal(1_000_000), "ms": decimal.Decimal(1000), "us": decimal.Decimal(1)}
_SCALE["ns"] = decimal.Decimal("0.001")


@dataclass(frozen=True, slots=True)
class Decoding:
    """How payloads are read.

    format: JSON objects; Avro, either object containers or plain records; Arrow IPC streams.
    times: what stands where a time is declared and the format has no times of its own.
    missing: what a declared column means that a payload lacks. Members that are not declared are passed over.
    batched: False: a message is one row, and its position is its offset. True: a message holds up to 2^20 rows (lines
    of JSON, records of a container, rows of an Arrow stream), and the position of row j is offset * 2^20 + j.
    avro_schema: the writer's schema as JSON text, for plain records. avro_schemas: writers' schemas by their id, for
    records in the Confluent wire format, which begin with 0 and an id of four bytes.
    """

    format: Format = "json"
    times: Times = "iso"
    missing: Literal["error", "null"] = "error"
    batched: bool = False
    avro_schema: str | None = None
    avro_schemas: Mapping[int, str] = field(default_factory=dict)


class Decoder:
    """Reads payloads of one stream. Raises DataError for settings that do not hang together."""

    __slots__ = ("_decoding", "_read", "values")

    def __init__(self, schema: Schema, decoding: Decoding) -> None:
        self.values = Values(schema, decoding.times, decoding.missing)
        self._decoding = decoding
        match decoding.format:
            case "json":
                self._read: Callable[[Sequence[bytes | None], Int64Array], _Read] = _Json(self.values, decoding).read
            case "avro":
                self._read = _Avro(self.values, decoding).read
            case "arrow":
                self._read = self._arrow
            case other:
                assert_never(other)

    def decode(
        self, source: str, payloads: Sequence[bytes | None], offsets: Int64Array
    ) -> tuple[pa.RecordBatch, Int64Array, list[Bad]]:
        """The rows of payloads that stand at these offsets of a partition, ascending: the declared columns; their
        positions, int64 (n,), ascending; and what is no row, in order of position.

        A payload of None (a tombstone of Kafka) is bad. Cost for JSON: 1 to 2 us a small object.
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
                given = self.values.of_arrow(table)
            except (DataError, pa.ArrowException, OSError, ValueError) as error:
                bad.append((position, payload or b"", _reason(error)))
                continue
            rows, numbers, wrong = self.values.fit(given, self.values.exact)
            found.append((rows, numbers + position))
            bad += [(position + i, str(given.slice(i, 1).to_pylist()[0]).encode(), reason) for i, reason in wrong]
        rows = self.values.concat([rows for rows, _ in found])
        return rows, np.concatenate([_NONE, *(numbers for _, numbers in found)]), bad


_Read: TypeAlias = tuple[pa.RecordBatch, Int64Array, list[tuple[int, bytes, str]]]
_NONE = np.zeros(0, np.int64)
_EMPTY = "the payload is empty (a tombstone?)"


class Values:
    """Values of the declared columns, as Python or Arrow has them, in the declared Arrow types.

    Raises DataError from each of its methods where a value does not fit: nothing is converted by halves."""

    __slots__ = ("_incoming", "missing", "schema", "times", "types")

    def __init__(self, schema: Schema, times: Times = "iso", missing: Literal["error", "null"] = "error") -> None:
        self._incoming = Incoming(schema)
        self.schema = schema
        self.times = times
        self.missing = missing
        self.types: list[pa.DataType] = self._incoming.arrow_schema.types

    def exact(self, data: object) -> pa.RecordBatch:
        """What Incoming makes of it."""
        return self._incoming.read(data)[0]

    def concat(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """One batch of all rows."""
        if len(batches) == 1:
            return batches[0]
        table = pa.Table.from_batches(batches, schema=self._incoming.arrow_schema)
        return self._incoming.read(table)[0]

    def fit(
        self, rows: Any, convert: Callable[[Any], pa.RecordBatch]
    ) -> tuple[pa.RecordBatch, Int64Array, list[tuple[int, str]]]:
        """convert(rows) of the rows that can be converted; their indices, int64 (n,); (index, reason) of the others.

        rows: a list or a RecordBatch. convert: raises DataError where a row is at fault."""
        found: list[pa.RecordBatch] = []
        indices = [_NONE]
        bad: list[tuple[int, str]] = []

        def part(start: int, stop: int) -> None:
            try:
                found.append(convert(rows[start:stop] if isinstance(rows, list) else rows.slice(start, stop - start)))
                indices.append(np.arange(start, stop, dtype=np.int64))
            except DataError as error:
                if stop - start == 1:
                    bad.append((start, _reason(error)))
                else:
                    middle = (start + stop) // 2
                    part(start, middle)
                    part(middle, stop)

        if len(rows):
            part(0, len(rows))
        return self.concat(found), np.concatenate(indices), bad

    def of_columns(self, columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        """Python values, one sequence per declared column, in that order."""
        given: dict[str, Any] = {}
        for name, values, type in zip(self.schema.names, columns, self.types):
            try:
                if _is_time(type):
                    given[name] = self._of_times(values, type)
                elif pa.types.is_time(type):
                    given[name] = [datetime.time.fromisoformat(v) if isinstance(v, str) else v for v in values]
                elif pa.types.is_map(type):
                    given[name] = pa.array([list(v.items()) if isinstance(v, dict) else v for v in values], type)
                else:
                    given[name] = values
            except (pa.ArrowException, ValueError, TypeError, DataError) as error:
                raise DataError(f"column {name}: {_reason(error)}") from error
        return self.exact(given)

    def of_texts(self, columns: Sequence[Sequence[str] | None], nulls: Sequence[str]) -> pa.RecordBatch:
        """Texts that mean values of the declared types, one sequence per declared column, None for a column of nulls.
        nulls: texts that mean none."""
        given: dict[str, Any] = {}
        count = len(next(texts for texts in columns if texts is not None))
        missing = pa.array(nulls, pa.string())
        for name, texts, type in zip(self.schema.names, columns, self.types):
            if texts is None:
                given[name] = pa.nulls(count, type)
                continue
            try:
                column = pa.array(texts, pa.string())
                empty = pc.is_in(column, missing)
                if pc.any(empty, min_count=0).as_py():
                    column = pc.if_else(empty, pa.scalar(None, pa.string()), column)
                given[name] = self._of_text(column, type)
            except (pa.ArrowException, msgspec.MsgspecError, ValueError, ArithmeticError, DataError) as error:
                raise DataError(f"column {name}: {_reason(error)}") from error
        return self.exact(given)

    def of_arrow(self, table: pa.Table) -> pa.RecordBatch:
        """The declared columns of a table, whatever their types, with numbers where a time is declared as times; to be
        made `exact`. Names compare without case."""
        by_name = {name.lower(): i for i, name in enumerate(table.column_names)}
        columns = []
        for name, type in zip(self.schema.names, self.types):
            at = by_name.get(name.lower())
            if at is None:
                if self.missing == "error" or name == self.schema.time:
                    raise DataError(f"column {name} is missing", nearest(name, table.column_names))
                columns.append(pa.nulls(table.num_rows, type))
                continue
            column = table.column(at).combine_chunks()
            if _is_time(type) and pa.types.is_integer(column.type) and self.times != "iso":
                column = column.cast(pa.int64()).cast(pa.timestamp(self.times))
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, names=list(self.schema.names))

    def _of_times(self, values: Sequence[Any], type: pa.DataType) -> Any:
        kinds = set(map(_type_of, values)) - {_NONE_TYPE}
        if kinds == {str}:
            return _iso_times(pa.array(values, pa.string()), type)
        if kinds and kinds <= {int, float, decimal.Decimal}:
            if self.times == "iso":
                raise DataError("a number stands where a time does: say its unit with `times`")
            return _epoch_times(values, kinds, self.times)
        return values

    def _of_text(self, texts: pa.Array, type: pa.DataType) -> Any:
        t = pa.types
        if t.is_string(type):
            return texts
        texts = pc.utf8_trim_whitespace(texts)
        if _is_time(type) and self.times == "iso":
            return _iso_times(texts, type)
        read: Callable[[str], Any]
        if _is_time(type):
            numbers = [None if text is None else decimal.Decimal(text) for text in texts.to_pylist()]
            return _epoch_times(numbers, {decimal.Decimal}, self.times)
        if t.is_time(type):
            read = datetime.time.fromisoformat
        elif t.is_binary(type):
            read = functools.partial(base64.b64decode, validate=True)
        elif t.is_nested(type):
            read = msgspec.json.decode
        else:
            column = texts.cast(type)
            if t.is_floating(type):
                infinite = pc.is_inf(column)
                if pc.any(infinite, min_count=0).as_py():
                    for text in texts.filter(infinite).to_pylist():
                        if "inf" not in text.lower():
                            raise DataError(f"{text} is too large")
            return column
        return [None if text is None else read(text) for text in texts.to_pylist()]


_NONE_TYPE = type(None)
_type_of = type  # where `type` is an argument


def _reason(error: BaseException) -> str:
    text = error.message if isinstance(error, DataError) else first_line(error)
    return text.replace(", row 0:", ":", 1)  # of the one row that was looked at


def _check_count(count: int, batched: bool) -> None:
    if batched and count > 1 << ROW_BITS:
        raise DataError(f"the payload has {count} rows, and a message may have {1 << ROW_BITS}")
    if not batched and count != 1:
        raise DataError(f"the payload has {count} rows, not one: set `batched` where messages hold many")


# ---- times


def _is_time(type: pa.DataType) -> bool:
    return pa.types.is_timestamp(type) or pa.types.is_date(type)


def _iso_times(texts: pa.Array, type: pa.DataType) -> pa.Array:
    """ISO 8601 texts as timestamps, UTC. Raises DataError."""
    unit = "ns" if pa.types.is_timestamp(type) and type.unit == "ns" else "us"
    try:
        return _parsed(texts, unit)
    except pa.ArrowInvalid as error:
        try:
            return _parsed(texts, "ns").cast(pa.timestamp("us"))  # nine digits, three of them zeros
        except pa.ArrowInvalid:
            raise DataError(f"{_about(error)} is no time in ISO form, of at most microseconds") from error


def _parsed(texts: pa.Array, unit: str) -> pa.Array:
    """Raises ArrowInvalid. Most columns have one form: all texts end in Z, or none has a zone."""
    naive, zoned = pa.timestamp(unit), pa.timestamp(unit, "UTC")
    if pc.all(pc.ends_with(texts, "Z"), min_count=0).as_py():
        return texts.cast(zoned).cast(naive)
    try:
        return texts.cast(naive)
    except pa.ArrowInvalid:
        pass
    with_zone = pc.match_substring_regex(texts, r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$")
    nothing = pa.scalar(None, pa.string())
    instants = pc.if_else(with_zone, texts, nothing).cast(zoned).cast(naive)
    return pc.coalesce(instants, pc.if_else(with_zone, nothing, texts).cast(naive))


def _about(error: BaseException) -> str:
    text = first_line(error)
    return text.removeprefix("Failed to parse string: ").split(" as a scalar")[0]


def _epoch_times(values: Sequence[Any], kinds: set[type], unit: str) -> pa.Array:
    """Numbers since 1970 as timestamps, exactly. Raises DataError."""
    try:
        if kinds <= {int}:
            return pa.array(values, pa.int64()).cast(pa.timestamp(unit))
        us = []
        for value in values:
            # A double is what its shortest digits say: they are what was written, up to 15 of them and often 17.
            exact = None if value is None else decimal.Decimal(repr(value) if isinstance(value, float) else value)
            whole = None if exact is None else int(exact * _SCALE[unit])
            if exact is not None and whole != exact * _SCALE[unit]:
                raise DataError(f"{value} {unit} is no exact microsecond")
            us.append(whole)
        return pa.array(us, pa.int64()).cast(pa.timestamp("us"))
    except (pa.ArrowException, OverflowError, ArithmeticError, ValueError) as error:
        raise DataError(f"no time: {_reason(error)}") from error


# ---- JSON


class _Json:
    """JSON objects, read by their declared members."""

    __slots__ = ("_batched", "_members", "_nested", "_object", "_values")

    def __init__(self, values: Values, decoding: Decoding) -> None:
        fields = []
        for i, (name, type) in enumerate(zip(values.schema.names, values.types)):
            kind: Any = _json_type(type, decoding.times)
            optional = decoding.missing == "null" and name != values.schema.time
            fields.append((f"f{i}", kind | None, None) if optional else (f"f{i}", kind | None))
        fields.sort(key=len)
        names = {f"f{i}": name for i, name in enumerate(values.schema.names)}
        row = msgspec.defstruct("Row", fields, rename=names, gc=False)
        self._object = msgspec.json.Decoder(row).decode
        self._members = [attrgetter(f"f{i}") for i in range(len(fields))]
        self._values = values
        self._nested = [name for name, type in zip(values.schema.names, values.types) if pa.types.is_nested(type)]
        self._batched = decoding.batched

    def read(self, payloads: Sequence[bytes | None], positions: Int64Array) -> _Read:
        bad: list[tuple[int, bytes, str]] = []
        if self._batched:
            payloads, positions = _lines(payloads, positions, bad)
        try:
            rows = [self._object(payload) for payload in payloads]  # type: ignore[arg-type]
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError):
            rows, good = [], []
            for i, payload in enumerate(payloads):
                try:
                    if not payload:
                        raise DataError(_EMPTY)
                    rows.append(self._object(payload))
                    good.append(i)
                except (msgspec.MsgspecError, UnicodeDecodeError, DataError) as error:
                    bad.append((int(positions[i]), payload or b"", _reason(error)))
            payloads, positions = [payloads[i] for i in good], positions[good]
        batch, indices, wrong = self._values.fit(rows, self._columns)
        bad += [(int(positions[i]), payloads[i] or b"", reason) for i, reason in wrong]
        fits = [payloads[i] or b"" for i in indices.tolist()] if wrong else payloads
        positions = positions[indices]
        twice = self._twice(batch, fits)  # type: ignore[arg-type]
        if twice:
            bad += [(int(positions[i]), fits[i] or b"", reason) for i, reason in twice]
            once = np.ones(len(positions), np.bool_)
            once[[i for i, _ in twice]] = False
            batch, positions = batch.filter(pa.array(once)), positions[once]
        return batch, positions, bad

    def _twice(self, batch: pa.RecordBatch, payloads: Sequence[bytes]) -> list[tuple[int, str]]:
        """(index, reason) of the objects, read as a batch, that have a member twice: the last one was taken."""
        if not len(batch):
            return []
        present = {name: len(batch) - column.null_count for name, column in zip(batch.schema.names, batch.columns)}
        found = members_twice(b"\n".join(payloads), lambda: payloads, len(batch), present, self._nested)
        return [(i, f"member {name} is there twice") for i, name in found]

    def _columns(self, rows: list[Any]) -> pa.RecordBatch:
        return self._values.of_columns([list(map(member, rows)) for member in self._members])


def _json_type(type: pa.DataType, times: Times) -> Any:
    t = pa.types
    if _is_time(type):
        return str if times == "iso" else int | float
    if t.is_integer(type):
        return int | float  # 3.0 is 3
    if t.is_floating(type):
        return float
    if t.is_decimal(type):
        return decimal.Decimal
    if t.is_boolean(type):
        return bool
    if t.is_binary(type):
        return bytes
    if t.is_string(type) or t.is_time(type):
        return str
    return Any


def _lines(
    payloads: Sequence[bytes | None], positions: Int64Array, bad: list[tuple[int, bytes, str]]
) -> tuple[list[bytes | None], Int64Array]:
    """The lines of payloads that are not blank, with the positions of rows."""
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
    """Avro records: in object containers, plain with one schema, or in the Confluent wire format with schemas by id."""

    __slots__ = ("_batched", "_by_id", "_containers", "_plain", "_record", "_values")

    def __init__(self, values: Values, decoding: Decoding) -> None:
        try:
            import fastavro
        except ImportError:
            hint = "install the extra kafka: pip install 'hybrid[kafka]'"
            raise DataError("Avro payloads need fastavro, which is not installed", hint) from None
        if decoding.avro_schema is not None and decoding.avro_schemas:
            message = "avro_schema is for plain records, avro_schemas for the Confluent wire format"
            raise DataError(message, "give one of them")

        def parsed(text: str) -> Any:
            try:
                return fastavro.parse_schema(json.loads(text))
            except Exception as error:
                message = f"an Avro schema cannot be read: {first_line(error)}"
                raise DataError(message, "give it as JSON, as the writer has it") from error

        self._plain = None if decoding.avro_schema is None else parsed(decoding.avro_schema)
        self._by_id = {id: parsed(text) for id, text in decoding.avro_schemas.items()}
        self._record = fastavro.schemaless_reader
        self._containers = fastavro.reader
        self._values = values
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
            except Exception as error:  # noqa: BLE001  fastavro raises what it meets: EOFError, struct.error, KeyError
                bad.append((position, payload or b"", f"no Avro record: {type(error).__name__} {first_line(error)}"))
                continue
            records += found
            at += range(position, position + len(found))
            raws += [payload or b""] * len(found)
        batch, indices, wrong = self._values.fit(records, self._columns)
        where = np.array(at, np.int64)
        bad += [(at[i], raws[i], reason) for i, reason in wrong]
        return batch, where[indices], bad

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
            raise DataError(f"no object container; if it is in the Confluent wire format, give `avro_schemas`: id {id}")
        else:
            raise DataError("no object container; give `avro_schema`, the writer's schema")
        record = self._record(stream, schema, None)
        if stream.tell() != len(payload):
            raise DataError("bytes are left behind the record: it was written with another schema")
        return [record]

    def _columns(self, records: list[Any]) -> pa.RecordBatch:
        names = self._values.schema.names
        columns: list[list[Any]] = [[] for _ in names]
        for record in records:
            for name, column in zip(names, columns):
                if name not in record and (self._values.missing == "error" or name == self._values.schema.time):
                    raise DataError(f"field {name} is missing", nearest(name, record))
                column.append(record.get(name))
        return self._values.of_columns(columns)

