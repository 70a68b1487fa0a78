"""Trends of small windows: every labelling of every subset of events is tried against the pattern.

A pattern is ("event", variable), ("not", variable), ("seq", p, ...), ("or", p, ...), ("plus", p) or ("star", p); "not"
is an element of "seq". A query has several of them for AND.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import combinations, pairwise, product
from typing import Any

Pattern = tuple[Any, ...]
#: An event: its columns, `time` among them.
Event = Mapping[str, Any]
#: An event of a trend with its variable.
Labelled = tuple[str, Event]
#: Returns whether an event may take a variable after the events before it in the trend, the nearest last.
Condition = Callable[[Event, Sequence[Labelled]], bool]


@dataclass(frozen=True)
class Query:
    """sides: the patterns of AND, or the only one. conditions: by variable, negated ones too, which are given no
    events before. keys: columns in which the events of a trend agree, nulls among themselves; groups: those of them
    that make a row each. strategy: ANY, PARTITION, or NEXT for a flat pattern. aggregates: (function, variables,
    column), no column to count events and no variables to count trends."""

    sides: tuple[Pattern, ...]
    conditions: Mapping[str, Condition]
    within: int
    slide: int
    keys: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    strategy: str = "ANY"
    aggregates: tuple[tuple[str, tuple[str, ...], str], ...] = field(default=(("count", (), ""),))


def rows(query: Query, events: Sequence[Event]) -> list[tuple[Any, ...]]:
    """Returns (start, end, group values..., aggregates...) of each window and group with a trend, in that order with
    nulls first. events: in their order."""
    found: dict[tuple[int, tuple[Any, ...]], list[list[Labelled]]] = {}
    starts = {k for e in events for k in range(-query.within - abs(e["time"]), abs(e["time"]) + 1)}
    for k in starts:
        start = k * query.slide
        inside = [e for e in events if start <= e["time"] < start + query.within]
        for key in {tuple(e[c] for c in query.keys) for e in inside}:
            own = [e for e in inside if tuple(e[c] for c in query.keys) == key]
            sides = [list(trends(side, query, own)) for side in query.sides]
            group = tuple(own[0][c] for c in query.groups)
            for each in product(*sides):
                found.setdefault((start, group), []).append([label for trend in each for label in trend])
    ordered = sorted(found, key=lambda at: (at[0], [(v is not None, v) for v in at[1]]))
    return [
        (start, start + query.within, *group, *(aggregated(a, found[start, group]) for a in query.aggregates))
        for start, group in ordered
    ]


def trends(pattern: Pattern, query: Query, events: Sequence[Event]) -> Iterator[list[Labelled]]:
    """Yields the trends of one pattern among the events of a window and key, each labelled sequence once."""
    names = variables(pattern)
    for size in range(1, len(events) + 1):
        for chosen in combinations(range(len(events)), size):
            if query.strategy == "PARTITION" and chosen[-1] - chosen[0] + 1 > size:
                continue
            for trend in labelled(query, names, [events[i] for i in chosen]):
                labels = [name for name, _ in trend]
                if not is_word(pattern, query, events, labels, chosen):
                    continue
                if query.strategy != "NEXT" or not passes_over(pattern, query, events, labels, chosen):
                    yield trend


def labelled(query: Query, names: Sequence[str], chosen: Sequence[Event]) -> Iterator[list[Labelled]]:
    """Yields all ways to give each event a variable that it may take."""
    if not chosen:
        yield []
        return
    for before in labelled(query, names, chosen[:-1]):
        for name in names:
            if query.conditions[name](chosen[-1], before):
                yield [*before, (name, chosen[-1])]


def variables(pattern: Pattern) -> list[str]:
    """Returns the variables that events of a trend may have."""
    if pattern[0] == "event":
        return [pattern[1]]
    return [] if pattern[0] == "not" else [name for part in pattern[1:] for name in variables(part)]


def is_word(
    pattern: Pattern, query: Query, events: Sequence[Event], labels: Sequence[str], chosen: Sequence[int]
) -> bool:
    """True if the labels are a word of the pattern, with no forbidden event in the gaps where it says NOT."""
    edges = [-1, *chosen, len(events)]

    @cache
    def free(name: str, gap: int) -> bool:
        """True if no event of a variable lies in a gap: before the first, between neighbours, after the last."""
        between = range(edges[gap] + 1, edges[gap + 1])
        return not any(query.conditions[name](events[i], ()) for i in between)

    @cache
    def reads(p: Pattern, first: int, last: int) -> bool:
        """True if p reads labels[first:last]."""
        match p:
            case ("event", name):
                return last == first + 1 and labels[first] == name
            case ("not", name):
                return first == last and free(name, first)
            case ("seq", only):
                return reads(only, first, last)
            case ("seq", head, *rest):
                cuts = range(first, last + 1)
                return any(reads(head, first, cut) and reads(("seq", *rest), cut, last) for cut in cuts)
            case ("or", *choices):
                return any(reads(choice, first, last) for choice in choices)
            case ("star", body):
                return first == last or reads(("plus", body), first, last)
            case ("plus", body):
                if reads(body, first, last):
                    return True
                return any(reads(body, first, cut) and reads(p, cut, last) for cut in range(first + 1, last))
        raise ValueError(p)

    return reads(pattern, 0, len(labels))


def passes_over(
    pattern: Pattern, query: Query, events: Sequence[Event], labels: Sequence[str], chosen: Sequence[int]
) -> bool:
    """True if a trend of a flat pattern skips an event that it waits for: after a loop one of the same loop, otherwise
    any that may come next."""
    parts = [p for p in (pattern[1:] if pattern[0] == "seq" else (pattern,)) if p[0] != "not"]
    elements = [(p[1][1] if p[0] in ("plus", "star") else p[1], p[0]) for p in parts]
    for n, (here, behind) in enumerate(pairwise(chosen)):
        at = [name for name, _ in elements].index(labels[n])
        awaited = [labels[n]]
        if elements[at][1] == "event":
            awaited = []
            for name, kind in elements[at + 1 :]:
                awaited.append(name)
                if kind != "star":
                    break
        trend = [(labels[i], events[chosen[i]]) for i in range(n + 1)]
        if any(query.conditions[name](events[i], trend) for i in range(here + 1, behind) for name in awaited):
            return True
    return False


def aggregated(aggregate: tuple[str, tuple[str, ...], str], found: Sequence[Sequence[Labelled]]) -> Any:
    """Returns an aggregate over trends: an event counts once for each trend that has it, nulls do not count."""
    function, names, column = aggregate
    if not names:
        return len(found)
    events = [e for trend in found for name, e in trend if name in names]
    if not column:
        return len(events)
    values = [e[column] for e in events if e[column] is not None]
    if function == "count":
        return len(values)
    if not values:
        return None
    if function == "avg":
        return float(Fraction(sum(values), len(values)))
    return {"sum": sum, "min": min, "max": max}[function](values)
