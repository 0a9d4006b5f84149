"""Meshes of ranks, shardings of values over them, and the ops that communicate: wing `mesh`."""
