"""Sharding: parts of ``propagate``, ``reshard`` and ``spmd``."""
