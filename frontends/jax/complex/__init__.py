"""Complex numbers of JAX: equations on pairs. A part of the wing `complex`.

Imports the rooms `lax`, `jaxpr` and `arithmetic`.
"""
