"""The part of merged events that one layer reads, where the layers of a hierarchy read several streams."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.batch import EventBatch
from matching.types import arrow_schema
from query.plan.plan import Reads
from query.schema import STREAM, Field, Schema


class OwnEvents:
    """Gives the events of some streams the columns of a pattern that reads them; hidden columns stay.

    fields: the columns of the pattern's FROM; reads: where they are."""

    __slots__ = ("_fields", "_read", "_streams", "reads")

    def __init__(self, fields: tuple[Field, ...], reads: Reads) -> None:
        self.reads = reads
        self._streams = pa.array(reads.streams, pa.string())
        self._read = dict.fromkeys(name for at in reads.columns for name in at if name is not None)
        if len(reads.streams) > 1:
            self._read |= {STREAM: None}  # tells where each event has its columns
        self._fields = tuple(arrow_schema(Schema("", fields)))

    def of(self, batch: EventBatch) -> EventBatch:
        """Returns the events of the streams."""
        batch = self._mine(batch, self._read)
        columns = {
            field.name: self._column(batch, field, at)
            for field, at in zip(self._fields, self.reads.columns, strict=True)
        }
        columns |= {name: batch.columns.column(name) for name in batch.columns.schema.names if name.startswith("#")}
        return replace(batch, columns=pa.RecordBatch.from_arrays(list(columns.values()), list(columns)))

    def bare(self, batch: EventBatch) -> EventBatch:
        """Returns the events of the streams without the columns of FROM."""
        return self._mine(batch, ())

    def _mine(self, batch: EventBatch, read: Iterable[str]) -> EventBatch:
        """Returns the events of the streams, with some columns and the hidden ones."""
        stream, one = batch.columns.column(STREAM), len(self._streams) == 1
        found = pc.equal(stream, self._streams[0]) if one else pc.is_in(stream, value_set=self._streams)
        mine = np.asarray(found)
        hidden = (name for name in batch.columns.schema.names if name.startswith("#"))
        batch = replace(batch, columns=batch.columns.select([*read, *hidden]))
        return batch if mine.all() else batch.take(np.flatnonzero(mine))

    def _column(self, batch: EventBatch, field: pa.Field, at: tuple[str | None, ...]) -> pa.Array:
        """Returns one column of the pattern's. at: the merged column that holds it, by stream."""
        found = pa.nulls(len(batch), field.type)
        for name in dict.fromkeys(name for name in at if name is not None):
            column = batch.columns.column(name)
            column = column if column.type == field.type else column.cast(field.type)
            if set(at) == {name}:
                return column
            streams = pa.array([s for s, of in zip(self.reads.streams, at, strict=True) if of == name], pa.string())
            found = pc.if_else(pc.is_in(batch.columns.column(STREAM), value_set=streams), column, found)
        return found
