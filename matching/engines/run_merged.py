"""The engine for all matches of patterns that skip rows and read the match so far: a graph of cells, with equal runs
merged (matching.kernels.merged)."""

from __future__ import annotations

import numpy as np

from matching.batch import Int64Array
from matching.engines import run_graph
from matching.engines.engine import Arrays, EnginePlan
from matching.engines.run_graph import RunGraph
from matching.kernels import graph, layout, merged
from matching.kernels.graph import Lists
from matching.kernels.layout import Parameters
from matching.kernels.merged import C_FREE, C_FREE_COUNT, Config, PartitionColumn
from matching.program.live import count_caps, live_registers
from matching.records import Blocks, Coming, Leaving, RecordBlock, anew, bounds_of, one_each, owners
from matching.store import RowStore


class RunMerged(RunGraph):
    """The runs of all partitions as lists per configuration over shared cells."""

    name = "graph of merged runs"
    tag = "merged"
    _slots = merged.COUNTERS

    def __init__(self, chosen: EnginePlan) -> None:
        super().__init__(chosen)
        program = self.program
        self._live = np.array([sum(1 << r for r in registers) for registers in live_registers(program)], np.int64)
        self._caps = np.array(count_caps(program), np.int64)
        self._values = layout.new_scratch(program)
        self._counters[C_FREE] = -1
        self._configs = self._room_of(np.zeros((0, merged.CONFIG_WIDTH), np.int64), self._registers(0), 64)
        self._made = self._made_of(0)
        self._grow(run_graph.ROOM)

    def _made_of(self, most: int) -> merged.Made:
        registers = self._registers(most)
        edge, child, valid = (np.zeros(most, np.int64) for _ in range(3))
        return merged.Made(edge, child, valid, registers, registers.view(np.float64))

    def _registers(self, count: int) -> np.ndarray:
        return np.zeros((count, max(1, len(self.program.registers))), np.int64)

    def _fresh(self, partitions: int) -> np.ndarray:
        lists = np.zeros((partitions, merged.PARTITION_WIDTH), np.int64)
        lists[:, PartitionColumn.FIRST] = -1
        lists[:, Lists.LOWEST] = graph.LOWEST
        return lists

    def _room_of(self, at: np.ndarray, registers: np.ndarray, buckets: int) -> merged.Configs:
        return merged.Configs(at, registers, registers.view(np.float64), np.full(buckets, -1, np.int64))

    def _grow(self, most: int) -> None:
        """Makes room for `most` more cells and configurations, and for as many made by one row."""
        if self.size + most > len(self._cells.wide):
            self._room_for_cells(max(2 * len(self._cells.wide), self.size + most))
        if self._counters[C_FREE_COUNT] < most:
            before = len(self._configs.at)
            capacity = max(2 * before, before + most)
            at = layout.grown(self._configs.at, capacity)
            at[before:, Config.BEHIND] = np.arange(before + 1, capacity + 1)
            at[-1, Config.BEHIND] = self._counters[C_FREE]
            self._counters[C_FREE] = before
            self._counters[C_FREE_COUNT] += capacity - before
            buckets = 1 << (capacity - 1).bit_length()
            self._configs = self._room_of(at, layout.grown(self._configs.registers, capacity), buckets)
            merged.rehash(len(self._lists), self._lists, self._configs)
        if most > len(self._scratch.ends):
            self._scratch = self._scratch._replace(ends=layout.grown(self._scratch.ends, 2 * most))
        if most > len(self._made.edge):
            self._made = self._made_of(2 * most)

    def _step(
        self, at: int, count: int, partition: Int64Array, mask: Int64Array, bad: Int64Array, ts: Int64Array,
        rows: Int64Array, feature: np.ndarray, feature_valid: np.ndarray,
    ) -> tuple[int, int]:  # fmt: skip
        return merged.step(
            at, count, partition, mask, bad, ts, rows, feature, feature.view(np.float64), feature_valid, self._tables,
            self._live, self._caps, self._cells, self._lists, self._configs, self._made, self._found, self._scratch,
            self._values, run_graph.MATCHES_MAX, self._counters,
        )  # fmt: skip

    def busy(self, partition: Int64Array) -> np.ndarray:
        """True if these partitions may have runs, bool (n,)."""
        return np.asarray(self._lists[partition, PartitionColumn.FIRST] >= 0)

    def _more_cells(self, partition: int) -> None:
        length = int(self._lists[partition, PartitionColumn.LENGTH])
        self._grow((length + 1) * int(self._tables.parameters[Parameters.DEGREE]))

    def finish(self, partitions: int) -> None:
        """Does nothing at the end of the input."""

    def _mark_lists(self, ids: Int64Array, lowest: Int64Array) -> None:
        merged.mark_configs(
            ids, self._floor, self._lists, self._cells, self._configs, lowest, self._moved, self._counters
        )

    def _move_lists(self, ids: Int64Array) -> None:
        merged.move_configs(ids, self._lists, self._configs, self._moved)

    def snapshot(self) -> Arrays:
        configs = self._configs
        return super().snapshot() | {"configs": configs.at, "registers": configs.registers}

    def restore(self, arrays: Arrays) -> None:
        super().restore(arrays)
        at = arrays["configs"]
        self._configs = self._room_of(at, arrays["registers"], 1 << (len(at) - 1).bit_length())
        merged.rehash(len(self._lists), self._lists, self._configs)

    # ---- partitions that leave memory: see matching.engines.engine.Spillable

    @property
    def _config_bytes(self) -> int:
        return 8 * (merged.CONFIG_WIDTH + self._configs.registers.shape[1])

    @property
    def used_bytes(self) -> int:
        configs = len(self._configs.at) - int(self._counters[C_FREE_COUNT])
        return super().used_bytes + self._config_bytes * configs

    def states(self, ids: Int64Array) -> Int64Array:
        first = self._lists[ids, PartitionColumn.FIRST]
        return np.where(first >= 0, self._configs.at[np.maximum(first, 0), Config.STATE], -1)

    def _configs_of(self, ids: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Returns the configurations of partitions in order, and the beginnings of each."""
        bounds = bounds_of(self._lists[ids, PartitionColumn.LENGTH])
        configs = np.empty(int(bounds[-1]), np.int64)
        merged.configs_of(ids, bounds, self._lists, self._configs, configs)
        return configs, bounds

    def _own_lists(self, ids: Int64Array, owner: Int64Array) -> None:
        configs, bounds = self._configs_of(ids)
        owner[self._configs.at[configs, Config.HEAD]] = owners(bounds)

    def weigh(self, store: RowStore, ids: Int64Array, place: Int64Array) -> Int64Array:
        return super().weigh(store, ids, place) + self._config_bytes * self._lists[ids, PartitionColumn.LENGTH]

    def copy_out(self, store: RowStore, leaving: Leaving) -> Blocks:
        cells, kept = self._cells_out(leaving)
        configs, bounds = self._configs_of(leaving.ids)
        at, registers = self._configs.at[configs], self._configs.registers[configs]
        at[:, Config.HEAD] = cells.places(at[:, Config.HEAD], owners(bounds))
        one = RecordBlock(one_each(len(leaving.ids)), {"lists": self._lists[leaving.ids]})
        return {"one": one, "configs": RecordBlock(bounds, {"at": at, "registers": registers}), "cells": kept}

    def leave(self, ids: Int64Array) -> None:
        merged.leave_configs(ids, self._lists, self._configs, self._counters)
        super().leave(ids)

    def put_in(self, coming: Coming, blocks: Blocks) -> None:
        base = self._cells_in(coming, blocks["cells"])
        configs = blocks["configs"]
        at = configs.columns["at"]
        at[:, Config.HEAD] = anew(at[:, Config.HEAD], base, owners(configs.bounds))
        self._grow(len(at))
        self._lists[coming.ids] = blocks["one"].columns["lists"]
        self._lists[coming.ids, PartitionColumn.FIRST] = -1
        merged.put_configs(
            coming.ids, configs.bounds, at, configs.columns["registers"], self._lists, self._configs, self._counters
        )

    def registers(self, blocks: Blocks) -> np.ndarray | None:
        return blocks["configs"].columns["registers"]
