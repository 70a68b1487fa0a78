"""A Prometheus endpoint with the figures of a service, read from its status at each request. Needs the extra
`metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from query.errors import DataError
from query.extras import not_installed

#: Section of the status -> (key, name of the metric, description). A name in _total is a counter.
METRICS = {
    "streams": (
        ("accepted", "hybrid_events_total", "Events that were accepted."),
        ("late", "hybrid_late_events_total", "Events that came too late."),
        ("bad", "hybrid_bad_payloads_total", "Payloads that were rejected."),
        ("duplicates", "hybrid_duplicate_events_total", "Events that came again."),
        ("lag_s", "hybrid_watermark_lag_seconds", "Distance of the watermark behind the clock."),
        ("held_s", "hybrid_watermark_held_seconds", "Time since the last event of the source that holds it."),
        ("behind_newest_s", "hybrid_watermark_behind_newest_seconds", "Distance of it behind the newest event."),
    ),
    "queries": (
        ("matches", "hybrid_matches_total", "Live matches."),
        ("rows", "hybrid_rows_total", "Rows of the query."),
        ("suppressed", "hybrid_suppressed_rows_total", "Rows suppressed by ALERT ONCE."),
        ("history_reads", "hybrid_history_reads_total", "Reads of the archive."),
        ("waiting_for_history", "hybrid_waiting_for_history", "Live matches that wait for their history."),
        ("unread", "hybrid_unread_rows", "Rows that a sink has not made durable."),
        ("runs", "hybrid_runs", "Partial matches."),
        ("spilled", "hybrid_spilled_runs", "Partial matches on disk."),
        ("shed", "hybrid_shed_events_total", "Events of keys that were shed under overload."),
        ("kept_share", "hybrid_kept_share", "Share of the keys that is kept now."),
        ("recall", "hybrid_estimated_recall", "Estimated share of the rows that were found despite shedding."),
    ),
    "sources": (
        ("queued", "hybrid_source_queued_rows", "Rows that were read ahead."),
        ("lag", "hybrid_source_lag", "Unread messages of its partitions."),
        ("lost", "hybrid_source_lost_total", "Messages that were deleted before it read them."),
    ),
    "sinks": (
        ("rows", "hybrid_sink_rows_total", "Rows written to the sink."),
        ("refused", "hybrid_sink_refused_rows_total", "Rows rejected by the sink, kept as dead letters."),
        ("unread", "hybrid_sink_unread_rows", "Rows that the sink has not made durable."),
        ("failures", "hybrid_sink_failures", "Consecutive failures of the sink."),
        ("oldest_s", "hybrid_sink_oldest_seconds", "Time for which the next row has been pending."),
    ),
}
#: The metrics of each partition of a source.
PARTITION_METRICS = (
    ("position", "hybrid_source_partition_position", "Offset of the next message to read."),
    ("end", "hybrid_source_partition_end", "Offset after the last message."),
    ("lag", "hybrid_source_partition_lag", "Unread messages."),
)
_LABEL = {"streams": "stream", "queries": "query", "sources": "source", "sinks": "sink"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running endpoint. port: the port at which it listens, also if port 0 was requested."""

    port: int
    _server: Any
    _thread: Any

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)  # bounded: a client may never end its request


def serve(host: str, port: int, status: Callable[[], dict[str, Any]]) -> Endpoint:
    """Starts an endpoint for GET /metrics. Raises DataError if the extra is missing or the port is in use."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        from prometheus_client.registry import Collector
    except ImportError:
        raise not_installed("metrics need prometheus-client", "metrics") from None

    class Figures(Collector):
        def collect(self) -> Iterator[Any]:
            told = status()
            for table, metrics in METRICS.items():
                for key, name, about in metrics:
                    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                    metric = kind(name, about, labels=[_LABEL[table]])
                    for row, figures in told.get(table, {}).items():
                        if figures[key] is not None:
                            metric.add_metric([row], figures[key])
                    yield metric
            for key, name, about in PARTITION_METRICS:
                metric = GaugeMetricFamily(name, about, labels=["source", "partition"])
                for source, figures in told.get("sources", {}).items():
                    for partition, place in figures["partitions"].items():
                        if place[key] is not None:
                            metric.add_metric([source, partition], place[key])
                yield metric
            trouble = GaugeMetricFamily("hybrid_trouble", "Current faults, by component.", labels=["where"])
            for where in told.get("trouble", {}):
                trouble.add_metric([where], 1)
            yield trouble

    registry = CollectorRegistry()
    registry.register(Figures())
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise DataError(f"metrics cannot listen at {host}:{port}: {error.strerror}", "choose another port") from None
    return Endpoint(server.server_port, server, thread)
