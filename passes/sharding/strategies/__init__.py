"""Strategies: the sharding of weights, gradients, optimizer state, batch and sequence.

Each is a pass that adds mesh axes to shardings; several in sequence combine.
"""
