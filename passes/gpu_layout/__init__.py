"""Block kernels on the threads of a GPU: the tile level to the loop level, by layouts.

A block kernel computes on tiles; a GPU has W warps of 32 lanes, each with registers of its own. A
*layout* says which thread holds which element of a tile, in which of its registers. It is one
`Share` for each axis of the tile, and a share writes the place on its axis in mixed radix, lowest
digit first. A digit is either a number of a register, or some bits of the thread's number
(lane + 32 * warp). 64 elements over 8 lanes, vectors of 4, in two turns:

    place  =  4 * 8 * turn  +  4 * lane  +  i           Share(reg 4, thread 8 at bit 0, reg 2)

    lane       0      1      2   ...   7      0      1   ...   7
    place    0..3   4..7   8..11     28..31 32..35 36..39    60..63

At the loop level such a tile is a value with the axes warp, lane, and one of registers for each
axis of the tile: `f32<16x64>` becomes `f32<4x32x2x4>`. So every op keeps its meaning, and the
interpreter runs a kernel of threads as it runs any other:

    elementwise, broadcast, transpose    the same op on registers, where operands lie alike
    iota                                 the place, from lane, warp and register
    load, store                          an element at each place; neighbours in registers that are
                                         neighbours in memory move together (`runs`)
    reduce, scan                         within a thread, then by `shuffle` from lane to lane, then
                                         from warp to warp through shared memory
    dot                                  operands in shared memory, sums in registers:
                                         `warpgroup_mma` where the machine has it and all products
                                         of the kernel fit, else `mma_sync`, `fma` elsewhere

What warpgroups read is `swizzle`d: an attribute of the memory, of which printers make addresses and
the interpreter nothing.

Two layouts of one value meet through shared memory (`memory.Memory.converted`). To need that
rarely, all dims that must lie alike get one share (`classes`), chosen from the largest tile down
(`choice`): vectors along memory, then lanes, then warps, what is left over in turns. Sums of
matrix instructions come first, as the machine prescribes theirs. The sums of one product are the
left operand of the next without a move: that is flash attention.

Linear layouts, which this is the readable half of: K. Zhou et al., "Linear Layouts: Robust Code
Generation of Efficient Tensor Computation Using F2" (2025).
"""
