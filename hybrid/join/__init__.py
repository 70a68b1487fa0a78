"""Live meets archive: the driver, its strategies, the history cache, and ON."""
