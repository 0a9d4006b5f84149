"""Sharding constraints of JAX: their lowerings, and `PartitionSpec`. A part of the wing `mesh`.

Imports the room `lax`.
"""
