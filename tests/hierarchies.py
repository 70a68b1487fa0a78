"""Patterns with boxes for tests: statements, plans, random hierarchies and events, and matches as tuples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from hybrid.rows.merged import Merged
from matching.batch import EventBatch, Matches
from matching.by_reference import DuckEvaluation
from matching.matcher import make_matcher
from matching.ordering import sort_events
from matching.purpose import Purpose
from query.hierarchy_reference import ComplexEvent, Composed, Join, compose
from query.language.ast import HistoryKind
from query.language.parse import parse
from query.plan.bind import bind, history_columns
from query.plan.expression import quote
from query.plan.merge import MergedInput, positions
from query.plan.plan import FactorPlan, HistoryPlan, Plan
from query.schema import Field, Schema
from query.values import Row

EVENTS = Schema(
    "events", (Field("ts", "TIMESTAMP"), Field("s", "VARCHAR"), Field("k", "VARCHAR"), Field("i", "BIGINT")), time="ts"
)
#: A second stream: another name of the time, another type of `i`.
OTHERS = Schema(
    "others", (Field("tm", "TIMESTAMP"), Field("i", "INTEGER"), Field("k", "VARCHAR"), Field("s", "VARCHAR")), time="tm"
)
STREAMS = {schema.name: schema for schema in (EVENTS, OTHERS)}
#: With a stream whose history alone is read.
DECLARED = {**STREAMS, "past": replace(EVENTS, name="past")}
SELECTIONS = {
    "NEXT": "SKIP TILL NEXT MATCH", "ANY": "SKIP TILL ANY MATCH", "PARTITION": "PARTITION", "STRICT": "STRICT",
}  # fmt: skip

#: The path of a variable, and the index of its event.
Leaf = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Event:
    """An event. ts_us: its time; name: for messages; stream: that it is from."""

    type: str
    name: str
    ts_us: int
    key: str | None = None
    stream: str = "events"


def events_of(text: str) -> list[Event]:
    """Returns the events of a text such as `a1@0 x1@1{q} y1@2'`: name, which begins with its type, time, key, and a
    mark if it is of the second stream."""
    words = [re.fullmatch(r"(([a-z])\d*)@(\d+)(?:\{(\w)\})?('?)", word) for word in text.split()]
    return [Event(w[2], w[1], int(w[3]), w[4], "others" if w[5] else "events") for w in words if w is not None]


def statement(
    pattern: str, selection: str, define: str, within_us: int | None = None, *, key: bool = False,
    measures: str = "count(*) AS n", after: str = "AFTER MATCH NO SKIP", source: str = "events", rows: str = "",
) -> str:  # fmt: skip
    """Returns a SELECT over one pattern."""
    clauses = [
        "PARTITION BY k" * key, f"ORDER BY {time_of(source)} MEASURES {measures}", rows, after, f"PATTERN ({pattern})",
        "" if within_us is None else f"WITHIN INTERVAL {within_us} MICROSECOND",
        f"SELECTION {SELECTIONS[selection]} DEFINE {define}",
    ]  # fmt: skip
    return f"SELECT * FROM {source} MATCH_RECOGNIZE ({' '.join(c for c in clauses if c)})"


def time_of(source: str) -> str:
    """Returns the column of time of a stream, or of several merged."""
    return str(STREAMS.get(source.removeprefix("MERGE(").split(",")[0], EVENTS).time)


def over(patterns: Mapping[str, str], outermost: str) -> str:
    """Returns a statement with a WITH entry for each pattern."""
    return f"WITH {', '.join(f'{name} AS ({text})' for name, text in patterns.items())} {outermost}"


def plan_of(text: str) -> Plan:
    return factor_of(text).plan


def factor_of(text: str, streams: Mapping[str, Schema] = DECLARED) -> FactorPlan:
    return bind(parse(text), lambda name: streams[name]).factors[-1]


def composed(
    plan: Plan, events: Sequence[Event], begin: int = 0, factor: FactorPlan | None = None,
    numbers: Sequence[int] | None = None, past: Sequence[Event] | None = None,
) -> list[Composed]:  # fmt: skip
    """Returns the matches by the reference. begin: the first event has this value of `i`, or numbers: the values of
    all. factor: reads several streams. past: what boxes are joined with; None: the events."""
    rows = _rows(events, range(begin, begin + len(events)) if numbers is None else numbers)
    history = rows if past is None else _rows(past, range(len(past)))
    if factor is not None:
        members = {member.name: member for member in factor.members}
        rows = [_merged_row(factor, members[e.stream], row) for e, row in zip(events, rows, strict=True)]
    return compose(plan, rows, [e.ts_us for e in events], DuckEvaluation(()), _join(history))


def _rows(events: Sequence[Event], numbers: Sequence[int]) -> list[dict[str, Any]]:
    return [{"ts": e.ts_us, "s": e.type, "k": e.key, "i": i} for i, e in zip(numbers, events, strict=True)]


def _join(events: Sequence[dict[str, Any]]) -> Join:
    """Returns the join of a match with its histories, by the definition."""

    def join(plan: Plan, row: Row) -> Sequence[Row]:
        assert plan.joined is not None
        rows = [dict(row)]
        for k, history in enumerate(plan.joined.factor.histories):
            columns = {name: column for name, of, column in plan.joined.columns if of == k}
            rows = [
                one | {name: found[column] for name, column in columns.items()}
                for one in rows for found in _joined(history, one, plan.joined.factor.alias, events)
            ]  # fmt: skip
        return rows

    return join


def _joined(history: HistoryPlan, live: Row, alias: str, events: Sequence[dict[str, Any]]) -> list[Row]:
    low, high = (
        live[shift.column] + shift.us for shift in (history.low_shift, history.high_shift) if shift is not None
    )
    inside = [event for event in events if low <= event["ts"] < high + history.closed]
    found: list[Row] = list(inside)
    if history.plan is not None:
        matches = compose(history.plan, inside, [event["ts"] for event in inside], DuckEvaluation(()))
        found = [m.row for m in sorted(matches, key=lambda m: (m.last, m.first))]
    met = [one for one in found if _holds(history.on_sql, {alias: live, history.alias: one})]
    match history.kind:
        case HistoryKind.SEMI:
            return [{}] if met else []
        case HistoryKind.ANTI:
            return [] if met else [{}]
        case HistoryKind.NEAREST:
            return met[-1:]
        case HistoryKind.LEFT_NEAREST:
            columns = [field.name for field in history_columns(history)]
            return met[-1:] or [dict.fromkeys(columns)]
    raise AssertionError(history.kind)


def _holds(condition: str, rows: Mapping[str, Row]) -> bool:
    sides = [
        f"(SELECT {', '.join(f'? AS {quote(name)}' for name in row)}) AS {alias}" for alias, row in rows.items()
    ]
    values = [value for row in rows.values() for value in row.values()]
    # on a cursor, and to the end: a result that is not read to its end blocks the connection, which others use
    ((found,),) = duckdb.cursor().execute(f"SELECT {condition} FROM {', '.join(sides)}", values).fetchall()
    return found is True


def _merged_row(factor: FactorPlan, member: MergedInput, row: dict[str, Any]) -> dict[str, Any]:
    own = [{**row, "tm": row["ts"]}[f.name] for f in member.schema.fields]
    places = member.places or positions(factor.schema, member.schema)
    values = [None if at is None else own[at] for at in places]
    return {**dict(zip(factor.schema.names, values, strict=True)), "stream": member.name}


def shown(found: Iterable[Composed], events: Sequence[Event]) -> str:
    """Returns matches as a text: `a1 {x1 y1}`, separated by semicolons."""

    def one(event: ComplexEvent) -> str:
        inside = " ".join(one(part) for _, part in event.parts)
        return f"{{{inside}}}" if event.kind else events[event.first].name

    return " ; ".join(" ".join(one(event) for _, event in match.parts) for match in found)


def batch_of(events: Sequence[Event], factor: FactorPlan | None = None) -> EventBatch:
    """Returns events as a batch. factor: reads several streams."""
    n = len(events)
    columns = pa.record_batch({
        "ts": pa.array([e.ts_us for e in events], pa.int64()).cast(pa.timestamp("us")),
        "s": pa.array([e.type for e in events], pa.string()), "k": pa.array([e.key for e in events], pa.string()),
        "i": pa.array(np.arange(n)),
    })  # fmt: skip
    times = np.array([e.ts_us for e in events], np.int64)
    batch = EventBatch(columns, times, np.zeros(n, np.int32), np.arange(n), np.arange(n))
    if factor is None:
        return batch
    merged, parts = Merged(factor.schema, factor.members), []
    for k, member in enumerate(factor.members):
        own = batch.take(np.flatnonzero([e.stream == member.name for e in events]))
        named = dict(zip(own.columns.schema.names, own.columns.columns, strict=True))
        named["tm"] = named["ts"]
        named["i"] = named["i"].cast(pa.int32()) if member.name == "others" else named["i"]
        values = [named[f.name] for f in member.schema.fields]
        own = replace(own, columns=pa.RecordBatch.from_arrays(values, list(member.schema.names)))
        parts.append(merged.events(k, own))
    return sort_events(EventBatch.concat(parts), factor.schema)


def matched(
    plan: Plan, events: Sequence[Event], cuts: Sequence[int] = (), *, watermarks: bool = False, restart: bool = False,
    purpose: Purpose = Purpose.MATCHES, factor: FactorPlan | None = None,
) -> list[Matches]:  # fmt: skip
    """Returns the Matches of a matcher that takes the events in batches that begin at `cuts`. watermarks: it is told
    the time of each next batch; restart: after each batch another matcher continues from its snapshot. factor: reads
    several streams."""
    matcher, batch, out = make_matcher(plan, purpose=purpose), batch_of(events, factor), []
    for start, stop in pairwise([0, *cuts, len(events)]):
        out.append(matcher.push(batch.slice(start, stop)))
        if watermarks and stop < len(events):
            out.append(matcher.advance(events[stop].ts_us))
        if restart:
            state = matcher.snapshot()
            matcher = make_matcher(plan, purpose=purpose)
            assert matcher.fits(state)
            matcher.restore(state)
    return [*out, matcher.advance(None)]


def leaves(found: Iterable[Matches]) -> list[tuple[Leaf, ...]]:
    """Returns the events of each match, with the paths of their variables."""
    out = []
    for matches in found:
        for i in range(len(matches)):
            begin, end = matches.event_bounds[i : i + 2].tolist()
            assert matches.first_us[i] == matches.event_ts_us[begin]
            assert matches.last_us[i] == matches.event_ts_us[end - 1]
            names = (matches.variables[v] for v in matches.event_variable[begin:end])
            out.append(tuple(zip(names, matches.event_offset[begin:end].tolist(), strict=True)))
    return out


def output(found: Iterable[Matches]) -> list[tuple[object, ...]]:
    """Returns the output rows, times as numbers."""
    rows = []
    for matches in found:
        columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in matches.rows.columns]
        rows += list(zip(*(c.to_pylist() for c in columns), strict=True)) if columns else []
    return rows


# ---- random hierarchies --------------------------------------------------------------------------------------------

TYPES = "abxy"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A statement of up to four layers, its events, and the ways to feed it."""

    text: str
    events: tuple[Event, ...]
    cuts: tuple[int, ...]
    watermarks: bool
    restart: bool


