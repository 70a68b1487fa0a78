"""The experiments of [SASE] section 6: python -m benchmarks.sase."""
