"""Threads that push and fetch at the same time under a memory limit, and a Ctrl-C in between."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hybrid
from hybrid.rows.outer import Outer
from hybrid.watch.alerts import Alerts
from hybrid.watch.paged import PAGES, Pages
from tests.hybrid.interrupted import Disturbance, interrupt
from tests.hybrid.watch.test_checkpoint import FALLS, ONCE
from tests.hybrid.watch.test_paged import LIMIT, opened
from tests.hybrid.watch.test_saved import events
from tests.properties.comparing import is_nightly
from tests.waiting import GUARD_S

pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")  # patterns without WITHIN, and limits

#: Longer than any step takes; what waits longer waits for ever.
FOR_EVER_S = GUARD_S


class Held:
    """Outer SELECTs of all queries, held until `go` is set. failing: how many of them fail then."""

    def __init__(self, patch: pytest.MonkeyPatch, failing: int = 0) -> None:
        self.begun, self.go, self._failing = threading.Event(), threading.Event(), failing
        self._run, self._lock = Outer.run, threading.Lock()
        patch.setattr(Outer, "run", lambda outer, *given: self._held(outer, *given))

    def _held(self, outer: Outer, *given: Any) -> pa.Table:
        self.begun.set()
        assert self.go.wait(FOR_EVER_S)
        with self._lock:
            self._failing -= 1
            if self._failing >= 0:
                raise MemoryError
        return self._run(outer, *given)


class Fetching(threading.Thread):
    """A thread that fetches once."""

    def __init__(self, alerts: Alerts) -> None:
        super().__init__(daemon=True)
        self.alerts, self.found, self.error = alerts, alerts.schema.empty_table(), None
        self.start()

    def run(self) -> None:
        try:
            self.found = self.alerts.take()
        except MemoryError as error:
            self.error = error

    def ended(self) -> Fetching:
        self.join(FOR_EVER_S)
        assert not self.is_alive()
        return self


def test_a_push_over_the_limit_waits_for_the_running_fetch_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = events(60)
    with opened(tmp_path / "db", LIMIT) as db, opened(None, None) as plain:
        alerts, wanted = db.watch(FALLS), plain.watch(FALLS)
        plain.push("ticks", rows, "x", 0)
        expected = wanted.take()
        db.push("ticks", rows[:30], "x", 0)
        with monkeypatch.context() as patch:
            held = Held(patch)
            fetching = Fetching(alerts)
            assert held.begun.wait(FOR_EVER_S)
            pushing = threading.Thread(target=db.push, args=("ticks", rows[30:], "x", 30), daemon=True)
            pushing.start()
            pushing.join(0.2)
            assert pushing.is_alive()
            held.go.set()
            fetching.ended()
            pushing.join(FOR_EVER_S)
            assert not pushing.is_alive()
        assert pa.concat_tables([fetching.found, alerts.take()]).equals(expected)


@pytest.mark.slow
@pytest.mark.parametrize("text", [FALLS, ONCE], ids=["falls", "once"])
@pytest.mark.parametrize("limit", [None, LIMIT])
def test_of_two_fetching_threads_one_fails_and_the_other_gets_its_rows(
    text: str, limit: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Before: the one that failed put back what the other one had taken, which was nothing yet, and lost its rows.
    with opened(tmp_path / "db", limit) as db, opened(None, None) as plain:
        alerts, wanted = db.watch(text), plain.watch(text)
        for one in (db, plain):
            one.push("ticks", events(60), "x", 0)
        with monkeypatch.context() as patch:
            held = Held(patch, failing=1)
            first = Fetching(alerts)
            assert held.begun.wait(FOR_EVER_S)
            second = Fetching(alerts)
            second.join(0.2)
            assert second.is_alive()
            held.go.set()
            first.ended()
            second.ended()
        assert first.error is not None
        expected = wanted.take()
        assert expected.num_rows > 0
        assert second.found.equals(expected)
        assert alerts.cursor == expected.num_rows
        assert alerts.evidence().equals(wanted.evidence())
        assert alerts.fetch().num_rows == 0


def test_pages_that_somebody_has_removed_are_made_again(tmp_path: Path) -> None:
    # Before: from then on all rows stayed in memory, and pushes were refused.
    rows, pages = events(60), tmp_path / "db" / PAGES
    with opened(tmp_path / "db", LIMIT) as db, opened(None, None) as plain:
        alerts, wanted = db.watch(FALLS), plain.watch(FALLS)
        plain.push("ticks", rows, "x", 0)
        for begin in range(0, 60, 20):
            db.push("ticks", rows[begin : begin + 20], "x", begin)
            assert "memory_trouble" not in alerts.stats()
            assert pages.is_dir()
            shutil.rmtree(pages)
        assert alerts.fetch().equals(wanted.fetch())
        assert alerts.evidence().equals(wanted.evidence())


@pytest.mark.slow
def test_a_push_is_accepted_again_as_soon_as_there_is_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: only after a fetch.
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    rows = events(60)
    with opened(tmp_path / "db", LIMIT) as db, opened(None, None) as plain:
        alerts, wanted = db.watch(FALLS), plain.watch(FALLS)
        plain.push("ticks", rows, "x", 0)
        with monkeypatch.context() as broken:
            broken.setattr(Pages, "_in_file", full)
            db.push("ticks", rows[:30], "x", 0)
            with pytest.raises(hybrid.DataError, match="No space left"):
                db.push("ticks", rows[30:], "x", 30)
        db.push("ticks", rows[30:], "x", 30)
        assert "memory_trouble" not in alerts.stats()
        assert alerts.fetch().equals(wanted.fetch())


@pytest.mark.slow
@pytest.mark.parametrize("step", ["push", "fetch"])
def test_a_ctrl_c_anywhere_leaves_no_lock_and_loses_no_row(step: str, tmp_path: Path) -> None:
    """At every line of the alerts and of their files that a push or a fetch reaches; by day at one in eight."""
    rows = events(60)
    with opened(None, None) as plain:
        wanted = plain.watch(FALLS)
        plain.push("ticks", rows, "x", 0)
        expected, evidence = wanted.take(), wanted.evidence().arrow()
    places = interrupted(tmp_path / "points", step, 0)[0].places
    chosen = {place: at + 1 for at, place in enumerate(places) if "alerts.py" in place or "paged.py" in place}
    assert any("_in_file" in place for place in chosen) == (step == "push")
    for place, at in list(chosen.items())[:: 1 if is_nightly() else 8]:
        _, found, again = interrupted(tmp_path / str(at), step, at)
        assert found.equals(expected), place
        assert again.equals(evidence), place


def interrupted(path: Path, step: str, at: int) -> tuple[Disturbance, pa.Table, pa.Table]:
    """Pushes and fetches, with a Ctrl-C at one point of a step, which is then repeated; other threads do the rest.
    Returns their rows and evidence."""
    rows, disturbance = events(60), Disturbance(at, interrupt)
    with opened(path, LIMIT) as db:
        alerts = db.watch(FALLS)
        db.push("ticks", rows[:20], "x", 0)
        try:
            with disturbance:
                if step == "push":
                    db.push("ticks", rows[20:40], "x", 20)
                else:
                    assert alerts.fetch().num_rows > 0
                    alerts.put_back()
        except KeyboardInterrupt:
            assert at > 0
            if step == "fetch":
                alerts.put_back()
        db.push("ticks", rows[20:40], "x", 20)
        pushing = threading.Thread(target=db.push, args=("ticks", rows[40:], "x", 40), daemon=True)
        pushing.start()
        pushing.join(FOR_EVER_S)
        assert not pushing.is_alive()
        fetching = Fetching(alerts).ended()
        assert (alerts.cursor, alerts.unread_count, alerts._unread_bytes) == (fetching.found.num_rows, 0, 0)
        return disturbance, fetching.found, alerts.evidence().arrow()
