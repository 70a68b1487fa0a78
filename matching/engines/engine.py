"""The interface of engines, its optional extensions, and the plan by which an engine runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from types import ModuleType
from typing import Any, Protocol, cast

import numpy as np

from matching.batch import Int64Array
from matching.decode import Decode
from matching.program.carried import Carried, Chain, Picked
from matching.program.determinise import ListTable
from matching.program.equalities import equalities_behind, equalities_of_steps
from matching.program.program import Mode, Program
from matching.program.starts import StartTable, show_starts
from matching.program.trends import TrendTable
from matching.purpose import Purpose
from matching.records import Blocks, Coming, Leaving
from matching.spill import Policy
from matching.state import stamp
from matching.store import RowStore
from matching.workload.program import Workload
from query.plan.expression import Column, show
from query.stopping import bytes_max, heed

#: State to be saved, by name.
Arrays = dict[str, np.ndarray]
#: Items of each kind that an engine has room for at its start; what is short is at least doubled. Most states have few
#: rows, and arrays are saved whole.
ROOM = 1 << 6
#: Rows that an engine takes between two checks, at most, each of which may begin a run; and, about, the steps of runs
#: that there are already, of some ten nanoseconds each.
ROWS_UNCHECKED = 1 << 12
STEPS_UNCHECKED = 1 << 20
#: No condition of any row fails.
NONE_BAD = np.zeros(0, np.int64)


class Unfinished(Exception):
    """An engine has stopped in the middle of its rows. index: of the row that it has not taken, or only in part; None:
    it has taken all of them."""

    index: int | None = None


class OverBudget(Unfinished):
    """A partition has more partial matches than allowed; or all of them take more memory, then args are the bytes that
    are allowed."""


def check(used_bytes: int) -> None:
    """Raises Stopped if the work is to stop, and OverBudget if partial matches take too much memory. For work between
    two batches that may take long."""
    heed()
    most = bytes_max()
    if most is not None and used_bytes > most:
        raise OverBudget(most)


def array_bytes(part: object) -> int:
    """Returns the bytes of the arrays of an engine, or of an attribute of one."""
    if isinstance(part, np.ndarray):
        return part.nbytes
    parts: Iterable[object] = part if isinstance(part, tuple | list) else ()
    if hasattr(part, "by_test"):  # an engine, or one of which another consists
        parts = vars(part).values()
    return sum(map(array_bytes, parts))


class ConditionFailed(Unfinished):
    """A condition that was read cannot be computed: args are the position of its row and its label."""


class WantedRows(Enum):
    """The rows that can change an engine's state; it does not receive others."""

    ALL = "all rows"
    RUNS = "rows that may begin a match, and rows of keys with partial matches"
    MEETING = "rows that meet a condition"


