"""Lowerings of ATen ops that are plugged in, wing `functions`: pooling, windows of images, search,
grouped matmuls.

Imports the room `aten`.
"""
