"""Passes: one file per pass."""
