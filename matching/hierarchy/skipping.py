"""AFTER MATCH of a pattern with boxes: which of all its matches remain.

The engine of a layer skips by rows, and here it is the events that a match covers which count. So it finds all matches,
and what overlaps is left out afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from matching.batch import Int64Array, Matches
from matching.emitted import only
from matching.hierarchy.counts import KeyCodes
from matching.hierarchy.held import of_matches, restored, saved
from matching.limits import not_moving_on
from matching.state import as_array
from query.automaton.compile import compile_plan
from query.automaton.nfa import Automaton
from query.errors import warn
from query.language.ast import AfterMatchKind
from query.plan.boxes import skip_columns
from query.plan.expression import MatchNumber
from query.plan.lag import ends_at_once, prefers_one
from query.plan.output import front_columns
from query.plan.pattern import Negation
from query.plan.pattern import Sequence as Concatenation
from query.plan.plan import Plan

#: What decides about a match. last, complex, seq: the place of its first row among the merged ones; source, offset: its
#: identity; last_us: the time at which it ends. begin, end: the positions of the match's first and last event. to: that
#: of the event of SKIP TO, -1 if there is none. key: its partition.
PLACE = np.dtype([(name, np.int64) for name in (
    "last", "complex", "seq", "source", "offset", "last_us", "begin", "end", "to", "key"
)])  # fmt: skip


class Element(NamedTuple):
    """A row of a match. seq: of matches of boxes that may stand in one place, the first has the smallest."""

    variable: str
    seq: int


class Skipping:
    """Leaves out the matches of a layer that AFTER MATCH rules out, and numbers the others.

    Under a skip-till strategy each match is decided when it comes. Under STRICT and PARTITION one preferred match of
    each start remains, in the order of starts; it is decided when WITHIN has passed since the end of its first row.
    lenient: see matching.matcher.make_matcher. stuck: number of matches from which SKIP TO would not have moved on."""

    def __init__(self, plan: Plan, lenient: bool) -> None:
        self.plan = plan
        self.stuck = 0
        self._lenient = lenient
        self._within_us = None if plan.within is None else plan.within.interval_us
        self._scans = prefers_one(plan)
        self._in_order = ends_at_once(plan)
        self._automaton = _automaton(plan) if self._scans else None
        self._codes = KeyCodes()
        self._numbers: dict[int, int] = {}  # of the last match, by key
        self._begin: dict[int, int] = {}  # no match of a key may begin earlier
        self._starts: dict[tuple[int, int], int] = {}  # rows that begin a match, with the time of their end
        self._covered: dict[int, list[tuple[int, int, int]]] = {}  # by key; with the time of the last event
        self._held: list[_Found] = []

    def step(self, found: Sequence[tuple[Matches, Matches]], reached_us: int | None, ended: bool) -> list[Matches]:
        """Returns the matches that remain, of those that came before and the next. found: pairs of matches of merged
        rows, with the columns of query.plan.boxes.skip_columns, and the same as matches of events.
        reached_us: no merged row with a lower time can still come."""
        some = [self._found(rows, events) for rows, events in found if len(rows)]
        if self._scans:
            self._held += some
            return self._released(reached_us, ended)
        out = [self._numbered(one, one.place["key"], self._apart(one)) for one in some]
        if reached_us is not None and self._within_us is not None:
            self._drop_before(reached_us - 2 * self._within_us)
        return out

    def snapshot(self) -> dict[str, np.ndarray]:
        """Returns its state."""
        head = {
            "stuck": self.stuck, "numbers": list(self._numbers.items()), "begin": list(self._begin.items()),
            "starts": [[*start, us] for start, us in self._starts.items()], "covered": list(self._covered.items()),
            "held": [one.names for one in self._held],
        }  # fmt: skip
        arrays = {"head": as_array(json.dumps(head).encode()), "codes": self._codes.snapshot()}
        for i, one in enumerate(self._held):
            arrays |= saved(one.matches, f"{i} matches ") | {f"{i} place": as_array(one.place.tobytes())}
            arrays |= {f"{i} bounds": one.bounds, f"{i} variable": one.variable, f"{i} seq": one.seq}
        return arrays

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores a snapshot."""
        head = json.loads(state["head"].tobytes())
        self._codes.restore(state["codes"])
        self.stuck = head["stuck"]
        self._numbers, self._begin = dict(head["numbers"]), dict(head["begin"])
        self._starts = {(source, offset): us for source, offset, us in head["starts"]}
        self._covered = {key: [(a, b, us) for a, b, us in covered] for key, covered in head["covered"]}
        self._held = []
        for i, names in enumerate(head["held"]):
            matches = restored(state, f"{i} matches ")
            place = state[f"{i} place"].view(PLACE)
            more = (state[f"{i} {name}"] for name in ("bounds", "variable", "seq"))
            self._held.append(_Found(matches, place, tuple(names), *more))

    def _found(self, rows: Matches, events: Matches) -> _Found:
        """Returns matches with what decides about them."""
        own = of_matches(rows)
        hidden = [own.column(measure.name).combine_chunks() for measure in skip_columns(self.plan)]
        first = rows.event_bounds[:-1]
        place = np.zeros(len(rows), PLACE)
        for name, column in zip(("last", "begin", "end", "to"), hidden, strict=False):
            place[name] = np.asarray(column.fill_null(-1))
        place["complex"] = rows.event_source[first] == 0
        place["seq"] = np.where(place["complex"], rows.event_seq[first], 0)
        place["source"], place["offset"] = rows.event_source[first], rows.event_offset[first]
        place["last_us"] = rows.event_ts_us[first]
        keys = [own.column(i).combine_chunks() for i in range(len(self.plan.partition_by))]
        place["key"] = self._codes.of(keys, len(rows))
        return _Found(events, place, rows.variables, rows.event_bounds, rows.event_variable, rows.event_seq)

    # ---- skip till

    def _apart(self, found: _Found) -> Int64Array:
        """Returns the indices of matches that AFTER MATCH leaves, of the next ones in the order of emission."""
        kept: list[int] = []
        if self.plan.after.kind is AfterMatchKind.NO_SKIP:
            return np.arange(len(found.place))
        to_next_row = self.plan.after.kind is AfterMatchKind.TO_NEXT_ROW
        for i, (place, last_us) in enumerate(zip(found.place.tolist(), found.last_us.tolist(), strict=True)):
            *_, source, offset, first_us, begin, end, _, key = place
            start = source, offset
            if to_next_row:
                wanted = start not in self._starts
                self._starts.setdefault(start, first_us)
            elif self._in_order:
                wanted = begin >= self._begin.get(key, 0)
                if wanted:
                    self._begin[key] = end + 1
            else:
                covered = self._covered.setdefault(key, [])
                wanted = all(end < a or b < begin for a, b, _ in covered)
                if wanted:
                    covered.append((begin, end, last_us))
            if wanted:
                kept.append(i)
        return np.array(kept, np.int64)

    def _drop_before(self, time_us: int) -> None:
        """Drops what no match to come can meet: all of them begin later."""
        self._starts = {start: us for start, us in self._starts.items() if us >= time_us}
        for key, covered in list(self._covered.items()):
            self._covered[key] = [one for one in covered if one[2] >= time_us]
            if not self._covered[key]:
                del self._covered[key]

    # ---- one preferred match of each start

    def _released(self, reached_us: int | None, ended: bool) -> list[Matches]:
        """Returns the matches of all starts that are decided, in the order of starts."""
        if not ended and (reached_us is None or self._within_us is None):
            return []
        starts: list[tuple[tuple[int, ...], int, int]] = []
        left: list[_Found] = []
        chosen: list[_Found] = []
        for one in self._held:
            due = np.ones(len(one.place), np.bool_)
            if not ended:
                assert reached_us is not None
                assert self._within_us is not None
                due = one.place["last_us"] + self._within_us < reached_us
            if due.all():
                now = one
            elif not due.any():
                left.append(one)
                continue
            else:
                now = one.at(np.flatnonzero(due))
                left.append(one.at(np.flatnonzero(~due)))
            place = now.place
            orders = zip(place["last"].tolist(), place["complex"].tolist(), place["seq"].tolist(), strict=True)
            starts += [(order, len(chosen), i) for i, order in enumerate(orders)]
            chosen.append(now)
        self._held = left
        # a start is one row, so that its matches are of one key; later ones are of later starts
        out: list[Matches] = []
        for _, of_start in groupby(sorted(starts), lambda start: start[0]):
            group = [(part, i) for _, part, i in of_start]
            key, begin = (int(chosen[group[0][0]].place[name][group[0][1]]) for name in ("key", "begin"))
            if begin < self._begin.get(key, 0):
                continue
            best = 0
            if len(group) > 1:
                assert self._automaton is not None
                best = preferred(self._automaton, [chosen[part].elements(i) for part, i in group])
            part, i = group[best]
            one = chosen[part]
            self._skip(one, i, key)
            out.append(self._numbered(one, one.place["key"], np.array([i])))
        return out

    def _skip(self, found: _Found, i: int, key: int) -> None:
        """Moves on from a match."""
        kind = self.plan.after.kind
        if kind is AfterMatchKind.PAST_LAST_ROW:
            self._begin[key] = int(found.place["end"][i]) + 1
        elif kind in (AfterMatchKind.TO_FIRST, AfterMatchKind.TO_LAST):
            to = int(found.place["to"][i])
            if to < 0 or to == found.place["begin"][i]:
                if not self._lenient:
                    raise not_moving_on(self.plan.after)
                if not self.stuck:
                    said = not_moving_on(self.plan.after).diagnostics[0].message
                    text = f"{said}; the scan continues one row after its start, here and in later cases"
                    warn(text)
                self.stuck += 1
            else:
                self._begin[key] = to

    def _numbered(self, found: _Found, keys: Int64Array, index: Int64Array) -> Matches:
        """Returns the matches at `index` with their numbers."""
        kept = only(found.matches, index)
        number = np.zeros(len(index), np.int64)
        for i, key in enumerate(keys[index].tolist()):
            number[i] = self._numbers[key] = self._numbers.get(key, 0) + 1
        rows = kept.rows
        for i, measure in enumerate(self.plan.measures, len(front_columns(self.plan))):
            if isinstance(measure.expression, MatchNumber):
                field = rows.schema.field(i)
                rows = rows.set_column(i, field, pa.array(number[kept.row_match]).cast(field.type))
        return replace(kept, rows=rows, number=number)


