"""The settings of the experiments, and what is measured of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import answers
from benchmarks.sase.contenders import CONSTRUCTING_ROWS, CONTENDERS, MATCHING_ROWS, Answer, answer, can, prepared
from benchmarks.sase.questions import Question, events_of, plan_of

WINDOWS = (500, 1000, 1500, 2000)
#: Partition windows of events for each symbol, as in the paper.
WINDOWS_PER_SYMBOL = 200
P_RISE_LESS = 0.55
#: Rounds go on until this many seconds have been measured, up to so many times their number.
ENOUGH_SECONDS, MORE_ROUNDS = 1.0, 4
ALONE = ("basic", "merged")


def queries(window: int, **more: Any) -> list[Question]:
    return [Question(s, i, window, **more) for i in ("p1", "p2", "p3") for s in ("s2", "s3")]


def settings(windows: Sequence[int]) -> dict[str, list[tuple[Question, tuple[str, ...]]]]:
    """For each experiment its queries and contenders. windows: the paper's W; the experiments with one window take the
    first. What two experiments ask is measured once."""
    base = windows[0]
    several = [q for w in windows for q in queries(w) if q.name != "p1 s2"]
    return {
        "1": [(q, CONTENDERS) for q in queries(base)],
        "2": [(q, CONTENDERS if q.window == base else ALONE) for q in several],
        "3": [(q, CONTENDERS) for q in [*queries(base), *queries(base, starred=True)]],
        "4": [
            (Question(s, "p3", base, starred, overlapping=False), CONTENDERS)
            for starred in (False, True) for s in ("s2", "s3")
        ],
        "5": [
            (q, CONTENDERS) for q in [*queries(base), *queries(base, starred=True)] if q.strategy == "s3"
        ],
        "6": [(q, CONTENDERS if q.window == base else ALONE) for q in several if q.strategy == "s3"],
        "less rising": [(q, CONTENDERS) for q in queries(base, p_rise=P_RISE_LESS)],
    }  # fmt: skip


def best(runs: list[Answer]) -> Answer:
    """The quickest of several runs. ValueError if they differ in what they found."""
    if len({(a.matches, a.rows, a.hash) for a in runs}) != 1:
        raise ValueError("one contender found different matches")
    return min(runs, key=lambda a: a.seconds)


def measured(question: Question, names: Sequence[str], seed: int, windows: int, repeat: int) -> dict[str, Any]:
    """One query by some contenders: the least processor seconds of `repeat` rounds, of more where they are short, with
    construction and without."""
    events = events_of(question, seed, windows)
    rows = prepared(plan_of(question.text), events)
    names = [name for name in names if can(name, rows.program)]
    for name in names:  # compiled, and in the cache
        answer(name, rows.first(4 * CONSTRUCTING_ROWS), True)
    whole: dict[str, list[Answer]] = {name: [] for name in names}
    matching: dict[str, list[Answer]] = {name: [] for name in names}
    rounds, spent = 0, 0.0
    while rounds < repeat or (rounds < MORE_ROUNDS * repeat and spent < ENOUGH_SECONDS):
        rounds += 1
        for name in names:
            whole[name].append(answer(name, rows, True))
            matching[name].append(answer(name, rows, False))
            spent += whole[name][-1].seconds
    contenders = {}
    for name in names:
        a = best(whole[name])
        b = best(matching[name])
        if b.matches not in (0, a.matches):
            raise ValueError(f"{question.name}: {name} counts {b.matches} matches and makes {a.matches}")
        contenders[name] = {
            "seconds": round(a.seconds, 6), "matching_seconds": round(b.seconds, 6), "matches": a.matches,
            "rows": a.rows, "longest": a.longest, "hash": f"{a.hash:016x}", **a.counts,
        }  # fmt: skip
    return {"question": dataclasses.asdict(question), "name": question.name, "events": len(events),
            "contenders": contenders}  # fmt: skip


def disagreements(result: dict[str, Any]) -> list[str]:
    """What is wrong in one measured query: contenders that do not find the same matches."""
    found = {name: (c["matches"], c["rows"], c["hash"]) for name, c in result["contenders"].items()}
    if len(set(found.values())) <= 1:
        return []
    q = result["question"]
    return [f"{result['name']}, W = {q['window']}, overlapping {q['overlapping']}: {found}"]


def experiments(windows: Sequence[int], per_symbol: int, seed: int, repeat: int, say: Callable[[str], None],
                ) -> dict[str, Any]:  # fmt: skip
    """The object that is printed and that the page is made of. `disagreements` in it is empty if all is well."""
    plan = settings(windows)
    wanted: dict[Question, dict[str, None]] = {}
    for asked in plan.values():
        for question, names in asked:
            wanted.setdefault(question, {}).update(dict.fromkeys(names))
    results = []
    for question, by in wanted.items():
        result = measured(question, tuple(by), seed, per_symbol, repeat)
        results.append(result)
        took = ", ".join(
            f"{n} {c['seconds'] * 1e3:.1f} ({c['matching_seconds'] * 1e3:.1f})" for n, c in result["contenders"].items()
        )
        say(f"{result['name']:7} W {question.window} p {question.p_rise} overlapping {question.overlapping}: {took} ms")
    order = list(wanted)
    return {
        "benchmark": "sase", "machine": answers.machine(), "versions": answers.versions(), "seed": seed,
        "windows": list(windows), "windows_per_symbol": per_symbol, "batch_rows": [MATCHING_ROWS, CONSTRUCTING_ROWS],
        "best_of": repeat,
        "experiments": {name: [order.index(q) for q, _ in asked] for name, asked in plan.items()},
        "results": results, "disagreements": [text for r in results for text in disagreements(r)],
    }  # fmt: skip
