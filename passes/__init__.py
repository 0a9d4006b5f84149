"""Passes: one file here per pass; what passes are made of is in the folders.

``rules``      exact rewrite rules, for canonicalize, layout and decompose
``positions``  where values sit, and what is known of their places
``streaming``  the derivation behind ``stream``: dependent reductions in one pass over their axis
``tiling``     ``tile``: groups to kernels at the tile level, as a CPU wants them
``blocking``   ``blocks``: groups to kernels of blocks, for Triton and for threads
``training``   ``partition``: what a training step keeps for its backward pass
``cpu_loops``  ``distribute``: tile kernels to loops, vectors and register tiles
``gpu_layout`` ``distribute_gpu``: kernels of blocks to the threads of a GPU, by layouts
``gpu_loops``  ``distribute_gpu``: staged matrix products, to warps and lanes
"""