@st.composite
def hierarchies(
    draw: st.DrawFn, selections: Sequence[str] = tuple(SELECTIONS), sources: Sequence[str] = ("events",)
) -> Hierarchy:
    """Draws a hierarchy. sources: what its layers read."""
    key = draw(st.booleans())
    keyed = 0 if key or len(sources) > 1 else draw(st.sampled_from([0, 0, 1, 2]))
    patterns = draw(named_patterns(key, selections, sources, keyed))
    outermost = draw(patterns_over(tuple(patterns), key, selections, boxed=True, sources=sources))[0]
    if draw(st.sampled_from([False, False, True])):
        more = "CLASSIFIER() AS c, t0 AS began,"
        outermost = re.sub(r"(ORDER BY \w+ MEASURES)", rf"\1 {more}", outermost)
        outermost = re.sub(r" (AFTER MATCH|PATTERN \()", r" ALL ROWS PER MATCH \1", outermost, count=1)
    events = draw(event_lists(key or keyed > 0, streams=tuple(STREAMS) if len(sources) > 1 else ("events",)))
    cuts = draw(st.lists(st.integers(1, len(events) - 1), unique=True, max_size=len(events)))
    return Hierarchy(over(patterns, outermost), events, tuple(sorted(cuts)), draw(st.booleans()), draw(st.booleans()))


