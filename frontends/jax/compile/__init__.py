"""Calls of compiled JAX functions: a primitive of JAX. A part of the wing `calls`.

Imports the rooms `capture`, `lax`, `jaxpr` and `replay`.
"""
