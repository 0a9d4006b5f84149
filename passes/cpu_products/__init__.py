"""Tiles of matrix products on a CPU."""
