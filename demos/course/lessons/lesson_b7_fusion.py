# %% [markdown]
# # b7. Build the compiler: fusion
#
# **Goals**: after this lesson you can decide from axis rules which ops share a kernel.
#
# **Time**: 60 minutes. **Needs**: Python and NumPy.
#
# Each **kernel** reads its inputs from memory and writes its result to memory. Between two kernels,
# an array travels there and back. **Fusion** puts several ops into one kernel: a producer is
# computed inside of its user, element by element, and its array never exists.

# %%
import numpy as np

import stack.mini as mini


def program(x, w, b):
    return mini.tanh(mini.exp(x) @ w + b)


func = mini.trace(program, np.zeros((2, 3)), np.zeros((3, 4)), np.zeros(4))
decisions = []
fused = mini.fuse(func, decisions)
print(*decisions, sep="\n")
print(fused)

# %% [markdown]
# `exp(x)` is not computed inside of the matmul. Why? The matmul reads each element of its left
# operand once for each column, here 4 times. Inside of it, `exp` would be computed 4 times for each
# element. The axis rule tells this: operand `a k` lacks axis `n` of size 4. `reuse` is the product
# of the sizes of the axes that an operand lacks.

# %%
dot = next(node for node in func.nodes if node.op == "dot")
print(mini.rule_of(dot), [mini.reuse(dot, i) for i in (0, 1)])

# %% [markdown]
# `legal` gives the reason against fusing two nodes, or "" if there is none:
#
# - A transpose or a broadcast computes nothing: it is always computed inside of its user.
# - A result that others read as well must be written anyway.
# - No element may be computed more than once.
#
# The last rule is simple, and sometimes too strict. `exp` for two readers may be cheaper than a way
# through memory: that is lesson 3.
#
# ## Your part
#
# `python -m stack.demos.course start b7` appends section 8. Write `reuse` and `legal`. The function
# `fuse`, which forms groups by your answers, is given. Read it afterwards.
