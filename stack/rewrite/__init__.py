"""Patterns, the rewrite engine, passes and pipelines."""
