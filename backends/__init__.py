"""Backends: ours print and compile the tile or loop level, peers take the tensor level."""
