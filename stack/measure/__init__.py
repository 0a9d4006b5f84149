"""Timing, rooflines, comparison and benchmarks."""
