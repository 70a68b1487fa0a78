"""What asking history costs: strategies, latency, backtests."""
