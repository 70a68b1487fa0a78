"""The experiments of [SHARING] section 4.2: what is run, and what is told of it."""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

import hybrid
from benchmarks import answers
from benchmarks.sharing.contenders import CONTENDERS, Digest, Result, Workload, pieces_of, run
from benchmarks.sharing.streams import KEYS, PHASES, STREAMS
from benchmarks.sharing.workloads import DELIVERIES, Shape, plans_of, workload
from benchmarks.v_pattern import one_core

#: Events and queries that are run beforehand, to load the kernels.
WARM_UP_EVENTS, WARM_UP_QUERIES = 1_000, 4
#: SLIDE of DELIVERIES, in minutes.
DELIVERIES_SLIDE = 5

QUERIES = (12, 36, 60, 84, 120)
SEQUENCE_QUERIES = (40, 80, 120, 160, 200)
LENGTHS = (2, 4, 6, 8, 10)
DEPTHS = (1, 2, 3, 4, 5)
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True, slots=True)
class Setting:
    """One workload over one stream. by: what the experiment changes, a field of Shape. shape None: DELIVERIES."""

    experiment: str
    by: str
    stream: str
    events: int
    phases: int
    keys: int
    shape: Shape | None
    seed: int

    @property
    def x(self) -> float:
        """The value that the experiment changes."""
        return 0 if self.shape is None else getattr(self.shape, self.by)


def settings(
    experiment: str, events: int, seed: int, *, queries: Sequence[int] = (), size: int = 100,
    lengths: Sequence[int] = LENGTHS, depths: Sequence[int] = DEPTHS, shares: Sequence[float] = SHARES,
    streams: Sequence[str] = (), phases: int = PHASES, keys: int = KEYS, conditions: bool = True,
    core_queries: int = 30,
) -> list[Setting]:  # fmt: skip
    """Returns the settings of an experiment. queries: sizes of workloads, where it changes them, else the paper's;
    size: of its other workloads; core_queries: as many have one core. streams: instead of the paper's."""

    def of(names: Sequence[str], by: str, shapes: Sequence[Shape]) -> list[Setting]:
        shapes = [replace(shape, conditions=conditions, core_queries=core_queries) for shape in shapes]
        return [Setting(experiment, by, n, events, phases, keys, s, seed) for n in streams or names for s in shapes]

    mixed = [Shape(n) for n in queries or QUERIES]
    match experiment:
        case "1":
            return of(["stock"], "queries", mixed)
        case "2":
            return [
                *of(["bus"], "queries", [Shape(n, kleene=0.0) for n in queries or SEQUENCE_QUERIES]),
                *of(["bus"], "length", [Shape(size, kleene=1.0, length=n) for n in lengths]),
                *of(["bus"], "depth", [Shape(size, kleene=1.0, depth=n) for n in depths]),
                *of(["bus"], "kleene", [Shape(size, kleene=n) for n in shares]),
            ]
        case "3":
            return of(["stock", "bus"], "queries", mixed)
        case "delivery":
            return [Setting(experiment, "queries", "delivery", events, 1, keys, None, seed)]
    raise ValueError(f"no experiment {experiment}")


Round = tuple[Result, Digest]


def measured(setting: Setting, mode: str, repeat: int, pin: bool) -> dict[str, Any]:
    """Runs a contender; returns what is told of it."""
    warm_up(setting, mode, pin)
    return told_of(setting, [one_round(setting, mode, pin) for _ in range(repeat)])


@lru_cache(maxsize=1)
def prepared(setting: Setting) -> tuple[Workload, pa.Table, int]:
    """Returns a workload, its events and its SLIDE in minutes."""
    stream = STREAMS[setting.stream](setting.seed, setting.events, setting.phases, setting.keys)
    texts = DELIVERIES if setting.shape is None else workload(stream, setting.shape, setting.seed)
    slide = DELIVERIES_SLIDE if setting.shape is None else setting.shape.slide
    return Workload(stream.schema, texts, plans_of(stream.schema, texts)), stream.events, slide


def warm_up(setting: Setting, mode: str, pin: bool) -> None:
    """Loads the kernels."""
    whole, events, slide = prepared(setting)
    few = list(whole.texts)[:WARM_UP_QUERIES]
    some = Workload(whole.schema, {n: whole.texts[n] for n in few}, {n: whole.plans[n] for n in few})
    with one_core(pin), warnings.catch_warnings():
        warnings.simplefilter("ignore", hybrid.HybridWarning)
        run(CONTENDERS[mode], some, pieces_of(events.slice(0, WARM_UP_EVENTS), slide), _nothing)
    gc.collect()
    gc.freeze()  # what importing has left is looked through in no contender's time


def one_round(setting: Setting, mode: str, pin: bool) -> Round:
    """Runs a contender once."""
    whole, events, slide = prepared(setting)
    with one_core(pin), warnings.catch_warnings():
        warnings.simplefilter("ignore", hybrid.HybridWarning)
        digest = Digest()
        return run(CONTENDERS[mode], whole, pieces_of(events, slide), digest), digest


def peak(setting: Setting, mode: str, pin: bool) -> int:
    """Returns by how much memory grows in a run whose rows are thrown away: the first one in a process."""
    warm_up(setting, mode, pin)
    whole, events, slide = prepared(setting)
    with one_core(pin), warnings.catch_warnings():
        warnings.simplefilter("ignore", hybrid.HybridWarning)
        return run(CONTENDERS[mode], whole, pieces_of(events, slide), _nothing).peak_bytes


