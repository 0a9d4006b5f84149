"""Strategies: who holds what of weights, gradients, optimizer state, batch and sequence.

Each is a pass that adds mesh axes to places; several one after the other are their product.
"""
