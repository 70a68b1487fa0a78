"""Load shedding: whatever the query, what comes out is what comes out without it, of the partitions that are kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matching.feed import Feed, Member
from matching.shedding import BUCKETS, Shedder
from query.errors import QueryError
from query.language.ast import Selection
from query.plan.plan import Plan
from tests.events import batch_of
from tests.properties.comparing import FEWER
from tests.properties.test_skip_till import skipping
from tests.strategies import SCHEMA, K, Row, events, plans

#: AFTER MATCH SKIP TO that would not move on warns; these tests go on.
pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
KEYS = ("p", "q", "r", "s", "t", None)


@st.composite
def shed(draw: st.DrawFn) -> Plan:
    plan = draw(plans((Selection.PARTITION,)) | skipping())
    return replace(plan, partition_by=(K,))


def kept(shedder: Shedder) -> set[str | None]:
    bucket = shedder.hashes([pa.array(KEYS)], len(KEYS)) & (BUCKETS - 1)
    return {key for key, b in zip(KEYS, bucket.tolist()) if b < shedder.kept}


def shown(member: Member) -> list[tuple[object, str]]:
    """The rows since the last call, with their keys. Rejects what takes the reference too many steps."""
    assume(not isinstance(member.failure, QueryError))
    assert member.failure is None
    return [(row["k"], repr(row)) for matches in member.take_found() for row in matches.rows.to_pylist()]


@pytest.mark.slow
@FEWER
@given(
    rows=events(min_size=5, keys=KEYS), plan=shed(), size=st.sampled_from((1, 3, 100)), at=st.integers(0, 8),
    share=st.sampled_from((1, BUCKETS // 4, BUCKETS // 2, 3 * BUCKETS // 4)), restored=st.booleans(),
)  # fmt: skip
def test_what_comes_out_is_that_of_the_partitions_that_are_kept(
    rows: list[Row], plan: Plan, size: int, at: int, share: int, restored: bool
) -> None:
    feed = Feed(SCHEMA)
    some, whole = feed.add(plan, 0, Shedder(plan.partition_by)), feed.add(plan, 0)
    assert some.shedder is not None
    for begin in range(0, len(rows), size):
        if begin >= at and some.shedder.keeps_all:
            before, after = Counter(shown(some)), Counter(shown(whole))
            assert before == after
            some.shedder.kept = share
        if restored:
            state, members = feed.snapshot([some, whole])
            found = {id(m): m.take_found() for m in members}
            feed = Feed(SCHEMA)
            new = dict(zip(map(id, members), feed.restore(state, [plan, plan])))
            for member in members:
                new[id(member)].found = found[id(member)]
            some, whole = new[id(some)], new[id(whole)]
            assert some.shedder is not None
        batch = batch_of(SCHEMA, rows[begin : begin + size], begin)
        feed.push(batch, int(batch.ts_us[-1]))
    feed.advance(None)
    keys = kept(some.shedder)
    assert Counter(shown(some)) == Counter(row for row in shown(whole) if row[0] in keys)
    account = some.shedder.account()
    assert account.taken + account.shed == len(rows)


def test_the_hash_of_a_key_is_the_same_everywhere() -> None:
    """A bucket that moved would let a restarted query leave out other keys."""
    found = Shedder((K,)).hashes([pa.array(["p", "", None, "a longer key"])], 4)
    assert (found & (BUCKETS - 1)).tolist() == [642, 746, 288, 657]
