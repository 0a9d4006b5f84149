# %% [markdown]
# # 2. Rewriting: an algebraic rule
#
# **Goals**: after this lesson you can write a rewrite rule, say which laws of algebra floats break,
# and let a pipeline check a pass on many inputs.
#
# **Time**: 45 minutes. **Needs**: Python and NumPy.
#
# Most of what a compiler does before it makes kernels is **rewriting**: here is a value, there is
# a cheaper one that is equal. "Equal" is the hard word. In this lesson you write such rules, and
# learn which school algebra does not hold for floating point numbers.

# %%
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import stack
from stack.rewrite import Log, Pass, Pipeline, Why, on, rewrite, splat

func = stack.parse("""
func @f(%x: f32[4, 8], %y: f32[4, 8]) -> (f32[4, 8]) at tensor {
  %a = neg(%x) : f32[4, 8]
  %b = neg(%a) : f32[4, 8]
  %c = sub(%b, %y) : f32[4, 8]
  %d = neg(%c) : f32[4, 8]
  %e = mul(%d, 1.0:f32) : f32[4, 8]
  return %e
}
""")
print(func)

# %% [markdown]
# A rule is a function that is asked at each node of some ops. It gives what takes the place of
# the node, or None where it has nothing to say. It never edits: nodes cannot be changed, and two
# nodes that say the same are the same object.


# %%
@on("neg")
def double_negation(node, op, scope):
    """-(-x) is x."""
    (x,) = node.args
    return x.args[0] if x.op == "neg" else None


log = Log()
after = rewrite(func, [double_negation], log)
print(after)
print(log.by_rule)

# %% [markdown]
# The engine asks every rule at every node until nothing changes any more. What nobody uses is
# gone: a function is its results and what they need.
#
# A rule can also say why it did **not** apply. `Why(...)` is a near miss, which `stackc explain`
# shows to whoever wonders. Here is a rule that is tempting and wrong for floats: the negative of
# a - b is b - a. Where a equals b, the left side is -0.0 and the right side 0.0; `copysign` shows
# it, and dividing by them gives two different infinities.

# %%
a = np.float32(2.0)
print(-(a - a), a - a, np.copysign(1, -(a - a)), np.copysign(1, a - a))


# %%
@on("neg")
def swap_difference(node, op, scope):
    """-(a - b) is b - a, of integers."""
    (x,) = node.args
    if x.op != "sub":
        return None
    if node.dtype.is_float:
        return Why("it makes 0.0 of -0.0 where both are equal")
    return op.sub(x.args[1], x.args[0])


log = Log(verbose=True)
rewrite(func, [double_negation, swap_difference], log)
for miss in log.misses:
    print(miss.rule, "did not apply to", miss.node.strip(), "\n  ", miss.reason)

# %% [markdown]
# `op` builds nodes (`op.add(a, b)`, `op.const(1.0, dtype)`) and infers their types. `splat(node)`
# is the number that a value is everywhere, if it is one. With both, a third rule:


# %%
@on("mul")
def times_one(node, op, scope):
    """x * 1 is x, bit by bit."""
    x, c = node.args
    return x if splat(c) == 1.0 and x.type == node.type else None


# %% [markdown]
# Rules become part of a compiler as a **pass**: a frozen dataclass with a name, whose fields are
# its options. The pipeline is the only place where passes run. It checks the types after each,
# times it, counts rewrites by rule and source line, and with `check=True` interprets the function
# before and after on inputs of all kinds.


# %%
@dataclass(frozen=True)
class Simplify(Pass):
    """Rules of this lesson."""

    name: ClassVar[str] = "simplify"

    def run(self, func, log):
        return rewrite(func, [double_negation, swap_difference, times_one], log)


result = Pipeline([Simplify()]).run(func, check=True)
print(result.func)
print(result.records[0], "- largest error:", result.records[0].error)

# %% [markdown]
# And a wrong rule is caught, with the name of its pass. x / x is 1, unless x is 0, infinite or
# nan; random normal numbers would not find that. The next one is wrong everywhere.


# %%
@on("sub")
def careless(node, op, scope):
    """a - b is b - a. It is not."""
    a, b = node.args
    return op.sub(b, a) if a.op != "param" else None


@dataclass(frozen=True)
class Careless(Pass):
    """A pass with a mistake."""

    name: ClassVar[str] = "careless"

    def run(self, func, log):
        return rewrite(func, [careless], log)


try:
    Pipeline([Careless()]).run(func, check=True)
except stack.errors.StackError as error:
    print(error)

# %% [markdown]
# The real rules are in `passes/canonicalize.py`, in the same form. `stackc passes canonicalize`
# and `stackc explain RUN LINE` show them at work.
#
# ## Exercise
#
# Three rules: one that is exact, one that must look at types, one that must refuse.
