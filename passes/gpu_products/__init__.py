"""Tile sizes of matrix products on a GPU."""