def told_of(setting: Setting, rounds: Sequence[Round], peak_bytes: int | None = None) -> dict[str, Any]:
    """Returns what is told of a contender: medians of rounds, and latencies of the one with median seconds."""
    whole, _, _ = prepared(setting)
    cpu_seconds = statistics.median(r.cpu_seconds for r, _ in rounds)
    median, digest = sorted(rounds, key=lambda one: one[0].cpu_seconds)[len(rounds) // 2]
    per_second = setting.events / cpu_seconds
    return {
        "queries": len(whole.texts), "rows": sum(digest.rows.values()), "hash": digest.hash(),
        "queries_with_rows": len(digest.rows), "same_each_round": len({d.hash() for _, d in rounds}) == 1,
        "open_seconds": round(statistics.median(r.open_seconds for r, _ in rounds), 4),
        "seconds": round(statistics.median(r.seconds for r, _ in rounds), 4), "cpu_seconds": round(cpu_seconds, 4),
        "least_cpu_seconds": round(min(r.cpu_seconds for r, _ in rounds), 4),
        "choosing_seconds": round(statistics.median(r.choosing_seconds for r, _ in rounds), 4),
        "events_per_second": round(per_second), "query_events_per_second": round(per_second * len(whole.texts)),
        "latency_ms": _spread(median.latencies[:, 0]), "cpu_latency_ms": _spread(median.latencies[:, 1]),
        **({} if peak_bytes is None else {"peak_bytes": peak_bytes}),
    }  # fmt: skip


def _spread(seconds: np.ndarray) -> dict[str, float]:
    """Returns mean and percentiles, in milliseconds; zeros of nothing."""
    ms = seconds * 1000 if len(seconds) else np.zeros(1)
    return {"mean": round(float(ms.mean()), 3)} | {
        f"p{p}": round(float(np.percentile(ms, p)), 3) for p in (50, 95, 100)
    }


def _nothing(name: str, table: pa.Table) -> None:
    """Throws rows away."""


def in_turns(setting: Setting, modes: Sequence[str], repeat: int, pin: bool) -> dict[str, dict[str, Any]]:
    """Runs each contender in a process of its own, whose memory no other one has grown, and their rounds in turns: what
    else the machine does then meets all of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ExitStack() as stack:
        children = {mode: stack.enter_context(ProcessPoolExecutor(1, context)) for mode in modes}
        peaks = {mode: child.submit(peak, setting, mode, pin).result() for mode, child in children.items()}
        rounds: dict[str, list[Round]] = {mode: [] for mode in modes}
        for _ in range(repeat):
            for mode, child in children.items():
                rounds[mode].append(child.submit(one_round, setting, mode, pin).result())
    return {mode: told_of(setting, rounds[mode], peaks[mode]) for mode in modes}


def here_in_turns(setting: Setting, modes: Sequence[str], repeat: int, pin: bool) -> dict[str, dict[str, Any]]:
    """Does what `in_turns` does in this process, without figures of memory."""
    for mode in modes:
        warm_up(setting, mode, pin)
    rounds: dict[str, list[Round]] = {mode: [] for mode in modes}
    for _ in range(repeat):
        for mode in modes:
            rounds[mode].append(one_round(setting, mode, pin))
    return {mode: told_of(setting, rounds[mode]) for mode in modes}


def disagreements(setting: Setting, contenders: dict[str, dict[str, Any]]) -> list[str]:
    """Returns what is wrong between contenders, and between the rounds of one."""
    wrong = []
    first = next(iter(contenders))
    where = f"experiment {setting.experiment}, {setting.stream}, {setting.by} {setting.x}"
    for name, told in contenders.items():
        if not told["same_each_round"]:
            wrong.append(f"{where}: {name} has other rows in another round")
        for what in ("rows", "hash"):
            if told[what] != contenders[first][what]:
                wrong.append(f"{where}: {what}: {name} has {told[what]}, {first} has {contenders[first][what]}")
    return wrong


HEAD = (
    f"{'experiment':<12}{'stream':<11}{'':<14}{'contender':<12}{'rows':>9}{'cpu s':>9}{'choosing':>10}{'events/s':>11}"
    f"{'query-events/s':>16}{'cpu latency ms, p95':>21}{'MiB':>7}"
)


def line(setting: Setting, mode: str, told: dict[str, Any]) -> str:
    """Returns the line of a contender in the table."""
    changed = "" if setting.shape is None else f"{setting.by} {setting.x:g}"
    memory = f"{told['peak_bytes'] / 2**20:.1f}" if "peak_bytes" in told else "-"
    latency = f"{told['cpu_latency_ms']['mean']:.1f}, {told['cpu_latency_ms']['p95']:.1f}"
    return (
        f"{setting.experiment:<12}{setting.stream:<11}{changed:<14}{mode:<12}{told['rows']:>9,}"
        f"{told['cpu_seconds']:>9.3f}{told['choosing_seconds'] / told['cpu_seconds']:>10.1%}"
        f"{told['events_per_second']:>11,}{told['query_events_per_second']:>16,}"
        f"{latency:>21}{memory:>7}"
    )


def experiments(
    asked: Sequence[Setting], modes: Sequence[str], repeat: int, pin: bool, say: Callable[[str], None],
    here: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Returns the object that is printed. here: contenders run in this process, and nothing is told of memory."""
    results, wrong = [], []
    say(HEAD)
    for setting in asked:
        contenders = (here_in_turns if here else in_turns)(setting, modes, repeat, pin)
        for mode, told in contenders.items():
            say(line(setting, mode, told))
        wrong += disagreements(setting, contenders)
        results.append({**asdict(setting), "x": setting.x, "contenders": contenders})
    return {
        "benchmark": "sharing", "machine": answers.machine(), "versions": answers.versions(), "median_of": repeat,
        "results": results, "disagreements": wrong,
    }  # fmt: skip
