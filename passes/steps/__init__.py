"""Primitives: each rewrites the loop nest of a kernel by one rule, and says when it may."""
