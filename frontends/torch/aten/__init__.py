"""Lowerings of ATen ops to ops of the IR.

`lowering` has the table and the context of a lowering; the other files fill the table, one topic
each. Imports the rooms `tensors` and `arithmetic`.
"""
