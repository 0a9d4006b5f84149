"""Import of a functional FX graph of ATen ops as one function of the IR.

`graph` imports a graph, `calls` one call in it, `origins` finds its source line; `border` describes
how the results alias inputs and each other. Imports the rooms `aten`, `tensors` and `arithmetic`.
"""
