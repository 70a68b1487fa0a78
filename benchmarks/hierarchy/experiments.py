"""The experiments of [HIERARCHY] section 6: what is run, and what is told of it."""

from __future__ import annotations

import gc
import multiprocessing
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks import answers
from benchmarks.hierarchy.contenders import Result, batches_of, run
from benchmarks.hierarchy.workloads import Shape, stream
from benchmarks.v_pattern import one_core
from query.errors import QueryError

#: Events that are run beforehand, to load the kernels.
WARM_UP_EVENTS = 500
LAYERS, LENGTHS, WINDOWS = (1, 2, 3, 4, 5), (3, 4, 5), (100, 150, 200, 250)
EVENTS = (5_000, 10_000, 15_000, 20_000, 25_000)


@dataclass(frozen=True, slots=True)
class Setting:
    """One hierarchy over one stream. by: what the experiment changes, a field of Shape; of: the field that each of its
    figures has another value of."""

    experiment: str
    by: str
    of: str
    shape: Shape
    seed: int

    @property
    def x(self) -> int:
        """The value that the experiment changes."""
        return getattr(self.shape, self.by)

    @property
    def figure(self) -> str:
        return f"{self.of} {getattr(self.shape, self.of)}"


def settings(
    experiment: str, base: Shape, seed: int, *, layers: Sequence[int] = LAYERS, lengths: Sequence[int] = LENGTHS,
    windows: Sequence[int] = WINDOWS, events: Sequence[int] = EVENTS,
) -> list[Setting]:  # fmt: skip
    """Returns the settings of an experiment. base: what it does not change."""
    deep = [n for n in layers if n > 1] or list(layers)
    match experiment:
        case "1":
            shapes = [replace(base, layers=h, length=n) for n in lengths for h in layers]
            by, of = "layers", "length"
        case "2":
            shapes = [replace(base, layers=h, length=n) for h in deep for n in lengths]
            by, of = "length", "layers"
        case "3":
            shapes = [replace(base, layers=h, within=w) for h in deep for w in windows]
            by, of = "within", "layers"
        case "4":
            shapes = [replace(base, layers=h, events=n) for h in deep if h > 2 or len(deep) == 1 for n in events]
            by, of = "events", "layers"
        case _:
            raise ValueError(f"no experiment {experiment}")
    return [Setting(experiment, by, of, shape, seed) for shape in shapes]


def measured(
    shape: Shape, seed: int, contender: str, repeat: int, pin: bool, memory: bool = False
) -> dict[str, Any]:
    """Runs a contender; returns what is told of it: medians of rounds. memory: the first round is for the peak
    memory."""
    events = stream(shape, seed)
    few = batches_of(events.slice(0, WARM_UP_EVENTS))
    batches = batches_of(events)
    peak: dict[str, int] = {}
    with one_core(pin):
        try:
            run(contender, shape, few)
            first = run(contender, shape, batches)
            rounds: list[Result] = [] if memory else [first]
            if memory:
                peak["peak_bytes"] = first.peak_bytes
            while len(rounds) < repeat:
                rounds.append(run(contender, shape, batches))
        except QueryError as error:  # more partial matches than are allowed
            return {"failed": error.diagnostics[0].message.split(":")[-2].strip()}
    cpu_seconds = statistics.median(r.cpu_seconds for r in rounds)
    return {
        "matches": first.matches, "hash": first.hash,
        "same_each_round": {(r.matches, r.hash) for r in rounds} == {(first.matches, first.hash)},
        "seconds": round(statistics.median(r.seconds for r in rounds), 5), "cpu_seconds": round(cpu_seconds, 5),
        "least_cpu_seconds": round(min(r.cpu_seconds for r in rounds), 5),
        "events_per_second": round(shape.events / cpu_seconds), **peak,
    }  # fmt: skip


def in_a_child(shape: Shape, seed: int, contender: str, repeat: int, pin: bool) -> dict[str, Any]:
    """Does what `measured` does in a process of its own, whose memory no other contender has grown."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(1, context) as children:
        return children.submit(_alone, shape, seed, contender, repeat, pin).result()


def _alone(shape: Shape, seed: int, contender: str, repeat: int, pin: bool) -> dict[str, Any]:
    gc.collect()  # what importing has left; in a large process it would take longer than a small run
    return measured(shape, seed, contender, repeat, pin, memory=True)


def disagreements(setting: Setting, contenders: dict[str, dict[str, Any]]) -> list[str]:
    """Returns what is wrong between contenders that promise all matches, and between the rounds of one."""
    wrong = []
    where = f"experiment {setting.experiment}, {setting.by} {setting.x}, {setting.figure}"
    done = {name: told for name, told in contenders.items() if "failed" not in told}
    wrong += [f"{where}: {name} has other matches in another round" for name, told in done.items()
              if not told["same_each_round"]]  # fmt: skip
    exact = {name: told for name, told in done.items() if told["hash"]}
    for name, told in exact.items():
        first = next(iter(exact))
        for what in ("matches", "hash"):
            if told[what] != exact[first][what]:
                wrong.append(f"{where}: {what}: {name} has {told[what]}, {first} has {exact[first][what]}")
    return wrong


HEAD = (
    f"{'experiment':<12}{'layers':>7}{'length':>7}{'within':>7}{'events':>12} {'contender':<14}{'matches':>10}"
    f"{'cpu s':>10}{'events/s':>12}{'MiB':>8}"
)


def line(setting: Setting, contender: str, told: dict[str, Any]) -> str:
    """Returns the line of a contender in the table."""
    shape = setting.shape
    head = (
        f"{setting.experiment:<12}{shape.layers:>7}{shape.length:>7}{shape.within:>7}{shape.events:>12,} "
        f"{contender:<14}"
    )
    if "failed" in told:
        return head + told["failed"]
    memory = f"{told['peak_bytes'] / 2**20:.1f}" if "peak_bytes" in told else "-"
    return head + f"{told['matches']:>10,}{told['cpu_seconds']:>10.4f}{told['events_per_second']:>12,}{memory:>8}"


def experiments(
    asked: Sequence[Setting], contenders: Sequence[str], repeat: int, pin: bool, say: Callable[[str], None],
    here: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Returns the object that is printed. A hierarchy that several experiments ask for is run once. here: contenders
    run in this process, and nothing is told of memory."""
    results, wrong = [], []
    known: dict[tuple[Shape, int], dict[str, dict[str, Any]]] = {}
    say(HEAD)
    for setting in asked:
        told = known.setdefault((setting.shape, setting.seed), {})
        for name in contenders:
            if name not in told:
                told[name] = (measured if here else in_a_child)(setting.shape, setting.seed, name, repeat, pin)
            say(line(setting, name, told[name]))
        wrong += disagreements(setting, told)
        results.append({**asdict(setting), "x": setting.x, "figure": setting.figure, "contenders": told})
    return {
        "benchmark": "hierarchy", "machine": answers.machine(), "versions": answers.versions(), "median_of": repeat,
        "results": results, "disagreements": wrong,
    }  # fmt: skip
