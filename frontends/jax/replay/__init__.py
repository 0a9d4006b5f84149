"""Runs functions of the IR in JAX, and hosted operators as JAX primitives.

Imports the room `lax`.
"""
