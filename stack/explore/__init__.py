"""Looking into a run: dump, diff, explain, where, bisect, reduce, report."""
