# %% [markdown]
# # b2. Build the compiler: axis rules
#
# **Goals**: after this lesson you can describe what an op does with its axes in one line, and
# derive shapes and reads from this line.
#
# **Time**: 60 minutes. **Needs**: Python and NumPy.
#
# A compiler asks many questions about an op. Which shape has its result? Which elements of its
# operands does an element of the result need? How much work is it? What is its gradient? One line
# answers all of them, the **axis rule**:
#
#     m k, k n -> m n
#
# It names the axes of each operand and of the result of a matmul. Equal names are one axis. An axis
# that the result lacks is summed over.

# %%
import stack.mini as mini

rule = mini.Rule.parse("m k, k n -> m n")
print(rule.operands, rule.result, "reduces", rule.reduced)
print(rule.sizes([(2, 3), (3, 4)]))

# %% [markdown]
# `sizes` also finds errors: `k` cannot be 3 in one operand and 4 in the other. The message names
# the axis and both sizes.

# %%
try:
    rule.sizes([(2, 3), (4, 5)])
except mini.MiniError as error:
    print(error)

# %% [markdown]
# `pull` answers the question that code generation asks: where does element `[i, j]` of the result
# read its operands? Indices are texts, because the answer becomes C code in step b8.

# %%
print(rule.pull({"m": "i", "n": "j", "k": "r"}))
print(mini.Rule.parse("a b -> b a").pull({"a": "j", "b": "i"}))

# %% [markdown]
# ## Your part
#
# `python -m stack.demos.course start b2` appends section 2 to `compiler.py`. Write `Rule.parse`,
# `Rule.reduced`, `Rule.sizes` and `Rule.pull`. Raise `MiniError` for shapes that do not fit.
