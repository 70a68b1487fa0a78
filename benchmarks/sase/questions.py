"""The queries of [SASE] section 6 and their events."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan
from simulator import stock

SELECTIONS = {"s2": "PARTITION", "s3": "SKIP TILL NEXT MATCH"}
STRATEGIES = {"s2": "partition_contiguity", "s3": "skip_till_next_match"}
#: P(a[i]) as the paper writes it; the aggregate of p3 is min, which the paper's figures show.
ITERATORS = {"p1": "", "p2": "and a[i].price > a[i-1].price", "p3": "and a[i].price > min(a[..i-1].price)"}
#: The same in DEFINE: what is null at the first row of A, and the condition on the others, which is false there.
#: `symbol` is the same in all runs of a partition, so that it keeps none apart.
ON_ROWS = {
    "p1": ("LAST(A.symbol, 1)", "LAST(A.symbol, 1) IS NOT NULL"),
    "p2": ("LAST(A.price, 1)", "price > LAST(A.price, 1)"),
    "p3": ("LAST(A.symbol, 1)", "price > min(A.price)"),
}


@dataclass(frozen=True, slots=True)
class Question:
    """strategy: s2 (partition contiguity) or s3 (skip till next match). iterator: p1, p2 or p3. window: the paper's W,
    events of a partition. starred: with a third event c (p* of experiment 4). overlapping: all matches; otherwise the
    first complete one at a time. p_rise: the probability that a price rises."""

    strategy: str
    iterator: str
    window: int
    starred: bool = False
    overlapping: bool = True
    p_rise: float = 0.7

    @property
    def name(self) -> str:
        return f"{self.iterator}{'*' if self.starred else ''} {self.strategy}"

    @property
    def sase(self) -> str:
        """The paper's text. All matches."""
        third = ", Stock c" if self.starred else ""
        variables = "a[], b, c" if self.starred else "a[], b"
        last = "\n    and c.price > a[1].price and c.price < a[a.LEN].price" if self.starred else ""
        return f"""FROM stock PATTERN SEQ(Stock+ a[], Stock b{third})
WHERE {STRATEGIES[self.strategy]}({variables}) {{
    [symbol] and a[1].price % 500 = 0 {ITERATORS[self.iterator]}
    and b.volume < 150{last} }}
WITHIN {self.window} ROWS"""

    @property
    def text(self) -> str:
        """The same query in SQL, with no more values in a run than the paper's: what SASE+ makes of the text above
        counts the rows of A to know the first one, and here the first one is that with nothing before it. p1 has a
        variable of its own for it, so that its conditions read single rows. In the others that would be another query:
        a run with one row could then not pass over a row that B could be.
        """
        if self.iterator == "p1" and not self.starred:
            array, define = "F A*", "F AS price % 500 = 0"
        else:
            before, goes_on = ON_ROWS[self.iterator]
            array, define = "A+", f"A AS ({before} IS NULL AND price % 500 = 0) OR {goes_on}"
        if not self.overlapping and self.strategy == "s2":
            array += "?"  # here the preferred match counts, not the one that is complete first
        third = " C" if self.starred else ""
        last = ", C AS price > FIRST(A.price) AND price < LAST(A.price)" if self.starred else ""
        return f"""SELECT * FROM stock MATCH_RECOGNIZE (
    PARTITION BY symbol ORDER BY ts
    MEASURES MATCH_NUMBER() AS number
    AFTER MATCH {"NO SKIP" if self.overlapping else "SKIP PAST LAST ROW"}
    PATTERN ({array} B{third})
    WITHIN {self.window} ROWS
    SELECTION {SELECTIONS[self.strategy]}
    DEFINE {define}, B AS volume < 150{last}
) AS m"""


def plan_of(text: str) -> Plan:
    """The plan of the one pattern in a text about `stock`."""
    return bind(parse(text), lambda _: stock.SASE_STOCK).factors[0].plan


def events_of(question: Question, seed: int, windows: int) -> pa.Table:
    """The paper's stream: two symbols, `windows` partition windows of events for each.

    The paper does not say what follows a price of 1000. In stock.sase it is 1, and here 1000 itself is 0: a run that
    begins there goes up from 0. Otherwise half of all runs would begin at a price that nothing exceeds, the matches of
    p2 under s3 would have 70 events instead of the paper's 140, and p3 would not be "close to p1".
    """
    events = stock.sase(seed, 2 * windows * question.window, p_rise=question.p_rise)
    price = events["price"].to_numpy() % 1000
    return events.set_column(events.schema.get_field_index("price"), "price", pa.array(price))
