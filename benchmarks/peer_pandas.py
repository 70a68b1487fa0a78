"""Runs in its own environment (`make peers`): the V pattern through pandas_match_recognize.

    peer_pandas.py TICKS ANSWER QUERY    Arrow IPC files and a text; prints {"seconds": ..., "cpu_seconds": ...}
"""

from __future__ import annotations

import contextlib
import json
import sys
import time

import pandas
import pyarrow as pa
from pandas_match_recognize import match_recognize


def main(ticks_path: str, answer_path: str, query: str) -> None:
    with pa.ipc.open_file(ticks_path) as reader:
        ticks: pandas.DataFrame = reader.read_all().to_pandas()
    with contextlib.redirect_stdout(sys.stderr):
        clock, processor = time.perf_counter(), time.process_time()
        answer = match_recognize(query, ticks)
        seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - processor
    table = pa.Table.from_pandas(answer, preserve_index=False)
    with pa.ipc.new_file(answer_path, table.schema) as writer:
        writer.write_table(table)
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
