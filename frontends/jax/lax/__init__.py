"""Lowerings of lax primitives to ops of the IR.

`lowering` has the table and traverses a jaxpr; the other files fill the table, one topic each.
Imports the rooms `jaxpr` and `arithmetic`.
"""
