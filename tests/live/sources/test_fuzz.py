"""Whatever stands in a payload, a row or a dead letter comes of it: nothing is raised, and neighbours change nothing.

3,000 cases, 10,000 by night, FUZZ=100000 for more; a failure names its seed.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import os
import random
import subprocess
import sys
import uuid
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from live.incoming import Incoming
from live.sources.decode import Decoder, Decoding
from matching.checked import objects_checked, shown_value
from matching.value_types import Rules
from query.schema import Field, Schema
from tests.properties.comparing import is_nightly
from tests.waiting import GUARD_S

CASES = int(os.environ.get("FUZZ", "10000" if is_nightly() else "1500"))
TYPES = [
    "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "UBIGINT", "HUGEINT", "UHUGEINT", "FLOAT",
    "DOUBLE", "DECIMAL(9,2)", "DECIMAL(38,10)", "VARCHAR", "BLOB", "UUID", "JSON", "ENUM('a', 'b')", "DATE", "TIME",
    "TIME WITH TIME ZONE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMPTZ", "INTERVAL",
    "INTEGER[]", "INTEGER[2]", "VARCHAR[]", "STRUCT(a INTEGER, b VARCHAR)", "MAP(VARCHAR, INTEGER)",
    "STRUCT(a STRUCT(b DOUBLE[]))[]", "MAP(INTEGER, TIMESTAMP)", "ENUM('a', 'b')[]", "UUID[]", "BIT",
]  # fmt: skip
TIME_TYPES = ["TIMESTAMP", "TIMESTAMPTZ", "DATE", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"]
TIMES = ["iso", "s", "ms", "us", "ns"]
#: The limits of the types, and what lies just beyond them.
EDGES = [
    edge + step
    for bits in (7, 8, 15, 16, 31, 32, 53, 62, 63, 64, 127, 128)
    for edge in (2**bits, -(2**bits)) for step in (-1, 0, 1)
]  # fmt: skip
EDGES += [0, 10**38 - 1, 10**38, -(10**38), 10**400, 1704196800, 1704196800123, 1704196800123456, 1704196800123456789]
NUMBERS = [
    "1e400", "-1e400", "1e-400", "3.0", "3.5", "-0", "-0.0", "1e3", "1E+3", "1e308", "3.5e38", "1e39", "1.23", "1.234",
    "1704196800.123456", "1704196800.1234567", "9007199254740993.0", "1.0000000000000000000001", "1" * 5000,
    "0." + "0" * 3000 + "1", "1e999999999", "1e-999999999", "01", "+1", ".5", "1.", "NaN", "Infinity", "-",
]  # fmt: skip
TEXTS = [
    "", " ", "a", "b", "c", "true", "T", "yes", "0", "1", " 12 ", "1_000", "0x1F", "0xFF", "1e3", "1.50", "nan", "-inf",
    "infinity", "2024-01-02", "2024-01-02T12", "2024-01-02T12:00:00", "2024-01-02 12:00:00.123456789Z",
    "2024-01-02T12:00:00.123456000Z", "2024-01-02T12:00:00+01:00", "2024-02-30", "0000-00-00", "99999-12-31",
    "290000-01-01", "1970-01-01T00:00:00-99:99", "24:00:00", "12:30", "12:30:01.1234567", "1 day", "P1D", "[1, 2]",
    "[1, x]", "{'a': 1}", '{"a": 1, "b": "x"}', "{}", "[]", "null", "NULL", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}", "aGk=", "aGk", "\\xAA", "\\x", "\x00", "a\x00b", "\ufeff", "\u00e9",
    "\U0001f600", "x" * 70_000, "'; DROP TABLE raw; --", "101", "ts", "9" * 400,
]  # fmt: skip
RAW = [
    b"", b"null", b"[]", b"{}", b"{", b"[1]", b'"x"', b"\xff\xfe", b"\xef\xbb\xbf{}", b"\x00", b"{} {}",
    b'{"ts": "2024-01-02", "v": "\xff"}', b'{"ts": "2024-01-02", "v": "\\ud800"}', b'{"ts": "2024-01-02", "\xff": 1}',
    b'{"ts": "2024-01-02", "v": "\\udc00\\ud800"}', b'{"ts": "2024-01-02", "v": "\xed\xa0\x80"}',
    b'{"ts":"2024-01-02","v":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"ts":"2024-01-02","v":' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}",
    b'{"ts":"2024-01-02","v":1,"v":2}', b'{"ts":"2024-01-02","V":1,"v":2}', b'{"TS":"2024-01-02","V":1,"w":2}',
    b'{"ts":"2024-01-02","V":1,"\\u0056":1}', b'{"TS":"2024-01-02","Ts":"2024-01-02"}', b'{"\\u0074s":"2024-01-02"}',
    '{"ts":"2024-01-02","v":1}'.encode("utf-16"), '{"ts":"2024-01-02","v":"\u00e9"}'.encode("latin-1"),
]  # fmt: skip


def written(rng: random.Random, depth: int = 0) -> str:
    """A value of JSON, or nearly one."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind == 0:
        return str(rng.choice(EDGES))
    if kind == 1:
        return rng.choice(NUMBERS)
    if kind in (2, 3):
        return json.dumps(rng.choice(TEXTS), ensure_ascii=rng.random() < 0.5)
    if kind == 4:
        return rng.choice(["null", "true", "false"])
    if kind == 5:
        return "[" + ", ".join(written(rng, depth + 1) for _ in range(rng.randrange(4))) + "]"
    names = rng.choices(["a", "b", "A", "c", "", "1"], k=rng.randrange(4))
    return "{" + ",".join(f"{json.dumps(name)}: {written(rng, depth + 1)}" for name in names) + "}"


