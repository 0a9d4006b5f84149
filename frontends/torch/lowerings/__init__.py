"""Lowerings of ATen ops that are plugged in: pooling, search, grouped matmuls: wing `functions`.

Imports the room `aten`.
"""
