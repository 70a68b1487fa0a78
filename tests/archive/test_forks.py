"""A child after a fork: what belongs to its parent is refused, in words, and what does not works. One process forks all
children, which end without what a process does at its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hybrid.processes import ROOT, environment

TEXT = '''if True:
    import multiprocessing, os, sys, warnings
    import hybrid
    from tests.hybrid.writing_child import COLUMNS, events
    warnings.simplefilter("ignore", DeprecationWarning)  # of 3.12: a process with threads forks

    QUERY = """SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.v AS a, B.v AS b PATTERN (A B)
        DEFINE B AS v > A.v)"""

    def opened(path):
        db = hybrid.connect(path)
        db.create_stream("ticks", COLUMNS, time="ts", key="k")
        alerts, late = db.watch(QUERY, evidence=True), db.late("ticks")
        db.watch(QUERY, on_match=lambda rows: None)
        db.push("ticks", events(0, 4))
        return db, alerts, late

    def refused(call):
        try:
            return f"not refused: {call()!r}"
        except hybrid.DataError as error:
            return error.message

    def in_child(work):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            for line in work():
                print(line, flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    def owned(db, alerts, late):
        for call in (
            lambda: alerts.fetch(), lambda: alerts.evidence(), lambda: alerts.stats(), lambda: list(alerts),
            lambda: late.fetch(), lambda: db.streams(), lambda: db.sql(QUERY), lambda: db.push("ticks", events(4, 1)),
        ):
            yield refused(call)
        yield "before a fork" in repr(alerts)
        db.close()

    def in_memory(number):
        return hybrid.sql(QUERY, ticks=events(number, 4)).fetchall()

    mine = opened(None)
    in_child(lambda: owned(*mine))
    in_child(lambda: [hybrid.connect(sys.argv[2]).close()])  # nobody has used deltalake yet
    print("====", flush=True)
    theirs = opened(sys.argv[1])
    theirs[0].flush()
    in_child(lambda: owned(*theirs))
    in_child(lambda: [
        refused(lambda: hybrid.connect(sys.argv[1], read_only=True)), refused(lambda: hybrid.connect(sys.argv[2])),
    ])
    in_child(lambda: [opened(None)[1].fetch().num_rows])
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map_async(in_memory, range(3)).get(120) == [in_memory(n) for n in range(3)])
    print([len(db.sql(QUERY)) + alerts.fetch().num_rows for db, alerts, _ in (mine, theirs)])
'''


@pytest.mark.slow
def test_a_child_is_refused_what_its_parent_has_opened(tmp_path: Path) -> None:
    # Before: rows of a copy, each of them once for every child; and of deltalake a panic, at which a pool hung.
    process = subprocess.Popen(
        [sys.executable, "-c", TEXT, str(tmp_path / "a"), str(tmp_path / "b")], cwd=ROOT, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    out, error = process.communicate(timeout=240)
    assert error == ""
    memory, disk = (part.strip().splitlines() for part in out.split("===="))
    before = f"was opened by process {process.pid}, before a fork"
    for (*calls, shown), place in ((memory[:9], "this database in memory"), (disk[:9], str(tmp_path / "a"))):
        theirs = {f"the database of these {rows} {before}" for rows in ("alerts", "events")}
        assert set(calls) == {f"{place} {before}", *theirs}
        assert len(calls) == 8
        assert shown == "True"
    assert memory[9:] == ["None"]  # a database on disk, before its parent used one
    *opening, of_child, of_pool, of_parent = disk[9:]
    assert len(opening) == 2
    assert all(f"forked from process {process.pid}" in line for line in opening)
    assert (of_child, of_pool, of_parent) == ("2", "True", "[4, 4]")
