"""One fusion group to one kernel of blocks, as Triton wants it."""
