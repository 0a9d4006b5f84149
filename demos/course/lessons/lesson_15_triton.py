# pyright: reportArgumentType=false
# %% [markdown]
# # 15. A Triton kernel by hand
#
# **Goals**: after this lesson you can write Triton kernels with masks and reductions, and test them
# without a GPU.
#
# **Time**: 60 minutes. **Needs**: PyTorch and Triton.
#
# Triton is a language for GPU kernels inside of Python. A kernel is a function that runs many times
# at once: each **program** has a number and works on one block of the data. Within a program you
# write operations on whole blocks; Triton distributes their elements over threads.
#
# No GPU is needed here. With `TRITON_INTERPRET=1` the kernels run in NumPy, one program after the
# other. Set it before Triton is imported.

# %%
import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl


@triton.jit
def double_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    at = start + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside)
    tl.store(out_ptr + at, 2 * x, mask=inside)


x = torch.arange(10.0)
out = torch.zeros(10)
double_kernel[(3,)](x, out, 10, BLOCK=4)
print(out)

# %% [markdown]
# Read it line by line. `program_id(0)` is the number of this program, 0 to 2 here. `arange(0, 4)`
# is a block of four numbers, so `at` has the positions of this program's elements. Pointers plus
# positions are addresses. The last program has positions 8 to 11, but there are only 10 elements:
# the **mask** hides the others, in the load and in the store. Without it the kernel reads and
# writes memory of others. The interpreter and a GPU may both do so silently.
#
# `BLOCK` is a `constexpr`: the kernel is compiled for each value. The size of a block must be a
# power of two.
#
# A block is reduced by `tl.sum` and `tl.max`. What a masked load puts in place of hidden elements
# then matters: `other=0.0` is neutral for a sum, `other=-float("inf")` for a maximum.


# %%
@triton.jit
def row_max_kernel(x_ptr, out_ptr, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + at, mask=at < columns, other=-float("inf"))
    tl.store(out_ptr + row, tl.max(x, 0))


rows = -torch.rand(3, 5) - 1
found = torch.zeros(3)
row_max_kernel[(3,)](rows, found, rows.stride(0), 5, BLOCK=8)
print(found, rows.max(1).values)

# %% [markdown]
# `stride` is the distance of two rows in memory. It is more than the number of columns if the array
# is a part of a wider one.
#
# The compiler generates such kernels too: `stackc dump FILE.py:name --backend triton --target
# sm_90` prints them, with a source line behind each statement. Compare yours with them.
#
# ## Exercise
#
# The number of programs, a kernel with a mask, and a softmax of rows in one pass.
