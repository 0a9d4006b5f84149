"""Complex numbers of torch: rules for ops on pairs. A part of the wing `complex`.

Imports the rooms `aten` and `arithmetic`.
"""
