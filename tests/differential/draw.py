"""Draws statements for another engine from a seed: over the clauses that it has, on small random tables.

A drawn statement may carry variants: the same statement as the engine is documented to read it, by the name of the
rule (see docs/conformance.md). Where the engine answers a variant instead of the statement, the rule explains it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from tests.cases.golden import Cell, Cells
from tests.differential.engines import Job

COLUMNS = (("k", "VARCHAR"), ("ts", "TIMESTAMP"), ("s", "VARCHAR"), ("v", "INTEGER"), ("w", "INTEGER"))


@dataclass(frozen=True, slots=True)
class Drawn:
    """variants: (rule, the statement as the rule has it read). The columns begin with key, start and end of a match.

    every: where the engine may take another match of a start than the preferred one, the statement for all matches.
    undecided: where the engine may hold matches back, one whose rows without a number are the starts that may still
    give a match when the input ends."""

    job: Job
    variants: tuple[tuple[str, Job], ...] = ()
    every: Job | None = None
    undecided: Job | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """text: in DEFINE of its own variable. behind: the same condition of a row that would be the variable's next one,
    read in DEFINE of another variable."""

    text: str
    behind: str


@dataclass(frozen=True, slots=True)
class Element:
    """One variable of a chain. most: None without an upper bound."""

    name: str
    quantifier: str
    least: int
    most: int | None
    reluctant: bool
    condition: Condition | None

    @property
    def fixed(self) -> bool:
        return self.least == self.most

    @property
    def greedy_loop(self) -> bool:
        return not self.fixed and not self.reluctant and self.most != 1

    def written(self, quantifier: str | None = None) -> str:
        return self.name + (self.quantifier if quantifier is None else quantifier)


@dataclass(frozen=True, slots=True)
class Clauses:
    """The parts of a statement over t."""

    measures: str
    pattern: str
    define: str
    after: str
    rows: str = "ONE ROW PER MATCH"
    within: str = ""
    skip: str = "SKIP "

    def text(self) -> str:
        lines = [
            "SELECT * FROM t MATCH_RECOGNIZE (",
            "  PARTITION BY k ORDER BY ts",
            f"  MEASURES {self.measures}",
            f"  {self.rows}",
            f"  AFTER MATCH {self.skip}{self.after}",
            f"  PATTERN ({self.pattern})",
            f"  WITHIN INTERVAL '{self.within}' SECOND" if self.within else "",
            f"  DEFINE {self.define}" if self.define else "",
            ") AS m",
        ]
        return "\n".join(line for line in lines if line)


def table(random: Random, nulls: float, letters: str = "abc") -> Cells:
    """One to three partitions of 8 to 24 rows, at whole, strictly growing, even seconds. w is null here and there."""
    rows: list[tuple[Cell, ...]] = []
    for key in "abc"[: random.randint(1, 3)]:
        ts = 0
        for _ in range(random.randint(8, 24)):
            ts += 2 * random.randint(1, 3)
            w = None if random.random() < nulls else str(random.randint(0, 9))
            rows.append((key, str(ts), random.choice(letters), str(random.randint(0, 9)), w))
    return Cells(COLUMNS, tuple(rows))


# ---- Flink SQL -------------------------------------------------------------------------------------------------

#: (quantifier, least, most, reluctant)
QUANTIFIERS: tuple[tuple[str, int, int | None, bool], ...] = (
    ("", 1, 1, False), ("", 1, 1, False), ("", 1, 1, False), ("+", 1, None, False), ("*", 0, None, False),
    ("?", 0, 1, False), ("{2}", 2, 2, False), ("{1,2}", 1, 2, False), ("{2,}", 2, None, False), ("{2,3}", 2, 3, False),
    ("+?", 1, None, True), ("*?", 0, None, True), ("{1,3}?", 1, 3, True), ("{2,}?", 2, None, True),
)  # fmt: skip

GREEDY = "a greedy loop gives no row back"
OPTIONAL = "an optional variable is not preferred"
BOTH = "a greedy loop gives no row back, and an optional variable is not preferred"
HELD = "a match behind a start that is undecided when the input ends is not given out"
FIRST = "of the matches of a start, one that ends first is taken, not the preferred one"


def flink(random: Random) -> Drawn:
    """A chain of two to four variables. Half of the statements have conditions of which a row meets one only."""
    chain = elements(random)
    pattern = " ".join(element.written() for element in chain)
    clauses = Clauses(
        measures=flink_measures(random, chain),
        pattern=pattern,
        define=defined(chain),
        after=flink_after(random, chain),
        within=str(2 * random.randint(2, 8) + 1) if random.random() < 0.3 else "",
    )
    inputs = {"t": table(random, nulls=0.2)}
    greedy = defined(chain, nothing_back=True)
    ungreedy = " ".join(e.written("??" if e.quantifier == "?" else None) for e in chain)
    variants = [
        (rule, replace(clauses, pattern=p, define=d))
        for rule, p, d in ((GREEDY, pattern, greedy), (OPTIONAL, ungreedy, clauses.define), (BOTH, ungreedy, greedy))
        if (p, d) != (pattern, clauses.define)
    ]
    open_elements = [element for element in chain if not element.fixed]
    several = len(open_elements) > 1 and not all(element.greedy_loop for element in open_elements)
    every = replace(clauses, define=greedy, after="NO SKIP", skip="")
    endless = not clauses.within and any(element.most is None for element in chain)
    undecided = replace(clauses, measures="FIRST(ts) AS start_ts, MATCH_NUMBER() AS number", after="TO NEXT ROW",
                        rows="ONE ROW PER MATCH TIMEOUT ROWS", within="1000000")  # fmt: skip
    return Drawn(
        Job(inputs, clauses.text()),
        tuple((rule, Job(inputs, each.text())) for rule, each in variants),
        Job(inputs, every.text()) if several else None,
        Job(inputs, undecided.text()) if endless else None,
    )


def elements(random: Random) -> list[Element]:
    """Flink ends no pattern in a greedy loop and puts nothing optional behind one."""
    count = random.randint(2, 4)
    apart = random.random() < 0.5
    letters = random.sample("abc", 3)
    chain: list[Element] = []
    for at in range(count):
        name = "ABCD"[at]
        while True:
            quantifier, least, most, reluctant = random.choice(QUANTIFIERS)
            loop = least != most and not reluctant and most != 1
            behind_loop = bool(chain) and chain[-1].greedy_loop
            if (least == 0 and behind_loop) or (at == count - 1 and (loop or least == 0)):
                continue
            break
        first = f"s = '{letters[at]}'" if apart and at < 3 else None
        chain.append(Element(name, quantifier, least, most, reluctant, condition(random, name, chain, first, apart)))
    if all(element.condition is None for element in chain):
        chain[0] = Element("A", chain[0].quantifier, chain[0].least, chain[0].most, chain[0].reluctant,
                           Condition("s <> 'c'", "s <> 'c'"))  # fmt: skip
    return chain


def condition(random: Random, name: str, before: list[Element], first: str | None, apart: bool) -> Condition | None:
    if first is None and (apart or random.random() < 0.15):
        return None
    bound = random.randint(1, 8)
    op = random.choice(("<", "<=", ">", ">="))
    kinds: list[tuple[str, str]] = [
        (f"v {op} {bound}", f"v {op} {bound}"),
        (f"s = '{random.choice('abc')}'",) * 2,
        (f"s <> '{random.choice('abc')}'",) * 2,
        (f"v BETWEEN {bound - 1} AND {bound + 3}",) * 2,
        (f"(w IS NULL OR w {op} {bound})",) * 2,
        (f"(LAST({name}.v, 1) IS NULL OR {name}.v {op} LAST({name}.v, 1))",
         f"(LAST({name}.v) IS NULL OR v {op} LAST({name}.v))"),
        (f"sum({name}.v) < {2 * bound + 4}", f"COALESCE(sum({name}.v), 0) + v < {2 * bound + 4}"),
        (f"count({name}.v) <= {bound % 3 + 1}", f"count({name}.v) + 1 <= {bound % 3 + 1}"),
        (f"min({name}.v) >= {bound % 4}", f"COALESCE(least(min({name}.v), v), v) >= {bound % 4}"),
    ]  # fmt: skip
    for other in before:
        text = random.choice((
            f"v {op} LAST({other.name}.v)", f"v {op} FIRST({other.name}.v)", f"v {op} {other.name}.v + 1",
            f"v {op} LAST({other.name}.v, 1)", f"v {op} max({other.name}.v)", f"count({other.name}.v) {op} 2",
        ))  # fmt: skip
        kinds.append((text, text))
    drawn = random.sample(kinds, 1 if random.random() < 0.6 else 2)
    parts = [(first, first), *drawn[: random.randint(0, 1)]] if first else drawn
    return Condition(" AND ".join(p for p, _ in parts if p), " AND ".join(b for _, b in parts if b))


def defined(chain: list[Element], *, nothing_back: bool = False) -> str:
    """DEFINE. nothing_back: the row behind a greedy loop is none that meets the loop's condition, not even where {n,m}
    is full."""
    parts = []
    for at, element in enumerate(chain):
        text = element.condition.text if element.condition else "TRUE"
        loop = chain[at - 1] if at else None
        if nothing_back and loop and loop.greedy_loop:
            takes = loop.condition.behind if loop.condition else "TRUE"
            here = f"COALESCE(LAST(CLASSIFIER(), 1), '') <> '{element.name}'"
            text = f"({text}) AND NOT ({here} AND COALESCE({takes}, FALSE))"
        if text != "TRUE":
            parts.append(f"{element.name} AS {text}")
    return ", ".join(parts)


def flink_measures(random: Random, chain: list[Element]) -> str:
    kinds = []
    for element in chain:
        x = element.name
        kinds += [f"{x}.v", f"FIRST({x}.ts)", f"LAST({x}.v)", f"LAST({x}.v, 1)", f"FIRST({x}.w, 1)", f"sum({x}.v)",
                  f"count({x}.w)", f"min({x}.w)", f"max({x}.v + 1)", f"sum({x}.w)", f"{x}.v + 1",
                  f"avg(CAST({x}.v AS DOUBLE))"]  # fmt: skip
    kinds += ["v", "count(*)", "sum(v)", "FIRST(v)", "LAST(v, 1)", "max(w)", "LAST(w)", "min(ts)"]
    drawn = ["FIRST(ts)", "LAST(ts)", *random.sample(kinds, random.randint(2, 4))]
    return ", ".join(f"{text} AS m{at}" for at, text in enumerate(drawn))


def flink_after(random: Random, chain: list[Element]) -> str:
    """SKIP TO names a variable that every match has, and not the first one."""
    names = [e.name for e in chain[1:] if e.least] if chain[0].least else []
    kinds = ["PAST LAST ROW", "PAST LAST ROW", "TO NEXT ROW"]
    kinds += [f"TO {which} {name}" for name in names for which in ("FIRST", "LAST")]
    return random.choice(kinds)


# ---- pandas_match_recognize ------------------------------------------------------------------------------------


def pandas(random: Random) -> Drawn:
    """A chain of variables and alternations of variables.

    Drawn is what it answers by the standard (docs/conformance.md lists the rest): no reluctant loops, empty matches
    under SKIP PAST LAST ROW and without `$` only, loops and alternations only where a row meets one condition only
    (two of three statements)."""
    names = list("ABCD"[: random.randint(1, 4)])
    apart = random.random() < 0.67
    pattern, least = chained(random, names, apart)
    rows = random.choice(ROWS)
    if random.random() < 0.15:
        pattern = random.choice(("^ {}", "{} $", "^ {} $") if least else ("^ {}",)).format(pattern)
    letters = "abcd"[: max(2, len(names))]
    own = random.sample(letters, len(letters))
    conditions = []
    for at, name in enumerate(names):
        conditions.append(f"{name} AS " + (f"s = '{own[at]}'" if apart else row_condition(random, name, names[:at])))
    clauses = Clauses(
        measures=pandas_measures(random, names, rows),
        pattern=pattern,
        define=", ".join(conditions),
        after=random.choice(("PAST LAST ROW", "PAST LAST ROW", "TO NEXT ROW")) if least else "PAST LAST ROW",
        rows=rows,
    )
    return Drawn(Job({"t": table(random, 0, letters)}, clauses.text()))


ROWS = ("ONE ROW PER MATCH", "ONE ROW PER MATCH", "ALL ROWS PER MATCH", "ALL ROWS PER MATCH OMIT EMPTY MATCHES",
        "ALL ROWS PER MATCH WITH UNMATCHED ROWS")  # fmt: skip


def chained(random: Random, names: list[str], apart: bool) -> tuple[str, int]:
    """A pattern in which each of the names stands once, in order, and the least number of its rows, 0 or more."""
    parts, least = [], 0
    left = list(names)
    while left:
        if apart and len(left) > 1 and random.random() < 0.25:
            quantifier = random.choice(("", "", "+", "*", "{2}"))
            parts.append(f"({left.pop(0)} | {left.pop(0)}){quantifier}")
        else:
            quantifier = random.choice(("", "", "", "+", "*", "?", "{2}", "{1,2}", "{2,}") if apart else ("", "{2}"))
            parts.append(left.pop(0) + quantifier)
        least += quantifier not in ("*", "?")
    return " ".join(parts), least


def row_condition(random: Random, name: str, before: list[str]) -> str:
    bound = random.randint(1, 8)
    op = random.choice(("<", "<=", ">", ">="))
    kinds = [f"v {op} {bound}", f"s = '{random.choice('abc')}'", f"s IN ('a', '{random.choice('bc')}')",
             f"v {op} PREV(v)", f"v {op} NEXT(v)", f"v BETWEEN {bound - 1} AND {bound + 3}",
             f"v + {bound} {op} 8"]  # fmt: skip
    kinds += [f"{name}.v {op} {other}.v" for other in before]
    return random.choice((" AND ", " OR ")).join(random.sample(kinds, random.choice((1, 1, 2))))


def pandas_measures(random: Random, names: list[str], rows: str) -> str:
    kinds = ["CLASSIFIER()", "MATCH_NUMBER()"]
    if rows.startswith("ONE"):
        kinds += ["FIRST(ts)", "LAST(ts)", "FIRST(v)", "sum(v)", "count(*)", "max(v)"]
        kinds += [f"LAST({name}.v)" for name in names] + [f"FIRST({name}.v)" for name in names]
    else:
        kinds += ["FIRST(v)", "FINAL LAST(v)", "RUNNING sum(v)", "RUNNING count(*)"]
        kinds += [f"RUNNING LAST({name}.v)" for name in names] + [f"FINAL count({name}.*)" for name in names]
    drawn = [kinds[0], kinds[1], *random.sample(kinds[2:], 2)]
    return ", ".join(f"{text} AS m{at}" for at, text in enumerate(drawn))
