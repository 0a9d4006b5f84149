"""Capture and calls of JAX functions: signatures, and compiled functions as a primitive of JAX.

Imports the rooms `lax`, `jaxpr` and `replay`.
"""
