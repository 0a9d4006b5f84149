"""Sharding: what ``propagate``, ``reshard`` and ``spmd`` are made of."""
