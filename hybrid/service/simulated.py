"""The simulators as sources of live events, for trials without a server."""

from __future__ import annotations

from live.sources.simulated import SimulatedSource
from query.schema import Schema
from simulator.highway import FIELDS as TOLL
from simulator.highway import highway
from simulator.rfid import FIELDS as READING
from simulator.rfid import shop
from simulator.scenario import ArrivingBatch, in_batches
from simulator.stock import TICKS, walk

#: Rows of one batch of the stock simulator.
ROWS_MAX = 4096

_FIELDS = {"stock": TICKS.fields, "rfid": READING, "highway": TOLL}


def simulated_columns(kind: str) -> dict[str, str]:
    """Returns the columns of a simulator's events with their types."""
    return {field.name: field.type for field in _FIELDS[kind]}


def simulated(schema: Schema, kind: str, seed: int, events: int, symbols: int, rate: float | None) -> SimulatedSource:
    """Returns a simulator as a source. kind: stock (`events` ticks of `symbols` symbols, in one partition), rfid or
    highway (three partitions each, some batches twice). rate: rows per second; None: without pauses."""

    def arrivals() -> list[tuple[str, int, object]]:
        found: tuple[ArrivingBatch, ...]
        if kind == "stock":
            found = in_batches("ticks", f"stock/{seed}", walk(seed, events, symbols), ROWS_MAX)
        else:
            found = (shop(seed) if kind == "rfid" else highway(seed)).arrivals
        return [(a.source, a.offset, a.batch) for a in found]

    return SimulatedSource(schema, arrivals, rate)