class Engine(Protocol):
    """Finds the matches of a program, over partitions numbered from 0 and rows of a matching.store.RowStore.

    name: as EXPLAIN prints it. tag: identifies the engine in a state, and stays when the class is renamed. by_test:
    True if bit i of a mask is the kind of condition Program.tests[i]; otherwise bit v is of label v. defers: True if a
    condition that cannot be computed for a row fails only when it is read (`bad` of `run`); an engine that does not
    defer receives no such row: see `OrderedEngine`. settles: True if, with UNMATCHED ROWS, `decode` gives the unmatched
    rows in order. specialises: True if it is `Specialisable`.
    """

    name: str
    tag: str
    by_test: bool
    defers: bool
    settles: bool
    specialises: bool

    def __init__(self, chosen: EnginePlan) -> None: ...

    @property
    def size(self) -> int:
        """Returns the number of its own nodes, without rows of the store, which `mark` and `move` may drop."""

    @property
    def decided(self) -> int:
        """Returns the number of decided matches that are not decoded yet."""

    @property
    def stuck(self) -> int:
        """Returns the number of matches from which AFTER MATCH SKIP TO FIRST / LAST would not have moved on; the scan
        continued one row after their start."""

    def reserve(self, partitions: int) -> None:
        """Makes room for this many partitions."""

    def run(
        self, store: RowStore, positions: Int64Array | slice, mask: Int64Array, feature: np.ndarray,
        feature_valid: np.ndarray, bad: Int64Array = NONE_BAD,
    ) -> None:  # fmt: skip
        """Takes the rows at `positions`, in the total order. mask: the conditions that hold, a bit each; feature: what
        registers read, (features, n), and whether it is not null. bad: the labels whose conditions cannot be computed
        for the row, like mask; empty if all can. Raises ConditionFailed or OverBudget, with the index of the row; what
        earlier rows have decided can still be decoded."""

    def expire(self, watermark_us: int, held: Int64Array) -> None:
        """Ends the runs that began before watermark - WITHIN, and decides their matches. held: per partition the time
        of its first untaken row (larger than any: none); empty if there are none."""

    def finish(self, partitions: int) -> None:
        """Decides all pending matches at the end of the input."""

    def decode(self, store: RowStore, out: Decode) -> None:
        """Writes the decided matches into `out` and forgets them."""

    def mark(self, store: RowStore, ids: Int64Array, keep: np.ndarray, exact: bool = False) -> None:
        """Marks the rows that a run or a pending match can reach, and unless `exact` perhaps more. To be followed by
        `move`. ids: the partitions that may have any."""

    def move(self, ids: Int64Array, row_moved: Int64Array) -> None:
        """Renumbers rows, and drops the nodes that `mark` did not reach."""

    def busy(self, partition: Int64Array) -> np.ndarray:
        """True if these partitions may have runs, bool (n,): a run asks for the rows of its partition."""

    def idle(self, partitions: int) -> np.ndarray:
        """Returns, per partition, True if it has neither a run nor a pending match, bool (partitions,)."""

    def forget(self, ids: Int64Array) -> None:
        """Resets idle partitions to their state before the first row."""

    def numbers(self, partitions: int) -> Int64Array:
        """Returns the last MATCH_NUMBER of each partition."""

    def snapshot(self) -> Arrays: ...
    def restore(self, arrays: Arrays) -> None: ...


class Spillable(Protocol):
    """An engine whose partitions may leave memory and come back, here or in another matcher of the same program.

    row_bytes: of its own, for each row of the store; used_bytes: besides those; key_bytes: for each partition id.
    due_yields: True if a watermark, or the end of the input, decides matches."""

    @property
    def row_bytes(self) -> int: ...
    @property
    def used_bytes(self) -> int: ...
    @property
    def key_bytes(self) -> int: ...
    @property
    def due_yields(self) -> bool: ...

    def states(self, ids: Int64Array) -> Int64Array:
        """Returns the state that each of these partitions waits in, -1 for none."""

    def weigh(self, store: RowStore, ids: Int64Array, place: Int64Array) -> Int64Array:
        """Returns the bytes of each of these partitions without its rows; to be called after `mark`. place: by
        partition id, the index among them, -1 for others."""

    def copy_out(self, store: RowStore, leaving: Leaving) -> Blocks:
        """Returns the state of these partitions, in terms of their own rows; to be called after `mark`."""

    def leave(self, ids: Int64Array) -> None:
        """Resets partitions that have been copied out to their state before the first row."""

    def unmark(self, store: RowStore, place: Int64Array) -> None:
        """Clears the marks of partitions that have left. place: 0 or more for these, by partition id; their rows are
        dropped."""

    def put_in(self, coming: Coming, blocks: Blocks) -> None:
        """Restores data that was copied out, for partitions that have had no row since."""

    def registers(self, blocks: Blocks) -> np.ndarray | None:
        """Returns the registers of all runs in copied-out data, (runs, registers), to be changed in place; None: runs
        have none."""

    def due(self, watermark_us: int, wanted: np.ndarray) -> Int64Array:
        """Returns those of the wanted partitions in which the watermark may decide a match."""


class OrderedEngine(Protocol):
    """An engine that decides the attempts of a partition in the order of their first rows. Where it does not defer
    conditions that fail, run lists can go on from there."""

    def frontier(self, partitions: int) -> Int64Array:
        """Returns, per partition, the first row of the first undecided attempt; -1: all rows taken are settled."""

    def covered(self, store: RowStore, rows: Int64Array) -> np.ndarray:
        """True if rows that have been taken and are not settled are known to lie in a match, bool (n,)."""


