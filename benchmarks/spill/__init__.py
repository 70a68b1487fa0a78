"""The experiments 5 and 6 of [LIVE-ARCHIVE]: python -m benchmarks.spill."""
