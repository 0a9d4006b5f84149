# %% [markdown]
# # b4. Build the compiler: tracing
#
# **Goals**: after this lesson you can turn a Python function into a program by running it on
# tracers, and make broadcasting explicit.
#
# **Time**: 60 minutes. **Needs**: Python and NumPy.
#
# How does a Python function become a graph? By running it once on objects that only look like
# arrays. A **tracer** has a node instead of numbers. Each operation on tracers adds a node. JAX
# works in this way; PyTorch's compiler reads bytecode instead.

# %%
import numpy as np

import stack.mini as mini


def layer(x, w, b):
    for _ in range(2):
        x = mini.tanh(x @ w + b)
    return x


x, w, b = np.zeros((2, 3)), np.zeros((3, 3)), np.zeros(3)
print(mini.trace(layer, x, w, b))

# %% [markdown]
# The loop is gone: it ran while tracing, and its two iterations are in the program. A branch on a
# value cannot be resolved in this way, because the value is not known yet. So a tracer refuses to
# be a condition:

# %%
try:
    mini.trace(lambda x: x if x >= 0.0 else -x, np.zeros(3))
except mini.MiniError as error:
    print(error)

# %% [markdown]
# NumPy adds a row to a matrix by **broadcasting**. The program says so explicitly: an op
# `broadcast` repeats its operand along the axes that it lacks. Elementwise ops then have operands
# of one shape, and every later step is simpler. An axis of size 1 is dropped first, by a sum over
# its single element.

# %%
print(mini.trace(lambda x, y: x + y, np.zeros((2, 1)), np.zeros((3,))))

# %% [markdown]
# Every node keeps the line of the user's program that it comes from. Error messages and generated
# code name it. `user_line` finds it: the innermost frame of the stack outside of the compiler.
#
# ## Your part
#
# `python -m stack.demos.course start b4` appends section 5. Write `_spread_to`, `_reduce` and
# `trace`. All operators of the class `Tracer` are given.