@st.composite
def named_patterns(
    draw: st.DrawFn, key: bool, selections: Sequence[str] = tuple(SELECTIONS), sources: Sequence[str] = ("events",),
    keyed: int = 0,
) -> dict[str, str]:  # fmt: skip
    """Draws up to three patterns by name, of which later ones may have boxes of earlier ones. keyed: so many of the
    first have a key, also if `key` is False."""
    patterns: dict[str, str] = {}
    for i in range(draw(st.integers(1, 3))):
        patterns[f"p{i}"] = draw(patterns_over(tuple(patterns), key or i < keyed, selections, sources=sources))[0]
    return patterns


@st.composite
def event_lists(
    draw: st.DrawFn, key: bool, types_of: str = TYPES, streams: Sequence[str] = ("events",)
) -> tuple[Event, ...]:
    n = draw(st.integers(4, 12))
    steps = draw(st.lists(st.sampled_from([0, 1, 1, 2]), min_size=n, max_size=n))
    types = draw(st.lists(st.sampled_from(types_of), min_size=n, max_size=n))
    keys = draw(st.lists(st.sampled_from([None, "p", "q"]), min_size=n, max_size=n)) if key else [None] * n
    times = np.cumsum(steps).tolist()
    of = draw(st.lists(st.sampled_from(streams), min_size=n, max_size=n)) if len(streams) > 1 else [*streams] * n
    drawn = sorted(zip(times, of, types, keys, strict=True), key=lambda one: one[:2])
    return tuple(Event(t, f"{t}{i}", at, k, stream) for i, (at, stream, t, k) in enumerate(drawn))


