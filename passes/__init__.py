"""Passes: one file here per pass; what passes are made of is in the folders.

``rules``      exact rewrite rules, for canonicalize, layout and decompose
``positions``  where values sit, and what is known of their places
``streaming``  the derivation behind ``stream``: dependent reductions in one pass over their axis
``tiling``     what all tilers ask: sizes, types, the roles of a dot's axes
``blocking``   kernels of tiles: axes, memory and values; masked blocks, for Triton and for threads
``exact_tiling``  ``tile``: the exact tiles that vectors are cut from, and products of packed panels
``sharding``   ``propagate``, ``reshard``, ``spmd``: one program over the ranks of a mesh
``training``   ``partition``: what a training step keeps for its backward pass
``cpu_loops``  ``distribute``: tile kernels to loops, vectors and register tiles
``gpu_layout`` ``distribute_gpu``: kernels of blocks to the threads of a GPU, by layouts
"""
