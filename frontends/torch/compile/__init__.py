"""Entry points: `stack.compile`, `stack.trace`, `torch.compile`, hosted operators in torch.

Only `stack.frontends.torch` imports this room. Imports the rooms `training`, `tracing`, `program`,
`graphs`, `importer`, `decompositions`, `aten`, `tensors` and `replay`.
"""
