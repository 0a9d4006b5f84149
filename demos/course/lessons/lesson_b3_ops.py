# %% [markdown]
# # b3. Build the compiler: the op table and the interpreter
#
# **Goals**: after this lesson you can add an op to a compiler by one record, order the nodes of a
# program, and interpret it.
#
# **Time**: 60 minutes. **Needs**: Python and NumPy.
#
# ## One record for each op
#
# All that the compiler knows about an op is in one record of the table `OPS`: how to infer its
# type, its axis rule, its meaning in NumPy, its C text, and its gradient. The meaning in NumPy is
# the reference: the compiled program is compared with it.

# %%
import numpy as np

import stack.mini as mini

print([name for name, op in mini.OPS.items() if op.gradient is not None])
mini.OPS["softplus"] = mini.elementwise(lambda x: np.log1p(np.exp(x)), "log1pf(expf({0}))")
x = mini.param(mini.Type("f32", (3,)), "x")
print(mini.make("softplus", x).type)

# %% [markdown]
# The table is long, and most of it is given. Two of its functions are yours: the axis rules of
# `transpose` and of `reduce`.

# %%
wide = mini.param(mini.Type("f32", (2, 3, 4)), "wide")
for node in (
    mini.make("transpose", wide, perm=(1, 2, 0)),
    mini.make("reduce", wide, axes=(1,), kind="sum"),
):
    print(node.op, node.attrs, node.type, "by", mini.rule_of(node))

# %% [markdown]
# ## A function is its results
#
# A `Func` has parameters and results. Its nodes are those that the results need, found by following
# operands backwards. What nobody needs is not there, so dead code needs no pass to remove it. The
# order of `nodes` matters: each node comes after its operands, so that one walk through the list
# can compute or rewrite them all.

# %%
e = mini.make("exp", x)
func = mini.Func("f", (x,), (mini.make("add", e, mini.make("tanh", e)),))
print(func)
print([node.op for node in func.nodes])

# %% [markdown]
# The **interpreter** goes through the nodes and calls NumPy. In double precision it is the truth
# that all later steps are compared with. `exp` is used twice and computed once.

# %%
print(func.interpret(np.array([0.0, 1.0, 2.0])))
del mini.OPS["softplus"]

# %% [markdown]
# ## Your part
#
# `python -m stack.demos.course start b3` appends sections 3 and 4. Write `_transpose_rule`,
# `_reduce_rule`, `Func.nodes` and `Func.interpret`. Printing is given: `print(func)` works as soon
# as `nodes` does.
