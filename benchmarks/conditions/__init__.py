"""Plain conditions beside cheap neighbours: what a condition costs, and how that grows."""
