"""A Prometheus endpoint with the figures of a service, read from its status when it is asked. The extra `metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from query.errors import DataError

#: kind of table -> (key of its status, name of the metric, what it counts). A name in _total is a counter.
METRICS = {
    "streams": (
        ("accepted", "hybrid_events_total", "Events that were accepted."),
        ("late", "hybrid_late_events_total", "Events that came too late."),
        ("bad", "hybrid_bad_payloads_total", "Payloads that are no events."),
        ("duplicates", "hybrid_duplicate_events_total", "Events that came again."),
        ("lag_s", "hybrid_watermark_lag_seconds", "How far the watermark is behind the clock."),
        ("held_s", "hybrid_watermark_held_seconds", "How long the source that holds it back has sent nothing."),
        ("behind_newest_s", "hybrid_watermark_behind_newest_seconds", "How far it is behind the newest event."),
    ),
    "queries": (
        ("matches", "hybrid_matches_total", "Live matches."),
        ("rows", "hybrid_rows_total", "Rows of the query."),
        ("suppressed", "hybrid_suppressed_rows_total", "Rows that ALERT ONCE has kept back."),
        ("history_reads", "hybrid_history_reads_total", "Reads of the archive."),
        ("waiting_for_history", "hybrid_waiting_for_history", "Live matches that wait for their history."),
        ("unread", "hybrid_unread_rows", "Rows that a sink has not taken for good."),
        ("runs", "hybrid_runs", "Partial matches."),
        ("spilled", "hybrid_spilled_runs", "Partial matches on disk."),
        ("shed", "hybrid_shed_events_total", "Events of keys that were left out under overload."),
        ("kept_share", "hybrid_kept_share", "The share of the keys that is kept now."),
        ("recall", "hybrid_estimated_recall", "The estimated share of the rows that came out in spite of that."),
    ),
    "sources": (
        ("queued", "hybrid_source_queued_rows", "Rows that were read ahead."),
        ("lag", "hybrid_source_lag", "Messages that its partitions have and that it has not read."),
        ("lost", "hybrid_source_lost_total", "Messages that were deleted before it could read them."),
    ),
    "sinks": (
        ("rows", "hybrid_sink_rows_total", "Rows that the sink was handed."),
        ("refused", "hybrid_sink_refused_rows_total", "Rows that the sink has refused, and that are kept beside it."),
        ("unread", "hybrid_sink_unread_rows", "Rows that the sink has not taken for good."),
        ("failures", "hybrid_sink_failures", "Failures of the sink in a row."),
        ("oldest_s", "hybrid_sink_oldest_seconds", "How long the next row has been waiting for the sink."),
    ),
}
#: The same of each partition of a source.
PARTITION_METRICS = (
    ("position", "hybrid_source_partition_position", "The offset that is read next."),
    ("end", "hybrid_source_partition_end", "The offset behind the last message."),
    ("lag", "hybrid_source_partition_lag", "Messages that were not read yet."),
)
_LABEL = {"streams": "stream", "queries": "query", "sources": "source", "sinks": "sink"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running endpoint. port: where it listens, of use where 0 was asked for."""

    port: int
    _server: Any
    _thread: Any

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)  # a reader that never ends its request is not waited for


def serve(host: str, port: int, status: Callable[[], dict[str, Any]]) -> Endpoint:
    """Answers GET /metrics there. Raises DataError where the extra is missing or the port is taken."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        from prometheus_client.registry import Collector
    except ImportError:
        message = "metrics need the extra metrics, which is not installed"
        raise DataError(message, "pip install 'hybrid[metrics]'") from None

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
            trouble = GaugeMetricFamily("hybrid_trouble", "What is wrong now, by where.", labels=["where"])
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