@dataclass(frozen=True, slots=True)
class ClosedWindows:
    """n rows of closed windows. partition: ids; window: k; whole: int64 (n, 1 + sums, limbs), numbers in two's
    complement, the lowest limb first, the count of trends first; floats: float64 (n, sums); least: int64 (n, sums), in
    the order of the values, and whether there is one."""

    partition: Int64Array
    window: Int64Array
    whole: np.ndarray
    floats: np.ndarray
    least: np.ndarray
    least_there: np.ndarray

    def __len__(self) -> int:
        return len(self.partition)


class WindowedEngine(Protocol):
    """An engine that gives a row per window instead of matches: `decided` counts these rows, `decode` gives none."""

    def windows(self) -> ClosedWindows:
        """Returns the rows of closed windows, in the order of windows, and forgets them."""


class Specialisable(Protocol):
    """An engine that can switch to a kernel written out for its program. source: a module with that kernel; key:
    identifies the module in the cache."""

    chosen: EnginePlan
    program: Program

    @property
    def source(self) -> str: ...
    @property
    def key(self) -> str: ...
    def run_by(self, special: Any) -> None:
        """Switches to the step of that module, which is compiled now unless it is in the cache."""


class Builder(Protocol):
    """Returns the module with the specialised kernel of an engine; None: not yet, so the matcher continues with the
    interpreted one and asks again with the next batch. rows: number of rows of the matcher so far, including the next
    ones."""

    def __call__(self, engine: Specialisable, rows: int, /) -> ModuleType | None: ...


def spills(engine: type[Engine]) -> bool:
    """True if engines of a class are Spillable."""
    return hasattr(engine, "copy_out")


def spillable(engine: Engine) -> Spillable | None:
    """Returns the engine if its partitions may leave memory, else None."""
    return cast(Spillable, engine) if spills(type(engine)) else None


def ordered(engine: Engine) -> OrderedEngine | None:
    """Returns the engine if it decides attempts in the order of their first rows, else None."""
    return cast(OrderedEngine, engine) if hasattr(engine, "frontier") else None


class Grouping(Protocol):
    """An engine in which a match of one partition may end the runs of others (EnginePlan.grouped)."""

    def put_groups(self, ids: Int64Array, groups: Int64Array) -> None:
        """Says to which groups these partitions belong. groups: from 0."""


def grouping(engine: Engine) -> Grouping:
    """Returns the engine of an EnginePlan that is `grouped`."""
    return cast(Grouping, engine)


class LookingUp(Protocol):
    """An engine whose conditions may look values up in tables that change."""

    def look_up(self, **tables: np.ndarray) -> None:
        """Takes tables of matching.kernels.layout.ProgramArrays for the next rows."""

    def forget_walks(self) -> None:
        """Forgets what walks have found for nodes, whose numbers have changed."""


def looking_up(engine: Engine) -> LookingUp:
    """Returns the engine, whose program looks values up."""
    return cast(LookingUp, engine)


def windowed(engine: Engine) -> WindowedEngine | None:
    """Returns the engine if it gives a row per window, else None."""
    return cast(WindowedEngine, engine) if hasattr(engine, "windows") else None


def specialisable(engine: Engine) -> Specialisable | None:
    """Returns the engine if it can switch to a specialised kernel, else None."""
    return cast(Specialisable, engine) if engine.specialises else None


