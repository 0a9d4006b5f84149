"""Hosted operators as primitives of JAX: a part of the wing `ops`.

Imports the rooms `capture`, `replay` and `lax`.
"""