class _Found(NamedTuple):
    """Matches, and what decides about them. place: PLACE of each. names, bounds, variable, seq: their merged rows, as
    in matching.batch.Matches."""

    matches: Matches
    place: np.ndarray
    names: tuple[str, ...]
    bounds: Int64Array
    variable: np.ndarray
    seq: Int64Array

    @property
    def last_us(self) -> Int64Array:
        """Returns the time of the last merged row of each match."""
        return self.matches.last_us if len(self.matches.last_us) else self.place["last_us"]

    def elements(self, i: int) -> list[Element]:
        """Returns the merged rows of a match."""
        rows = slice(self.bounds[i], self.bounds[i + 1])
        of = zip(self.variable[rows].tolist(), self.seq[rows].tolist(), strict=True)
        return [Element(self.names[v], seq) for v, seq in of]

    def at(self, index: Int64Array) -> _Found:
        """Returns the matches at `index`, which is ascending."""
        lengths = np.diff(self.bounds)[index]
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        rows = np.repeat(self.bounds[:-1][index] - bounds[:-1], lengths) + np.arange(bounds[-1])
        return _Found(only(self.matches, index), self.place[index], self.names, bounds, self.variable[rows],
                      self.seq[rows])  # fmt: skip


def preferred(automaton: Automaton, matches: Sequence[Sequence[Element]]) -> int:
    """Returns the index of the preferred one of some matches from one start: by the edges of the automaton, and of
    several rows that may come next by one edge the first."""
    stack = [_ways(automaton, 0, 0, range(len(matches)), matches)]
    while stack:
        way = next(stack[-1], None)
        if way is None:
            stack.pop()
        elif isinstance(way, int):
            return way
        else:
            stack.append(_ways(automaton, way[0], len(stack), way[1], matches))
    raise AssertionError("none of these is a match")


def _ways(
    automaton: Automaton, at: int, depth: int, among: Sequence[int], matches: Sequence[Sequence[Element]]
) -> Iterator[int | tuple[int, list[int]]]:
    """Yields the ways on from a state after `depth` rows, the preferred one first: a match that ends there, or the next
    state with the matches that go there."""
    state = automaton.states[at]
    for rank in range(len(state.edges) + 1):
        if state.accept_at == rank:
            yield from (i for i in among if len(matches[i]) == depth)
        if rank == len(state.edges):
            return
        edge = state.edges[rank]
        rows = sorted((matches[i][depth].seq, i) for i in among
                      if len(matches[i]) > depth and matches[i][depth].variable == edge.variable)  # fmt: skip
        for _, group in groupby(rows, lambda row: row[0]):
            yield edge.target, [i for _, i in group]


def _automaton(plan: Plan) -> Automaton:
    """Returns the automaton of a pattern without its negations, which do not affect preference."""
    parts = plan.pattern.parts if isinstance(plan.pattern, Concatenation) else (plan.pattern,)
    kept = tuple(part for part in parts if not isinstance(part, Negation))
    return compile_plan(replace(plan, pattern=kept[0] if len(kept) == 1 else Concatenation(kept)))
