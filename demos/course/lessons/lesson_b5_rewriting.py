# %% [markdown]
# # b5. Build the compiler: rewriting
#
# **Goals**: after this lesson you can write rewrite rules that are exact for floats, and an engine
# that applies them until nothing changes.
#
# **Time**: 60 minutes. **Needs**: Python and NumPy.
#
# A **rule** is a function: it takes a node, and returns a cheaper node that is equal, or None.
# `x * 1` is `x`. Is `x + 0` also `x`? No: -0.0 + 0.0 is 0.0. But `x + -0.0` is `x`.

# %%
import numpy as np

import stack.mini as mini

print(np.float32(-0.0) + np.float32(0.0), np.float32(-0.0) + np.float32(-0.0))
x = mini.param(mini.Type("f32", (3,)), "x")
for op, number in (("mul", 1.0), ("add", 0.0), ("add", -0.0)):
    found = mini.no_op(mini.make(op, x, mini.const(number)))
    print(op, number, "->", "stays" if found is None else found["name"])

# %% [markdown]
# The **engine** visits the program from its parameters to its results. Operands come first, so a
# rule sees a node whose operands are rewritten already. What a rule returns is visited again,
# because another rule may match it. The engine stops when no rule matches.


# %%
def program(x, w):
    negative = -x
    return -negative * 1.0 @ w.T


func = mini.trace(program, np.zeros((2, 3)), np.zeros((4, 3)))
log = []
print(func)
print(mini.rewrite(func, mini.RULES, log))
print(*log, sep="\n")

# %% [markdown]
# The last rewrite is the most useful one. A matmul with a transposed operand needs no transpose in
# memory: its axis rule reads the operand in the other order. For `x @ w.T` the rule becomes
# `a k, n k -> a n`. To find it, permute the names of the operand's axes.
#
# Nodes that a rewrite makes keep the source line of the node that they replace: `rewrite` calls the
# rules inside `from_line(...)`.
#
# ## Your part
#
# `python -m stack.demos.course start b5` appends section 6. Write `no_op`, `transposes`,
# `transposed_operand` and `rewrite`.
