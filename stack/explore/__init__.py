"""Tools to inspect a run: dump, diff, explain, where, bisect, reduce, report."""
