"""Capture of JAX functions for the types of their arguments: signatures, devices, the jaxpr.

Imports the rooms `lax` and `jaxpr`.
"""
