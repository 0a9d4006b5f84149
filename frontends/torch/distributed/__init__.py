"""One rank of a partitioned program on `torch.distributed`: meshes, collectives, pipelines.

Imports the rooms `replay` and `tensors`.
"""
