"""Runs functions of the IR in JAX, compiled ones too, and hosted operators as JAX primitives.

Imports the room `lax`.
"""
