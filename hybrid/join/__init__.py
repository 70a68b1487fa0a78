"""Joins live matches with history: the driver, its strategies, the history cache, and ON."""
