"""One fusion group to one kernel at the tile level: exact blocks, the last of which may overlap."""
