# %% [markdown]
# # b8. Build the compiler: C code
#
# **Goals**: after this lesson you can generate loops from axis rules, and compile a traced function
# to machine code.
#
# **Time**: 60 minutes. **Needs**: Python and NumPy, and to run the code a C compiler.
#
# A group of fused ops becomes one C function. The **emitter** works backwards from the result: it
# opens a loop for each axis of the result, and asks for the value of the element at the loop's
# indices. `value(node, index)` returns a C expression. For an elementwise op it asks for the values
# of the operands first, at the indices that the axis rule gives.

# %%
import numpy as np

import stack.mini as mini


def program(x, w):
    return mini.tanh(x @ w.T) * 2


rng = np.random.default_rng(0)
x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3), (4, 3)))
compiled = mini.compile(program, x, w)
print(compiled.kernels[0].text)

# %% [markdown]
# Read it from the inside. The element `[i0, i1]` is `tanhf(sum) * 2`. The sum is a reduction: a
# variable is declared before its loop, updated in it, and used after it. The offset of element
# `[i0, r]` in an array of three columns is `i0 * 3 + r`: arrays are **row-major**, the last index
# moves fastest.
#
# A value that is needed twice is stored in a variable: `known` remembers its name. But a variable
# that is declared inside of a loop does not exist after it, so `reduction` restores `known` when
# the loop is closed.

# %%
print(compiled.backend, abs(compiled(x, w) - np.tanh(x @ w.T) * 2).max())
kernel = compiled.kernels[0]
print(kernel.flops, "operations,", kernel.bytes, "bytes, from", kernel.source)

# %% [markdown]
# `compile` joins all steps: trace, rewrite, fuse, emit, call the C compiler, load the library. On a
# machine without a C compiler, the interpreter runs the program instead.
#
# ## Your part
#
# `python -m stack.demos.course start b8` appends sections 9 and 10. Write `offset`,
# `Emitter.inner` and `Emitter.reduction`. Then your compiler is complete:
#
#     import compiler
#     compiled = compiler.compile(program, x, w)
#
# Compare it with `stack/mini.py`, and read how the real compiler does the same: its docstring names
# the folder for each section.
