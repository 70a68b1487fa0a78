"""ALERT ONCE: decides which rows of a live query are alerts, and suppresses rows with an equal alert nearby in time."""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence

import duckdb
import numpy as np
import pyarrow as pa

from hybrid.rows import duck
from hybrid.rows.answer import Answer, fitted
from hybrid.rows.faults import fault
from hybrid.rows.outer import Outer
from matching.batch import Int64Array
from matching.ipc import from_ipc, to_ipc
from query.errors import QueryError, Span
from query.plan.expression import quote
from query.plan.fingerprint import fingerprint
from query.plan.plan import AlertOnce, FactorPlan

#: Most suppressed rows on the list; older ones are only counted.
LISTED_ROWS = 10_000

#: Columns of the list after the columns of the rows.
ROW_ID, ROW_TIME, ALERT_ID = "match_id", "last_event_time", "alert_match_id"


def alerts_among(
    suppressor: Suppressor, outer: Outer, factor: FactorPlan, answer: Answer, rows: pa.Table
) -> tuple[pa.Table, Int64Array]:
    """Returns the alerts among the outer SELECT's rows of an answer, in the order of the answer, and the row number in
    the answer of each. Raises QueryError if output rows cannot be traced to rows of the answer."""
    sources = outer.sources([answer])
    if sources is None:
        raise untraced(outer.text)
    at = sources[0]
    order = np.argsort(at, kind="stable")  # DuckDB guarantees no order
    at, rows = at[order], rows.take(pa.array(order))
    match = answer.match[at]
    times = answer.evidence.last_us()[match]
    used, which = np.unique(match, return_inverse=True)
    ids = answer.evidence.take(used).ids(fingerprint(factor.plan))
    passes = suppressor.take(rows, times, [ids[i] for i in which.reshape(-1)])
    return rows.filter(pa.array(passes)), at[passes]


def untraced(text: str) -> QueryError:
    """Returns the error for an outer SELECT whose rows cannot be traced to matches."""
    found = re.search(r"\bALERT\s+ONCE\b", text, re.IGNORECASE)
    span = Span(*found.span()) if found else None
    message = "ALERT ONCE needs output rows that each come from one match"
    return fault("HQ400", message, text, "put the pattern in the FROM clause of the outer SELECT", span)


