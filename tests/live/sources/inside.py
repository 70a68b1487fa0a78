"""The state of a Kafka source for tests of other folders: this file alone knows its private names."""

from __future__ import annotations

from pathlib import Path

from live.sources.kafka import KafkaSource


def kept_by(source: KafkaSource) -> tuple[Path | None, str | None]:
    """Returns the file of what it knows of topics, and what it does when one was made anew."""
    return source._marks._file, source._settings.recreated
