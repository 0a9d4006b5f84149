"""One fusion group to one kernel at the tile level, as a CPU wants it."""
