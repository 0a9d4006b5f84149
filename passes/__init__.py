"""Passes: one file here per pass. The folders hold the code that passes share.

``rules``         exact rewrite rules, for canonicalize, layout, decompose and coalesce
``positions``     index maps of values, and the intervals in which their indices are
``streaming``     the derivation behind ``stream``: dependent reductions in one loop over their axis
``tiling``        sizes, types and names that all kernels share; the roles of a dot's axes
``nest``          the plain loop nest of a group
``steps``         rewrites of a loop nest, each checked before it is applied
``policies``      ``blocks``, ``tile``, ``schedule``: the list of steps for each kind of group
``gpu_products``  tile sizes and cost model of matmuls on a GPU
``cpu_products``  tiles and panels of matmuls and convolutions on a CPU
``gpu_layout``    ``distribute_gpu``: kernels of blocks to the threads of a GPU, by layouts
``sharding``      ``propagate``, ``reshard``, ``spmd``: one program over the ranks of a mesh
``training``      ``partition``: the values that a training step saves for its backward pass
"""