@st.composite
def patterns_over(
    draw: st.DrawFn, below: Sequence[str], key: bool, selections: Sequence[str], boxed: bool = False,
    sources: Sequence[str] = ("events",),
) -> tuple[str, bool]:  # fmt: skip
    """Draws a SELECT over one pattern, whose boxes are of the patterns `below`, and whether it has one. boxed: it
    has. sources: it reads one of them."""
    source = draw(st.sampled_from(sources)) if len(sources) > 1 else sources[0]
    names = ["A", "B", "C"][: draw(st.sampled_from([1, 2, 2, 2, 3]))]
    negated = ["N"] * draw(st.sampled_from([0, 0, 1]))
    defines: dict[str, str] = {}
    boxes: set[str] = set()
    for name in (*names, *negated):
        if below and (draw(st.booleans()) or (boxed and not boxes and name == names[-1])):
            boxes.add(name)
            conditions = ["", f" ON {name}.n >= 2", " ON n < 4", f" ON {name}.t1 - {name}.t0 <= INTERVAL 4 MICROSECOND"]
            defines[name] = f"PATTERN {draw(st.sampled_from(below))}{draw(st.sampled_from(conditions))}"
        else:
            defines[name] = f"s = '{draw(st.sampled_from(TYPES))}'" + draw(st.sampled_from(["", "", " AND i % 3 <> 0"]))
    last = names[-1]
    if boxes and len(names) > 1 and last not in boxes and draw(st.booleans()):  # a condition on the match so far
        defines[last] += f" AND i > FIRST(A.{'n' if 'A' in boxes else 'i'}) - 3"
    if boxes and not draw(st.integers(0, 3)):  # a condition on the event or match before
        name = draw(st.sampled_from([*names, *negated]))
        word = " ON " if name in boxes and " ON " not in defines[name] else " AND "
        before = f"PREV({name}.{'n' if name in boxes else 'i'}, {draw(st.sampled_from([1, 1, 2]))})"
        defines[name] += f"{word}({before} IS {draw(st.sampled_from(['', 'NOT ']))}NULL OR {before} < 5)"
    signs = st.sampled_from(["", "", "", "", "+", "?", "*"])
    parts = [name + draw(signs) for name in names]
    if all(part[-1] in "?*" for part in parts):
        parts[0] = names[0]
    if len(parts) > 2 and draw(st.booleans()):
        parts[:2] = [f"({parts[0]} | {parts[1]})"]
        if all(part.endswith(("?", "*")) or "?" in part or "*" in part for part in parts):
            parts[-1] = last
    if negated:
        parts.insert(draw(st.integers(0, len(parts))), "~N")
    within = draw(st.sampled_from([3, 6, 12] if negated else [None, None, 3, 6, 12]))
    selection = draw(st.sampled_from(list(selections)))
    skips = ["", "AFTER MATCH SKIP PAST LAST ROW", "AFTER MATCH SKIP TO NEXT ROW"]
    after = draw(st.sampled_from(["AFTER MATCH NO SKIP", "AFTER MATCH NO SKIP", *skips]))
    measures = f"count(*) AS n, LAST(A.{'t1' if 'A' in boxes else time_of(source)}) AS m"
    if draw(st.booleans()):
        measures += ", MATCH_NUMBER() AS nth"
    definitions = ", ".join(f"{name} AS {text}" for name, text in defines.items())
    text = statement(" ".join(parts), selection, definitions, within, key=key, measures=measures, after=after,
                     source=source)  # fmt: skip
    return text, bool(boxes)


