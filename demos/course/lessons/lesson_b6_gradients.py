# %% [markdown]
# # b6. Build the compiler: gradients
#
# **Goals**: after this lesson you can derive the gradient of a program as a program, by reverse
# mode.
#
# **Time**: 60 minutes. **Needs**: Python and NumPy.
#
# The loss of a model depends on millions of parameters. **Reverse mode** computes its derivative by
# all of them in about the time of a few forward passes. It goes from the result backwards. Each
# node gets the gradient of the loss by its own value, and passes gradients on to its operands, by
# the rule of its op. For y = exp(x) the rule is g * y; for a product x * y it is g * y and g * x.

# %%
import numpy as np

import stack.mini as mini


def loss(x, w):
    return mini.sum(mini.tanh(x @ w))


rng = np.random.default_rng(0)
x, w = rng.standard_normal((2, 3)), rng.standard_normal((3, 2))
func = mini.trace(loss, x, w)
joint = mini.grad(func)
print(joint)

# %% [markdown]
# The result of `grad` is a program, so it can be rewritten, fused and compiled like any other. It
# has the forward part in it: `tanh` is computed once, because equal nodes are one object.
#
# Three details need care.
#
# - A value that is used twice gets two gradients. They are added.
# - A parameter that the loss does not depend on has a gradient of zeros.
# - Only a scalar has a gradient. For others, `grad` raises `MiniError`.
#
# Check a gradient by moving one input a little, in double precision:

# %%
value, by_x, by_w = joint.interpret(x, w)
step = np.zeros_like(w)
step[1, 0] = 1e-6
(up,), (down,) = func.interpret(x, w + step), func.interpret(x, w - step)
print((up - down) / 2e-6, by_w[1, 0])

# %% [markdown]
# ## Your part
#
# `python -m stack.demos.course start b6` appends section 7. Write `grad`. The rules of the ops are
# in your file already, in the table of step b3; read those of `dot` and `reduce`. While a rule
# runs, use `with from_line(node.source)`, so that gradients have lines.
