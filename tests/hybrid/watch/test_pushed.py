"""A push returns the number of accepted events, with those of late and known ones."""

from __future__ import annotations

import json
import pickle
import warnings
from datetime import datetime, timedelta

import pytest

import hybrid
from hybrid.watch.pushed import Pushed
from query.errors import HybridWarning

START = datetime(2024, 1, 2)
FALLS = "SELECT * FROM s MATCH_RECOGNIZE (ORDER BY ts MEASURES A.v AS a PATTERN (A B) DEFINE B AS v < A.v)"


def event(seconds: float) -> dict[str, object]:
    return {"ts": START + timedelta(seconds=seconds), "k": "a", "v": 1}


def opened(lateness: str | None = None) -> hybrid.Database:
    db = hybrid.connect()
    db.create_stream("s", {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}, time="ts", key="k", lateness=lateness)
    return db


def test_it_says_what_was_accepted_late_and_known() -> None:
    with opened() as db:
        first = db.push("s", [event(0), event(1)], offset=0)
        done = db.push("s", [event(1), event(-86400), event(2), event(3)], offset=1)
        again = db.push("s", [event(2)], offset=3)
    assert [(p.accepted, p.late, p.known) for p in (first, done, again)] == [(2, 0, 0), (3, 1, 1), (0, 0, 1)]
    assert (repr(done), str(again)) == ("3 accepted, 1 late, 1 known", "0 accepted, 0 late, 1 known")


def test_it_is_the_number_of_new_events() -> None:
    done = Pushed(1234, 1, 2)
    assert (done, done + 1, hash(done), f"{done:,}", json.dumps([done])) == (1234, 1235, hash(1234), "1,234", "[1234]")
    assert not Pushed(0, 0, 5)
    assert [range(9)[Pushed(3)], sum([Pushed(3), Pushed(4)])] == [3, 7]
    copy = pickle.loads(pickle.dumps(done))
    assert (copy.accepted, copy.late, copy.known) == (1234, 1, 2)
    with pytest.raises(AttributeError):
        done.late = 0  # type: ignore[misc]


def test_the_first_late_event_that_no_query_sees_is_said_once() -> None:
    # Before: no word of an event a day late, under the lateness that nobody had chosen.
    with opened("1 min") as db:
        db.push("s", [event(0)])
        db.push("s", [event(-3600)])  # nobody misses it
        db.watch(FALLS)
        with pytest.warns(HybridWarning, match="late") as caught:
            db.push("s", [event(60), event(-86400)])
        (said,) = (str(one.message) for one in caught)
        assert "an event of 2024-01-01 00:00:00 came late, 1 day, 0:00:00 behind the watermark" in said
        assert "lateness of 1 min" in said
        assert "lateness=" in said
        assert "late('s')" in said
        assert db.push("s", [event(-1000)]).late == 1
        assert db.streams()["s"]["late"] == 3


def test_late_events_that_somebody_fetches_are_not_said() -> None:
    with opened() as db, warnings.catch_warnings():
        warnings.simplefilter("error")
        db.watch(FALLS)
        late = db.late("s")
        db.push("s", [event(0), event(-86400)])
        assert late.fetch().num_rows == 1
