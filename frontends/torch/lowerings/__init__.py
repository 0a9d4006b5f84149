"""Lowerings of ATen ops that are plugged in: pooling, windows of images, search, grouped matmuls: wing `functions`.

Imports the room `aten`.
"""
