"""Passes: one file here per pass. The folders hold the code that passes share.

``rules``      exact rewrite rules, for canonicalize, layout and decompose
``positions``  index maps of values, and the intervals in which their indices are
``streaming``  the derivation behind ``stream``: dependent reductions in one loop over their axis
``tiling``     shared by all tilers: sizes, types, the roles of a dot's axes
``blocking``   kernels of tiles: axes, memory and values; masked blocks, for Triton and for threads
``exact_tiling``  ``tile``: exact tiles that vectors are cut from, and matmuls of packed panels
``sharding``   ``propagate``, ``reshard``, ``spmd``: one program over the ranks of a mesh
``training``   ``partition``: the values that a training step saves for its backward pass
``cpu_loops``  ``distribute``: tile kernels to loops, vectors and register tiles
``gpu_layout`` ``distribute_gpu``: kernels of blocks to the threads of a GPU, by layouts
"""