@st.composite
def hierarchies_of_all_matches(draw: st.DrawFn) -> Hierarchy:
    """Draws hierarchies of SKIP TILL ANY MATCH whose matches mostly have the same variables: many have a plain pattern
    that gives the same."""
    key = draw(st.booleans())
    patterns: dict[str, str] = {}
    for i in range(draw(st.sampled_from([1, 1, 2, 2, 3]))):
        patterns[f"p{i}"] = draw(_of_all_matches(tuple(patterns), key))
    outermost = draw(_of_all_matches(tuple(patterns), key, outermost=True))
    events = draw(event_lists(key, "aabbx"))
    cuts = draw(st.lists(st.integers(1, len(events) - 1), unique=True, max_size=len(events)))
    return Hierarchy(over(patterns, outermost), events, tuple(sorted(cuts)), draw(st.booleans()), draw(st.booleans()))


#: Conditions on one event: by functions that cannot fail, and by ones that do for events of the type x.
_OF_ONE_EVENT = (
    " AND upper(s) <> 'X'", " AND s LIKE '_' AND strlen(s) + i < 11",
    " AND CAST(CASE s WHEN 'x' THEN 'no' ELSE '4' END AS INT) + i > 4",
)  # fmt: skip
_BESIDE = ("i - PREV(i) < 3", "PREV(s) <> 'x'", "coalesce(PREV(LAST(A.i), 2), 0) < 6")


@st.composite
def _of_all_matches(draw: st.DrawFn, below: Sequence[str], key: bool, outermost: bool = False) -> str:
    names = ["A", "B", "C"][: draw(st.sampled_from([1, 2, 2, 2, 3]))]
    box_at = draw(st.integers(0, len(names) - 1)) if outermost else -1
    defines: dict[str, str] = {}
    for i, name in enumerate(names):
        if below and (i == box_at or draw(st.booleans())):
            stay = f"{name}.t1 - {name}.t0"
            conditions = ["", "", f" ON {name}.n >= 2", " ON n < 4", " ON b < 6"]
            conditions.append(f" ON {stay} <= INTERVAL 4 MICROSECOND")
            defines[name] = f"PATTERN {draw(st.sampled_from(below))}{draw(st.sampled_from(conditions))}"
        else:
            more = draw(st.sampled_from(["", "", "", " AND i % 3 <> 0", *_OF_ONE_EVENT, _OF_ONE_EVENT[-1]]))
            defines[name] = f"s = '{draw(st.sampled_from(TYPES[:2]))}'{more}"
    boxed = {name for name, text in defines.items() if text.startswith("PATTERN")}
    last = names[-1]
    if len(names) > 1 and draw(st.booleans()):  # a condition on the match so far
        own = f"{last}.n" if last in boxed else "i"
        word = " ON " if last in boxed and " ON " not in defines[last] else " AND "
        defines[last] += f"{word}{own} > LAST(A.{'n' if 'A' in boxed else 'i'}) - 3"
    if not boxed and draw(st.sampled_from([False, False, True])):  # rows beside the match
        defines[last] += f" AND {draw(st.sampled_from(_BESIDE))}"
    parts = [name + draw(st.sampled_from([*[""] * 8, "{2}", "+", "{1,2}", "?"])) for name in names]
    if all("?" in part for part in parts):
        parts[-1] = last
    if len(names) > 1 and not draw(st.integers(0, 5)):
        defines["N"] = f"s = '{draw(st.sampled_from(TYPES[:2]))}'"
        parts.insert(1, "~N")
    within = draw(st.sampled_from([6, 12, 20, 20] if outermost or "N" in defines else [None, 3, 6, 12]))
    before = "LAST(A.b)" if "A" in boxed else "LAST(A.i)" if boxed else "coalesce(PREV(LAST(A.i), 2), 0)"
    measures = f"count(*) AS n, LAST(A.{'t1' if 'A' in boxed else 'ts'}) AS m, {before} AS b"
    definitions = ", ".join(f"{name} AS {text}" for name, text in defines.items())
    return statement(" ".join(parts), "ANY", definitions, within, key=key, measures=measures)
