"""Runs functions of the IR in JAX, also under `jax.jit`. A part of the wing `calls`.

Imports the room `lax`.
"""