@dataclass(frozen=True)
class EnginePlan:
    """The engine that runs a plan for a purpose; matching.engines.choose.choose_engine makes it, EXPLAIN prints it.

    engine: None if there is none; then `why` names the unsupported feature, and `instead` what may be written. purpose:
    LIVE if evidence should be found again but cannot be. program: of the plan. table: of a table engine. carried:
    registers that runs carry for measures, besides those of the program; picked: rows of each match that are noted for
    them; chain: the variables of each match, if its rows alone determine the match. wanted: the rows it receives.
    resident: reason that its partial matches cannot leave memory, or None. runs_max: maximum number of partial
    matches of one partition at a time. trends: of ONE ROW PER
    WINDOW. workload: of many such queries. looked_up: columns whose value all rows of a match have in common
    (matching.tied), which divide the rows as PARTITION BY does; not_looked_up: why there are none though
    conditions compare rows of a match for equality."""

    engine: type[Engine] | None
    why: str
    purpose: Purpose
    program: Program | None
    table: ListTable | StartTable | None = None
    carried: Carried | None = None
    picked: Picked | None = None
    chain: Chain | None = None
    wanted: WantedRows = WantedRows.ALL
    resident: str | None = None
    runs_max: int = 0
    instead: str = ""
    trends: TrendTable | None = None
    workload: Workload | None = None
    looked_up: tuple[Column, ...] = ()
    not_looked_up: str = ""

    @property
    def runs(self) -> Program:
        """Returns the program as it runs."""
        assert self.program is not None
        return self.program if self.carried is None else self.carried.program

    @property
    def grouped(self) -> bool:
        """True if a match ends the partial matches of all values of the columns that are looked up."""
        return bool(self.looked_up) and bool(self.runs.ignore) and self.runs.mode is Mode.PAST_LAST_ROW

    @property
    def keeps_rows(self) -> bool:
        """True if the engine has all rows of a decided match."""
        return self.carried is None and self.chain is None and self.picked is None

    @cached_property
    def stamp(self) -> str:
        """Returns the stamp of the numbers of states, labels and registers in a snapshot."""
        if self.trends is not None:
            ways = ("panes", self.trends.by_panes), ("ordered", self.trends.ordered)
            return stamp(self.program, self.trends, *(way for way, taken in ways if taken))
        if self.workload is not None:
            return stamp(self.program, self.workload)
        by = (("looked up", *(c.name for c in self.looked_up)),) if self.looked_up else ()
        if self.keeps_rows:
            return stamp(self.program, self.table, *by)
        return stamp(self.runs, self.table, () if self.chain is None else self.chain.variables, *by)

    @property
    def specialised(self) -> bool:
        """True if a specialised kernel may follow after some rows."""
        return self.engine is not None and self.engine.specialises and self.runs.specialises

    def make(self) -> Engine:
        """Returns a new engine, before the first row."""
        assert self.engine is not None
        return self.engine(self)

    def show_engine(self) -> str:
        """Returns the line of EXPLAIN with the engine and its table."""
        if self.engine is None:
            instead = f"; {self.instead}" if self.instead else ""
            return f"engine      reference matcher: {self.why} has no kernel{instead}"
        lines = [f"engine      {self.engine.name}"]
        if self.trends is not None:
            lines.append(str(self.trends))
        if isinstance(self.table, StartTable):
            lines.append(show_starts(self.table, self.runs))
        elif self.table is not None:
            lines.append(str(self.table))
        return "\n".join(lines)

    def __str__(self) -> str:
        if self.engine is None:
            return self.show_engine()
        tests = str(self.runs) if self.trends is None else self.trends.show_conditions(self.runs.local)
        lines = [tests, self.show_engine(), f"why         {self.why}", f"rows        {self.wanted.value}"]
        steps = equalities_of_steps(self.runs) if getattr(self.engine, "looks_up_steps", False) else ()
        if self.looked_up:
            names = ", ".join(c.name for c in self.looked_up)
            lines.append(f"looked up   {names}: a row meets partial matches of its own value only")
        elif self.not_looked_up and not steps:
            lines.append(f"looked up   nothing, though rows of a match are equal: {self.not_looked_up}")
        for found in steps:
            value, name = show(self.runs.features[found.feature][0]), self.runs.names[found.label]
            lines.append(f"looked up   {value}: a row that may be {name} meets partial matches that wait for its value")
        if getattr(self.engine, "finds_waiting", False):
            for found in equalities_behind(self.runs):
                value, name = show(self.runs.features[found.feature][0]), self.runs.names[found.label]
                lines.append(f"looked up   {value}: a row that {name} negates meets waiting matches of its value only")
        if self.specialised:
            lines.append("kernel      interpreted first, later one written out for this program")
        if self.purpose.live:
            spilled = f"with a limit, partial matches leave memory by key (policy {Policy.DUE.value})"
            stay = f"partial matches stay in memory: {self.resident}"
            lines.append(f"memory      {spilled if self.resident is None else stay}")
        if self.purpose.again and self.trends is None:
            lines.append("evidence    found in the archive when it is asked for")
        return "\n".join(lines)
