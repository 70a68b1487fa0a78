"""Runs in its own environment (`make pycer`): Q4 through pycer, the Python package of CORE. Needs the standard library.

    core_child.py FOLDER A,B,C WITHIN_US WARM    the columns that benchmarks.peers.columns wrote

Prints {"seconds": ..., "cpu_seconds": ..., "making_seconds": ...} and writes FOLDER/answer: int64 (4, n), the code of
the key and three times. Seconds are from handing over the events, made beforehand in making_seconds, to the text of all
matches, the only form in which it gives them; reading that text is not timed. WARM: so many of the first events go
through a server of their own beforehand.
"""

from __future__ import annotations

import array
import json
import re
import sys
import time
from pathlib import Path

import pycer


def column(file: Path, kind: str) -> array.array[int]:
    found = array.array(kind)
    found.frombytes(file.read_bytes())
    return found


def asked(columns: tuple[array.array[int], ...], words: list[str], query: str) -> tuple[dict[str, float], str]:
    server = pycer.PyOfflineServer()
    declared = ",\n".join(f"EVENT {word} {{ ts:int, code:int }}" for word in words)
    stream = server.declare_stream(f"CREATE STREAM S {{\n{declared}\n}}\n")
    number = {event.name: event.id for event in stream.events_info}
    numbers = [number[word] for word in words]
    server.add_query(query)
    start = time.perf_counter()
    value = pycer.PyIntValue
    events = [pycer.PyEvent(numbers[w], [value(t), value(c)]) for t, c, w in zip(*columns)]
    clock, processor = time.perf_counter(), time.process_time()
    server.send_events(events)
    text = server.get_output()
    seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - processor
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "making_seconds": clock - start}, text


def main(folder: Path, pattern: list[str], within_us: int, warm: int) -> None:
    columns = column(folder / "ts", "q"), column(folder / "code", "q"), column(folder / "word", "b")
    words = (folder / "words").read_text(encoding="utf-8").split()
    steps = "; ".join(f"{word} as {name}" for word, name in zip(pattern, "ABC"))
    # WITHIN over an attribute leaves its bound out.
    query = f"SELECT * FROM S\nWHERE ({steps})\nPARTITION BY [code]\nWITHIN {within_us + 1} [ts]\n"
    asked(tuple(c[:warm] for c in columns), words, query)
    measured, text = asked(columns, words, query)
    answer = [array.array("q") for _ in range(4)]
    for line in text.splitlines():
        found = re.findall(r"attributes: \[(\d+) (\d+) \]", line)
        if len(found) == 3:
            answer[0].append(int(found[0][1]))
            for times, (ts, _) in zip(answer[1:], found):
                times.append(int(ts))
    with (folder / "answer").open("wb") as file:
        for part in answer:
            part.tofile(file)
    print(json.dumps(measured))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3]), int(sys.argv[4]))
