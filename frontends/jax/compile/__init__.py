"""Capture and calls of JAX functions: signatures, arguments, arrays on devices.

Imports the rooms `lax` and `jaxpr`.
"""