class Suppressor:
    """Decides row by row, in the order of matches, whether a row is an alert; see docs/semantics.md.

    schema: of the rows. Keeps key, time and match id of an alert until no row can follow that it would suppress
    (`forget`): about 300 bytes per key with such an alert. Not thread safe.
    """

    __slots__ = ("_alerts", "_before", "_forgotten", "_listed", "_listed_count", "_newest", "count", "once", "schema")

    def __init__(self, once: AlertOnce, schema: pa.Schema) -> None:
        self.once = once
        self.schema = schema
        self.count = 0
        #: By key: times and match ids of the alerts that may still suppress a row, ordered by time.
        self._alerts: dict[str, tuple[list[int], list[str]]] = {}
        #: (time, key) of the same alerts in arrival order, which is nearly their order by time.
        self._newest: deque[tuple[int, str]] = deque()
        self._listed: deque[pa.Table] = deque()
        self._listed_count = 0
        #: State at the last `begin`: count, listed count, list, number of alerts.
        self._before: tuple[int, int, deque[pa.Table], int] | None = None
        #: (time, key, match id) of alerts forgotten since then.
        self._forgotten: list[tuple[int, str, str]] = []

    def take(self, rows: pa.Table, times: Int64Array, matches: Sequence[str]) -> np.ndarray:
        """Returns True for each row that is an alert, bool (n,). Counts and lists the other rows as suppressed.

        times: time of the last event of each row's match, int64 (n,), microseconds. matches: its match id."""
        keys = self._keys(rows)
        passes = np.ones(len(times), bool)
        suppressing: list[str] = []
        for i, (key, time, match) in enumerate(zip(keys, times.tolist(), matches)):
            at, of = self._alerts.get(key, ([], []))
            first = bisect_right(at, time - self.once.interval_us)
            behind = bisect_left(at, time + self.once.interval_us)
            if first == behind:
                self._insert(key, time, match)
            elif match not in of[first:behind]:  # else it is another row of a match that is an alert
                passes[i] = False
                suppressing.append(of[first])
        if suppressing:
            self._list(rows, times, matches, np.flatnonzero(~passes), suppressing)
        return passes

    def forget(self, bound_us: int | None) -> None:
        """Forgets alerts that can no longer suppress a row. bound_us: lower bound of the times of later rows (None:
        no bound)."""
        while bound_us is not None and self._newest and self._newest[0][0] + self.once.interval_us <= bound_us:
            time, key = self._newest.popleft()
            self._forgotten.append((time, key, self._remove(key, time)))

    def begin(self) -> None:
        """Marks the state that `take_back` restores."""
        self._before = (self.count, self._listed_count, self._listed.copy(), len(self._newest))
        self._forgotten = []

    def take_back(self) -> None:
        """Restores the state at `begin`, for rows that were not delivered."""
        if self._before is None:
            return
        count, listed_count, listed, alert_count = self._before
        while self._forgotten:
            time, key, match = self._forgotten.pop()
            self._insert(key, time, match, oldest=True)
        while len(self._newest) > alert_count:
            time, key = self._newest.pop()
            self._remove(key, time)
        self.count, self._listed_count, self._listed, self._before = count, listed_count, listed, None

    def _insert(self, key: str, time: int, match: str, oldest: bool = False) -> None:
        """Keeps an alert, or raises and changes nothing. oldest: it arrived before all others that are kept."""
        times, matches = self._alerts.get(key, ([], []))
        at = bisect_left(times, time)
        alerts = ([*times[:at], time, *times[at:]], [*matches[:at], match, *matches[at:]])
        self._newest.insert(0 if oldest else len(self._newest), (time, key))
        try:
            self._alerts[key] = alerts
        except BaseException:
            del self._newest[0 if oldest else -1]
            raise

    def _remove(self, key: str, time: int) -> str:
        """Removes the alert of a key at a time and returns its match id."""
        at, of = self._alerts[key]
        gone = bisect_left(at, time)
        match = of[gone]
        del at[gone], of[gone]
        if not at:
            del self._alerts[key]
        return match

    @property
    def unlisted_count(self) -> int:
        """Number of suppressed rows that are no longer on the list."""
        return self.count - min(self._listed_count, LISTED_ROWS)

    def suppressed(self) -> pa.Table:
        """Returns the last suppressed rows, up to 10,000, with the columns match_id, last_event_time and alert_match_id
        (the match id of the suppressing alert). If rows have columns of these names, ours end with an underscore."""
        whole = pa.concat_tables([self._nothing(), *self._listed])
        return whole.slice(max(0, whole.num_rows - LISTED_ROWS))

    def _keys(self, rows: pa.Table) -> list[str]:
        """Returns the key of each row as text: equal if and only if DuckDB compares the key columns as equal."""
        if not self.once.columns or not rows.num_rows:
            return [""] * rows.num_rows
        chosen = rows.select(list(self.once.columns))
        values = []
        for i, field in enumerate(chosen.schema):
            name = quote(field.name)
            zero = f"CASE WHEN {name} = 0 THEN 0 ELSE {name} END"  # -0.0 equals 0.0
            values.append(f"k{i} := {zero if pa.types.is_floating(field.type) else name}")
        connection = duck.cursor()
        connection.register("__hybrid_keys", chosen)
        try:
            text = connection.sql(f"SELECT to_json(struct_pack({', '.join(values)})) FROM __hybrid_keys")
            found: list[str] = text.to_arrow_table().column(0).to_pylist()
        except duckdb.Error as error:
            raise duck.query_error(error, "") from None
        return found

    # ---- the list

    def _names(self) -> tuple[str, str, str]:
        taken = {name.lower() for name in self.schema.names}
        first, second, third = (f"{n}_" if n in taken else n for n in (ROW_ID, ROW_TIME, ALERT_ID))
        return first, second, third

    def _nothing(self) -> pa.Table:
        own = zip(self._names(), (pa.string(), pa.timestamp("us"), pa.string()))
        return pa.schema([*self.schema, *(pa.field(name, type) for name, type in own)]).empty_table()

    def _list(
        self, rows: pa.Table, times: Int64Array, matches: Sequence[str], at: np.ndarray, suppressing: Sequence[str]
    ) -> None:
        self.count += len(at)
        at, suppressing = at[-LISTED_ROWS:], suppressing[-LISTED_ROWS:]
        listed = rows.take(pa.array(at))
        columns = (
            pa.array([matches[i] for i in at], pa.string()),
            pa.array(times[at], pa.int64()).cast(pa.timestamp("us")),
            pa.array(suppressing, pa.string()),
        )
        for name, column in zip(self._names(), columns):
            listed = listed.append_column(name, column)
        self._listed.append(listed)
        self._listed_count += len(at)
        while self._listed_count - self._listed[0].num_rows >= LISTED_ROWS:
            self._listed_count -= self._listed.popleft().num_rows

    # ---- state

    def snapshot(self) -> bytes:
        """Returns the kept alerts, the count and the list as bytes for `restore`."""
        found = {(time, key): match for key, alerts in self._alerts.items() for time, match in zip(*alerts)}
        columns = {
            "key": pa.array([key for _, key in self._newest], pa.string()),
            "time_us": pa.array([time for time, _ in self._newest], pa.int64()),
            "match": pa.array([found[entry] for entry in self._newest], pa.string()),
        }
        told = {"count": self.count, "interval_us": self.once.interval_us, "columns": self.once.columns}
        metadata = {b"hybrid.suppress": json.dumps(told).encode(), b"listed": to_ipc(self.suppressed()).hex().encode()}
        return to_ipc(pa.table(columns).replace_schema_metadata(metadata))

    def restore(self, state: bytes) -> None:
        """Restores a snapshot of a query with the same ALERT ONCE and the same columns. Raises ValueError or
        pa.ArrowException for any other state."""
        table = from_ipc(state)
        metadata = table.schema.metadata or {}
        if b"hybrid.suppress" not in metadata:
            raise ValueError("not a state of ALERT ONCE")
        told = json.loads(metadata[b"hybrid.suppress"])
        listed = from_ipc(bytes.fromhex(metadata[b"listed"].decode()))
        listed = fitted(listed, self._nothing().schema)
        same = told["interval_us"] == self.once.interval_us and tuple(told["columns"]) == self.once.columns
        if not same or not listed.schema.equals(self._nothing().schema):
            raise ValueError("the state of another ALERT ONCE")
        self.count, self._listed, self._listed_count = told["count"], deque([listed]), listed.num_rows
        self._alerts, self._newest = {}, deque()
        for row in table.to_pylist():
            at, of = self._alerts.setdefault(row["key"], ([], []))
            place = bisect_left(at, row["time_us"])
            at.insert(place, row["time_us"])
            of.insert(place, row["match"])
            self._newest.append((row["time_us"], row["key"]))
