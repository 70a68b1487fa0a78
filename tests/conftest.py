"""Settings of the whole suite: how many examples a property gets, and that CI leaves nothing out."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A failed assertion in these says what was compared, as in a test.
pytest.register_assert_rewrite("tests.properties.comparing", "tests.query.mutations")

#: The classes of Spark, of `make setup`; see tests.spark_classes.
SPARK_CLASSES = Path(sys.prefix) / "spark-classes.jsa"
#: Of Spark, whose Java lives for seconds here: its second compiler and its parallel collector cost more than they save.
#: It would tell of classes that are not those of the archive in its output, which scripts of Spark read.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
JAVA_OPTIONS_WITH_CLASSES = JAVA_OPTIONS
if SPARK_CLASSES.exists() and " " not in str(SPARK_CLASSES):
    JAVA_OPTIONS_WITH_CLASSES += f" -XX:SharedArchiveFile={SPARK_CLASSES}"

# Chosen by HYPOTHESIS_PROFILE. No deadline: the first example of a kernel may wait for its compiler.
# A property that needs fewer examples than its profile gives says so itself (tests.properties.comparing.fewer); one
# that asserts that it has met what is rare draws until it has (drawn_until there). The same thirty in each run are the
# gate of a commit; what is new is for the fresh ones (tests/properties/test_fresh.py) and the nightly profile.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
settings.register_profile("quick", _COMMON, max_examples=20, derandomize=True)
settings.register_profile("suite", _COMMON, max_examples=30, derandomize=True)
settings.register_profile("nightly", _COMMON, max_examples=20_000, print_blob=True)
_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "suite")
settings.load_profile(_PROFILE)

os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA_OPTIONS_WITH_CLASSES)

# A shell without job control starts what it runs in the background with Ctrl-C ignored, which children inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The quick suite keeps its files in memory where Linux has a place for that: half of the time of the tests of the
# archive is waiting for fsync, and only the full suite waits.
_MEMORY = "/dev/shm"
if _PROFILE == "quick" and "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK):
    if shutil.disk_usage(_MEMORY).free > 1 << 30:
        os.environ["TMPDIR"] = tempfile.tempdir = _MEMORY


def left_to_the_night(items: list[pytest.Item]) -> set[pytest.Item]:
    """Returns what only the nightly profile runs: what is marked so, and of a test that is thinned out the cases whose
    places in the lists of parameters do not add up to a multiple (or to one and the second argument). Of two lists of
    so many values each value is met."""
    found = {item for item in items if item.get_closest_marker("nightly")}
    thinned: dict[str, list[Any]] = {}
    for item in items:
        if item.get_closest_marker("thinned"):
            thinned.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in thinned.values():
        each, first = (*cases[0].get_closest_marker("thinned").args, 0)[:2]
        columns = set()  # parameters that go together count once
        for name in cases[0].callspec.params:
            known: dict[str, int] = {}
            columns.add(tuple(known.setdefault(repr(one.callspec.params[name]), len(known)) for one in cases))
        found.update(one for one, at in zip(cases, zip(*columns, strict=True), strict=True) if (sum(at) - first) % each)
    return found


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is for the night, unless it is named on the command line. Orders what is left.

    Long tests come first: those of Spark, and in the second half, which another worker begins with, the other slow
    ones. Left to the end, they keep one worker busy for minutes while the other has nothing to do."""
    if _PROFILE != "nightly":
        left_out = {one for one in left_to_the_night(items) if not any(one.name in arg for arg in config.args)}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    spark = [item for item in items if item.get_closest_marker("spark")]
    slow = [item for item in items if item.get_closest_marker("slow") and not item.get_closest_marker("spark")]
    long = {id(item) for item in (*spark, *slow)}
    rest = [item for item in items if id(item) not in long]
    middle = max(0, len(items) // 2 - len(spark))
    items[:] = [*spark, *rest[:middle], *slow, *rest[middle:]]


def pytest_collection_finish() -> None:
    """Keeps the garbage collector from objects that were there before the first test, and from frequent full
    collections: 0.15 s each, they took a twelfth of the time of the properties."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, 100)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where CI is set, a skipped Spark test is a failed one: a machine without Java must not look like a green run."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") and item.get_closest_marker("spark"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped where CI is set: install the spark extra and Java 17"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what the examples of the properties were like: a property that never sees a match proves little."""
    lines = [
        f"{report.nodeid.rpartition('::')[2]}: {value}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
        for name, value in report.user_properties
        if name == "examples"
    ]
    if lines:
        terminalreporter.section("examples of the properties")
        for line in sorted(set(lines)):
            terminalreporter.write_line(line)