def payload(rng: random.Random) -> bytes | None:
    """An object, or something else."""
    if rng.random() < 0.1:
        return rng.choice([*RAW, None, rng.randbytes(rng.randrange(20))])
    time = rng.choice(['"2024-01-02T12:00:00"', '"2024-01-02"', "1704196800", "1704196800123", written(rng)])
    members = [("ts", time)] if rng.random() < 0.95 else []
    count = rng.choice([0, 1, 1, 1, 2])
    members += [(rng.choice(["v", "v", "v", "V", "w", "v.a", "TS"]), written(rng)) for _ in range(count)]
    text = "{" + ", ".join(f'"{name}": {value}' for name, value in members) + "}"
    return text.encode("utf-8", "surrogatepass")


def schema_of(rng: random.Random) -> Schema:
    time = "TIMESTAMP" if rng.random() < 0.7 else rng.choice(TIME_TYPES)
    return Schema("s", (Field("ts", time), Field("v", rng.choice(TYPES))), "ts")


def taken(decoder: Decoder, payloads: list[Any]) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Rows by position, and what is bad: each payload is one of them, and a row is one that a stream takes."""
    rows, positions, bad = decoder.decode("t/0", payloads, np.arange(len(payloads), dtype=np.int64))
    assert sorted([*positions.tolist(), *(one.offset for one in bad)]) == list(range(len(payloads)))
    assert all(one.reason and one.raw is not None for one in bad)
    rows.validate(full=True)
    Incoming(decoder.schema).read(rows)
    shown = [str([shown_value(column[i]) for column in rows.columns]) for i in range(len(rows))]  # NaN is NaN there
    return list(zip(positions.tolist(), shown)), [(one.offset, one.reason) for one in bad]


@pytest.mark.slow
def test_json() -> None:
    """Before: OverflowError and ValueError where the text of an error was made, RecursionError for deep nesting,
    ArrowInvalid for `times`; a STRUCT was read otherwise beside other objects."""
    size = 40
    for seed in range(CASES // size):
        rng = random.Random(seed)
        schema = schema_of(rng)
        decoding = Decoding("json", rng.choice(TIMES), rng.choice(["error", "null"]))
        payloads = [payload(rng) for _ in range(size)]
        try:
            rows, bad = taken(Decoder(schema, decoding), payloads)
            if seed % 10 == 0:
                for i, one in enumerate(payloads):
                    row, reason = taken(Decoder(schema, decoding), [one])
                    assert [shown for at, shown in rows if at == i] == [shown for _, shown in row], one
                    assert [why for at, why in bad if at == i] == [why for _, why in reason], one
        except BaseException as error:
            error.add_note(f"seed {seed}: {schema.fields} {decoding}")
            raise


PYTHON: list[Any] = [
    None, True, False, *EDGES, 1.5, 3.0, float("nan"), float("inf"), 1e300, b"", b"x", b"\xff", *TEXTS, "\ud800",
    decimal.Decimal("1.234"), decimal.Decimal("1e400"),
    decimal.Decimal("1e-999999999"), decimal.Decimal("NaN"), decimal.Decimal(10) ** 37,
    datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999), datetime.date(2024, 1, 2),
    datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC), datetime.time(23, 59, 59, 999999), uuid.UUID(int=1),
    [], [1, None], [1, "x"], [[1]], {}, {"a": 1}, {"a": 1, "b": "x"}, {"A": 1, "a": [2]}, {"": None},
    [{"a": {"b": [1.5]}}],
]  # fmt: skip


@pytest.mark.slow
def test_values_of_avro() -> None:
    """Python's values, as fastavro gives them: every type, each value, alone and beside others."""
    # Before: not run: it calls functions that the code did not have.
    for seed in range(CASES // 40):
        rng = random.Random(seed)
        schema = schema_of(rng)
        rules = Rules(rng.choice(TIMES), rng.choice(["error", "null"]))
        objects = [
            {"ts": rng.choice([datetime.datetime(2024, 1, 2), 1704196800, rng.choice(PYTHON)])}
            | ({rng.choice("vvVw"): rng.choice(PYTHON)} if rng.random() < 0.95 else {})
            for _ in range(40)
        ]  # fmt: skip
        try:
            found = objects_checked(schema, objects, rules)
            assert sorted([*found.indices.tolist(), *(i for i, _ in found.bad)]) == list(range(40))
            found.rows.validate(full=True)
            Incoming(schema).read(found.rows)
        except BaseException as error:
            error.add_note(f"seed {seed}: {schema.fields} {rules}")
            raise


@pytest.mark.slow
def test_bytes_of_avro_and_arrow() -> None:
    """Messages that were cut, and others in which a byte is another one."""
    # Before: not run: it calls functions that the code did not have.
    time = {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}}
    avro = {"type": "record", "name": "R", "fields": [time, {"name": "v", "type": ["null", "string", "long"]}]}
    record, container, stream = io.BytesIO(), io.BytesIO(), io.BytesIO()
    row = {"ts": datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC), "v": "x" * 20}
    fastavro.schemaless_writer(record, avro, row)
    fastavro.writer(container, avro, [row] * 3)
    table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us")), "v": ["x", None]})
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    plain = Decoding("avro", avro_schema=json.dumps(avro), batched=True)
    cases = [(plain, record.getvalue()), (plain, container.getvalue())]
    cases.append((Decoding("arrow", batched=True), stream.getvalue()))
    rng = random.Random(1)
    schema = Schema("s", (Field("ts", "TIMESTAMP"), Field("v", "VARCHAR")), "ts")
    for decoding, whole in cases:
        decoder = Decoder(schema, decoding)
        for _ in range(CASES // 20):
            data = bytearray(whole)
            if rng.random() < 0.3:
                del data[rng.randrange(len(data)) :]
            else:
                data[rng.randrange(len(data))] = rng.randrange(256)
            rows, positions, bad = decoder.decode("t/0", [bytes(data), whole], np.array([0, 1]))
            assert len(positions) == len(rows)
            assert all(one.reason for one in bad)
            assert (positions >= 1 << 20).sum() >= 1  # the other one is read


@pytest.mark.slow
def test_without_pandas() -> None:
    """What is bad is told without it. Before: `ValueError: Install pandas` for a time in nanoseconds."""
    program = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pandas":
            raise ImportError("blocked")
sys.meta_path.insert(0, Blocked())
import numpy as np, pyarrow as pa
from live.incoming import Incoming
from live.sources.decode import Decoder, Decoding
from query.errors import DataError
from query.schema import Field, Schema
for type in ("TIMESTAMP", "TIMESTAMPTZ", "DATE", "TIMESTAMP_NS"):
    schema = Schema("s", (Field("ts", type), Field("t", "TIMESTAMP_NS")), "ts")
    for times in ("s", "ms", "us", "ns"):
        for number in (2**63 - 1, -(2**63), 2**62, 10**30, 1704196800123456789, 1.5):
            _, _, bad = Decoder(schema, Decoding("json", times, "null")).decode(
                "t", [b'{"ts": %s}' % str(number).encode(), b'{"ts": 0, "t": %s}' % str(number).encode()], np.arange(2))
    for unit in ("s", "ms", "us", "ns"):
        table = pa.table({"ts": pa.array([2**63 - 1, 1], pa.int64()).cast(pa.timestamp(unit)), "t": pa.nulls(2)})
        try:
            Incoming(schema).read(table)
        except DataError as error:
            assert error.message
        Decoder(schema, Decoding("arrow", "iso", "null", True)).of_arrow(table)
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=GUARD_S)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


@pytest.mark.parametrize("text", ["aGk=", base64.b64encode(b"\x00" * 100).decode()])
def test_base64(text: str) -> None:
    # Before: run as it is: passes. It guards what held.
    schema = Schema("s", (Field("ts", "TIMESTAMP"), Field("v", "BLOB")), "ts")
    payload = json.dumps({"ts": "2024-01-02", "v": text}).encode()
    rows, _, _ = Decoder(schema, Decoding()).decode("t", [payload], np.arange(1))
    assert rows.column("v").to_pylist() == [base64.b64decode(text)]
