"""What Spark costs on one machine, beside the same work in one process."""
