"""Scheduling primitives. Each rewrites the loop nest of a kernel by one rule, if it is legal."""
