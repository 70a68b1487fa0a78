"""Pictures of demos: thieves as lanes over time, delays of aircraft over a day, one alert of each simulated place."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa

from hybrid.rows.evidence_tree import EvidenceTree
from hybrid.rows.picture import Picture, new_figure

Row = Mapping[str, Any]
VISIT, ELSEWHERE, SUSPICIOUS, THEFT, RING = "tab:blue", "0.8", "tab:orange", "tab:red", "0.25"
AROUND = timedelta(minutes=12)
#: As far back as the queries of the shop and of logins look.
UNPAID_DAYS, KNOWN_DAYS = timedelta(days=10), timedelta(days=90)


def draw_ring(
    layers: Mapping[str, pa.Table], row: int, path: str | os.PathLike[str], around: timedelta = AROUND
) -> Picture:
    """Draws a ring of thieves: a lane for each person in that shop, with visits as bars, suspicious ones and thefts
    under them, and the ring around its three thefts. Returns the picture.

    layers: the rows of visit, suspicious, theft and ring; row: of the ring. path: the file to save; its extension is
    the format. Raises DataError without matplotlib."""
    ring = layers["ring"].slice(row, 1).to_pylist()[0]
    since, until = ring["t0"] - around, ring["t1"] + around
    here = {
        name: [r for r in layers[name].to_pylist() if r["shop"] == ring["shop"] and since < r["t1"] and r["t0"] < until]
        for name in ("visit", "suspicious", "theft")
    }
    persons = list(dict.fromkeys(r["person"] for r in sorted(here["visit"], key=lambda r: r["t0"])))
    lane = {person: -i for i, person in enumerate(persons)}
    figure = new_figure(9, 1.2 + 0.26 * len(persons))
    axes = figure.subplots()

    def bars(rows: Sequence[Row], colour: str, label: str, low: float, height: float) -> None:
        for i, r in enumerate(rows):
            axes.broken_barh(
                [(r["t0"], r["t1"] - r["t0"])], (lane[r["person"]] + low, height), color=colour,
                label=None if i else label, zorder=3,
            )  # fmt: skip

    bars([r for r in here["visit"] if r["shelf"] != ring["shelf"]], ELSEWHERE, "visit of another shelf", -0.1, 0.4)
    bars([r for r in here["visit"] if r["shelf"] == ring["shelf"]], VISIT, f"visit of {ring['shelf']}", -0.1, 0.4)
    bars(here["theft"], THEFT, "theft, to the exit", -0.38, 0.1)
    bars(here["suspicious"], SUSPICIOUS, "suspicious, to the corner", -0.25, 0.1)
    for r in here["theft"]:
        axes.plot([r["t1"]], [lane[r["person"]] - 0.33], marker="x", color=THEFT, markersize=6, zorder=4)
    thefts = _thefts_of(ring, here["theft"])
    low, high = (f(lane[r["person"]] for r in thefts) for f in (min, max))
    corners = [(ring["t0"], low - 0.5), (ring["t1"], low - 0.5), (ring["t1"], high + 0.5), (ring["t0"], high + 0.5)]
    xs, ys = zip(*corners, corners[0])
    axes.plot(xs, ys, color=RING, linewidth=1.2, linestyle="--", zorder=2, label="ring")
    for one, other in pairwise(thefts):
        axes.annotate(
            "", (other["t0"], lane[other["person"]] + 0.1), (one["t1"], lane[one["person"]] - 0.33),
            arrowprops={"arrowstyle": "->", "color": RING}, zorder=5,
        )  # fmt: skip
    axes.set_yticks(list(lane.values()), persons, fontsize="small")
    axes.set_xlim(since, until)
    title = f"{ring['shop']}, {ring['t0']:%d %B %Y}: {ring['first']}, {ring['second']} and {ring['third']}"
    axes.set_xlabel("time of the reading, UTC")
    axes.set_title(f"{title} at the {ring['shelf']} shelf", loc="left", fontsize="medium")
    return _saved(figure, axes, path)


def draw_delays(growth: pa.Table, day: EvidenceTree, path: str | os.PathLike[str]) -> Picture:
    """Draws a bad day of departures: a line for each aircraft whose delay grew, and the waves at the three airports.
    Returns the picture.

    growth: the rows of growing delays; day: the tree of a bad day, with its waves, and theirs. path: the file to save.
    Raises DataError without matplotlib."""
    figure = new_figure(9, 4.2)
    axes = figure.subplots()
    of_wave = {(leaf.event["tailnum"], leaf.end): i for i, wave in enumerate(day.parts) for leaf in wave.parts
               if leaf.event is not None}  # fmt: skip
    since = day.begin - timedelta(hours=14)
    lines = [g for g in growth.to_pylist() if since <= g["began"] and g["ended"] <= day.end]
    colours = ("tab:blue", "tab:orange", "tab:green")
    for g in lines:
        i = of_wave.get((g["tailnum"], g["ended"]))
        axes.plot(
            [g["began"], g["went_on"], g["ended"]], [g["first_delay"], g["second_delay"], g["delay"]],
            color="0.8" if i is None else colours[i], marker="o", markersize=3, linewidth=1, zorder=2 + (i is not None),
        )  # fmt: skip
    top = max(g["delay"] for g in lines)
    for i, wave in enumerate(day.parts):
        event = wave.parts[0].event
        assert event is not None
        label = f"wave at {event['origin']}, {len(wave.parts)} aircraft"
        axes.axvspan(wave.begin, wave.end, color=colours[i], alpha=0.15, zorder=0, label=label)
        middle = wave.begin + (wave.end - wave.begin) / 2
        axes.text(middle, top * 1.08, str(event["origin"]), ha="center", fontsize="small")
    axes.plot([], [], color="0.8", marker="o", markersize=3, label="others")
    axes.plot([day.begin, day.end], [top * 1.2] * 2, color=RING, linewidth=1.5, marker="|", label="bad day")
    axes.set_ylim(top=top * 1.28)
    axes.set_ylabel("delay, minutes")
    axes.set_xlabel("time of departure, UTC")
    axes.set_title(f"{len(of_wave)} aircraft in three waves, {day.begin:%d %B %Y}", loc="left", fontsize="medium")
    return _saved(figure, axes, path)


def _by(column: str, events: pa.Table) -> dict[str, list[Row]]:
    """Returns the events by the value of a column, each list in their order."""
    found: dict[str, list[Row]] = {}
    for row in events.to_pylist():
        found.setdefault(row[column], []).append(row)
    return found


def draw_shop(readings: pa.Table, rows: pa.Table, path: str | os.PathLike[str]) -> Picture:
    """Draws an item that left the shop unpaid, and one below it that was paid: their readings at shelf, register and
    exit. Returns the picture.

    readings: all of them, in order of time. rows: of the query. path: the file to save. Raises DataError without
    matplotlib."""
    of = _by("tag", readings)

    def before(tag: str, exit_ts: datetime) -> list[Row]:
        return [r for r in of[tag] if exit_ts - UNPAID_DAYS <= r["ts"] <= exit_ts]

    alerts = [(before(r["tag"], r["exit_ts"]), r["tag"], r["exit_ts"]) for r in rows.to_pylist()]
    # a payment at the very moment of the exit is too late, and hard to see
    unpaid = [alert for alert in alerts if "register" not in {r["reader"] for r in alert[0]}]
    seen, tag, exit_ts = max(unpaid or alerts, key=lambda alert: len(alert[0]))
    paid = [
        (before(t, r["ts"]), t, r["ts"]) for t, all_of in of.items() for r in all_of
        if r["reader"] == "exit" and t != tag and {x["reader"] for x in before(t, r["ts"])} >= {"shelf", "register"}
    ]  # fmt: skip
    shown = [(seen, tag, exit_ts, "tab:red", "an alert: not read at the register in the ten days before")]
    if paid:
        nearest = min(paid, key=lambda one: abs(one[2] - exit_ts))
        shown.append((*nearest, "tab:blue", "no alert: paid before it left"))
    figure = new_figure(9, 1.2 + 1.7 * len(shown))
    panels = figure.subplots(len(shown), squeeze=False)[:, 0]
    for axes, (events, name, at, colour, said) in zip(panels, shown):
        low, high = min(r["ts"] for r in events), at
        lanes = ("exit", "register", "shelf")
        axes.plot([r["ts"] for r in events], [lanes.index(r["reader"]) for r in events], color="0.75", zorder=1)
        for reader, marker in (("shelf", "o"), ("register", "D"), ("exit", "s")):
            times = [r["ts"] for r in events if r["reader"] == reader]
            axes.scatter(times, [lanes.index(reader)] * len(times), color=colour, marker=marker, s=60, zorder=3)
        margin = max((high - low) / 12, timedelta(minutes=1))
        axes.set_xlim(low - margin, high + margin)
        axes.set_yticks(range(len(lanes)), lanes)
        axes.set_ylim(-0.5, len(lanes) - 0.5)
        axes.set_title(f"{name} left at {at:%d %B %Y %H:%M}: {said}", loc="left", fontsize="medium")
        _dated(axes)
    panels[-1].set_xlabel("time of the reading, UTC")
    return Picture(figure).save(path)


def draw_road(readings: pa.Table, rows: pa.Table, limit_kmh: int, path: str | os.PathLike[str]) -> Picture:
    """Draws the drive of a fast car: kilometres over time, the stretch where it was too fast, and how far it would
    have come at the limit. Returns the picture.

    readings: all of them, in order of time. rows: of the query. path: the file to save. Raises DataError without
    matplotlib."""
    drives: dict[str, list[Row]] = {}
    for reading in readings.to_pylist():
        drives.setdefault(reading["car"], []).append(reading)
    # the fastest one is a reading that is repeated at the next point a microsecond later
    alert = max(rows.to_pylist(), key=lambda row: (row["speed_kmh"] < 2 * limit_kmh, len(drives[row["car"]])))
    own = drives[alert["car"]]
    begin = next(r for r in own if r["ts"] == alert["previous_ts"] and r["point"] == alert["point"] - 1)
    end = next(r for r in own if r["ts"] == alert["ts"] and r["point"] == alert["point"])
    around = max(3 * (end["ts"] - begin["ts"]), timedelta(minutes=30))
    drive = [r for r in own if begin["ts"] - around <= r["ts"] <= end["ts"] + around]
    figure = new_figure(9, 4.2)
    axes = figure.subplots()
    axes.plot(
        [r["ts"] for r in drive], [r["km"] for r in drive], color="0.7", marker="o", markersize=4, label="toll points",
        zorder=1,
    )  # fmt: skip
    axes.plot(
        [begin["ts"], end["ts"]], [begin["km"], end["km"]], color="tab:red", marker="o", linewidth=2.5, zorder=3,
        label=f"{alert['speed_kmh']:.0f} km/h",
    )  # fmt: skip
    hours = (end["ts"] - begin["ts"]) / timedelta(hours=1)
    axes.plot(
        [begin["ts"], end["ts"]], [begin["km"], begin["km"] + limit_kmh * hours], color=RING, linestyle="--", zorder=2,
        label=f"at {limit_kmh} km/h",
    )  # fmt: skip
    axes.set_ylabel("kilometre of the road")
    axes.set_xlabel("time of the reading, UTC")
    title = f"{alert['car']}, {alert['ts']:%d %B %Y}: {alert['speed_kmh']:.0f} km/h before point {alert['point']}"
    axes.set_title(title, loc="left", fontsize="medium")
    _dated(axes)
    figure.legend(loc="outside lower center", ncols=5, fontsize="small", frameon=False)
    return Picture(figure).save(path)


def draw_logins(logins: pa.Table, rows: pa.Table, path: str | os.PathLike[str]) -> Picture:
    """Draws an account whose password was guessed: its logins by device in the 90 days before, and the minutes of the
    attack. Returns the picture.

    logins: all of them, in order of time. rows: of the query. path: the file to save. Raises DataError without
    matplotlib."""
    own = _by("account", logins)

    def within(row: Row) -> list[Row]:
        return [r for r in own[row["account"]] if row["first_ts"] - KNOWN_DAYS <= r["ts"] <= row["success_ts"]]

    alert = max(rows.to_pylist(), key=lambda row: (len({r["device"] for r in within(row)}), len(within(row))))
    seen = within(alert)
    devices = [alert["device"], *dict.fromkeys(r["device"] for r in seen if r["device"] != alert["device"])]
    figure = new_figure(10, 2.4 + 0.35 * len(devices))
    past, attack = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for axes in (past, attack):
        for ok, marker, colour, label in ((False, "x", "tab:red", "failed"), (True, "o", "tab:blue", "logged in")):
            some = [r for r in seen if r["ok"] == ok]
            axes.scatter(
                [r["ts"] for r in some], [devices.index(r["device"]) for r in some], marker=marker, color=colour, s=45,
                label=label if axes is past else None, zorder=3,
            )  # fmt: skip
        axes.axvspan(alert["first_ts"], alert["success_ts"], color="tab:orange", alpha=0.25, zorder=0,
                     label="the attack" if axes is past else None)  # fmt: skip
        axes.set_yticks(range(len(devices)), devices)
        axes.set_ylim(-0.6, len(devices) - 0.4)
        axes.set_xlabel("time of the login, UTC")
        axes.grid(axis="y", alpha=0.2)
        _dated(axes)
    margin = (alert["success_ts"] - alert["first_ts"]) / 6
    attack.set_xlim(alert["first_ts"] - margin, alert["success_ts"] + margin)
    past.set_xlim(alert["first_ts"] - KNOWN_DAYS, alert["success_ts"] + timedelta(days=2))
    past.set_title(f"{alert['account']}: the 90 days before", loc="left", fontsize="medium")
    said = f"{alert['failures']} failures, then {alert['device']} is in, {alert['success_ts']:%d %B %Y}"
    attack.set_title(said, loc="left", fontsize="medium")
    figure.legend(loc="outside lower center", ncols=5, fontsize="small", frameon=False)
    return Picture(figure).save(path)


def _thefts_of(ring: Row, thefts: Sequence[Row]) -> list[Row]:
    """Returns the thefts of a ring, in order."""
    inside = [r for r in thefts if r["shelf"] == ring["shelf"] and ring["t0"] <= r["t0"] and r["t1"] <= ring["t1"]]
    return [next(r for r in inside if r["person"] == ring[nth]) for nth in ("first", "second", "third")]


def _dated(axes: Any) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    ticks = AutoDateLocator(maxticks=7)
    axes.xaxis.set_major_locator(ticks)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(ticks))
    axes.grid(axis="x", alpha=0.2)


def _saved(figure: Any, axes: Any, path: str | os.PathLike[str]) -> Picture:
    from matplotlib.dates import DateFormatter

    axes.xaxis.set_major_formatter(DateFormatter("%H:%M"))
    axes.grid(axis="x", alpha=0.2)
    figure.legend(loc="outside lower center", ncols=5, fontsize="small", frameon=False)
    return Picture(figure).save(path)
