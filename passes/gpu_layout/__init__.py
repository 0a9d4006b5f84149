"""Kernels of thread blocks to threads of a GPU, by layouts: from the tile level to the loop level.

At the tile level, a kernel computes on tiles. A thread block has W warps of 32 lanes, each with its
own registers. A *layout* says which thread has which element of a tile, in which register. It is
one `Share` per axis of the tile. A share writes the index along its axis in mixed radix, lowest
digit first. A digit is either a register number or some bits of the thread number
(lane + 32 * warp). 64 elements over 8 lanes, two vectors of 4 each:

    index  =  4 * 8 * j  +  4 * lane  +  i         Share(4 registers, 8 lanes, 2 registers)

    lane       0      1      2   ...   7      0      1   ...   7
    index    0..3   4..7   8..11     28..31 32..35 36..39    60..63

At the loop level, such a tile is a value with the axes warp, lane, and one of registers for each
axis of the tile: `f32<16x64>` becomes `f32<4x32x2x4>`. So every op keeps its meaning, and the
interpreter runs a kernel of threads as it runs any other:

    elementwise, broadcast, transpose    the same op on registers, with operands in one layout
    iota                                 the index, from lane, warp and register
    load, store                          one element per index; a vector if elements that are
                                         contiguous in memory are in consecutive registers
    reduce, scan                         within a thread, then from lane to lane by `shuffle`, then
                                         from warp to warp through shared memory
    dot                                  operands in shared memory, sums in registers:
                                         `warpgroup_mma` if the GPU has it and all matmuls of the
                                         kernel fit, else `mma_sync`; `fma` for other types

First, layouts are chosen, and nothing is built. Arrows point to what an object uses:

    DimClasses     dims that should have the same share, so that ops need no conversions
    Contiguity     how many neighbours one access to memory can move
    Instructions   the instruction of each matmul, with the layout that it prescribes -> Matmul
    Layouts        a share for each class, from the largest tile down -> DimClasses, Contiguity

Then `Lowering` (`lower`) dispatches each node to one of these, which build its threads:

    ThreadBuilder  indices, broadcasts, elementwise ops in any layout
    SharedMemory   tiles that threads exchange, to convert layouts -> ThreadBuilder
    Values         what was built for each node, in which layouts, or as an operand of a matmul in
                   shared memory -> SharedMemory, DimClasses, Layouts
    GlobalMemory   loads, stores and asynchronous copies -> Values, SharedMemory, Contiguity
    Reductions     reductions, and `Scan` on top of them -> SharedMemory
    Fma            matmuls of threads -> Values, GlobalMemory
    Mma            matmuls of warps -> Values
    Warpgroup      matmuls of four warps -> Values
    Prefetch       operands that a loop loads ahead -> Instructions, Values, GlobalMemory

Instructions prescribe the layouts of sums. The sums of one matmul are the left operand of the next
without a move, as in flash attention. Shared memory that warpgroups read is swizzled: that is an
attribute of the memory, which printers turn into addresses; the interpreter ignores it.

This is the readable half of linear layouts: K. Zhou et al., "Linear Layouts: Robust Code
Generation of Efficient Tensor Computation Using F2" (2025).
"""
