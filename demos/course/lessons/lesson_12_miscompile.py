# %% [markdown]
# # 12. Find the miscompile
#
# **Goals**: after this lesson you can find a miscompile by bisecting passes and rewrites, and
# choose inputs that reveal it.
#
# **Time**: 45 minutes. **Needs**: Python and NumPy.
#
# A compiler that is wrong is worse than none, and it rarely says so. Somewhere among many passes
# one rule is wrong for some values. In this lesson a pass has a mistake on purpose. We find the
# pass, the rule, the rewrite and the source line, first by hand and then in general.

# %%
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import stack.mini as mini
from stack.demos.course.numpy_program import traced
from stack.rewrite import Pass, Pipeline, on, rewrite
from stack.rewrite.check import CheckError, difference
from stack.rewrite.inputs import KINDS, random_inputs
from stack.rewrite.truth import Truth


@on("sub")
def negate_difference(node, op, scope):
    """a - b is -(b - a): right, if useless."""
    a, b = node.args
    return None if a.op == "neg" or b.op == "neg" else op.neg(op.sub(op.neg(b), op.neg(a)))


@on("exp")
def exp_of_difference(node, op, scope):
    """exp(a - b) is exp(a) / exp(b)."""
    (x,) = node.args
    return op.div(op.exp(x.args[0]), op.exp(x.args[1])) if x.op == "sub" else None


@on("mul")
def square(node, op, scope):
    """x * x is x + x. It is for 2."""
    a, b = node.args
    return op.add(a, b) if a is b else None


@dataclass(frozen=True)
class Clever(Pass):
    """Rules that somebody thought up."""

    name: ClassVar[str] = "clever"
    rules: tuple = (exp_of_difference, square)

    def run(self, func, log):
        return rewrite(func, list(self.rules), log)


def softmax(x):
    weights = mini.exp(x - mini.max(x, axis=-1, keepdims=True))
    return weights / mini.sum(weights, axis=-1, keepdims=True)


def program(x):
    centred = x - mini.sum(x, axis=-1, keepdims=True) / 16
    spread = mini.sum(centred * centred, axis=-1, keepdims=True) / 16
    return softmax(centred / mini.sqrt(spread + 1e-6))


func = traced(program, np.zeros((4, 16)))
passes = ["canonicalize", Clever(), "layout", "fuse"]

# %% [markdown]
# `check=True` interprets after each pass and compares: the pass has a name at once.

# %%
try:
    Pipeline(passes).run(func, check=True)
except CheckError as error:
    print(error)

# %% [markdown]
# Which rewrite of it? **Fuel** stops the pipeline after n rewrites. What is right with n - 1 and
# wrong with n was done by rewrite n. This is bisection, and works for any pass that asks
# `log.spend`.


# %%
def wrong(fuel):
    """True if the first `fuel` rewrites already change the result."""
    after = Pipeline(passes).run(func, fuel=fuel, verify=False).func
    arrays = random_inputs(func)
    want, have = func.interpret(*arrays), after.interpret(*arrays)
    return difference(want, have, func.results[0].dtype) > 1e-4


low, high = 0, 64
while high - low > 1:
    middle = (low + high) // 2
    low, high = (low, middle) if wrong(middle) else (middle, high)
print("the first wrong rewrite is number", high)
done = [r for record in Pipeline(passes).run(func, fuel=high).records for r in record.rewrites]
print(done[-1])

# %% [markdown]
# Rule and source line, by about six runs. Is the program right without `square`?
# `exp_of_difference` is still there. Random normal numbers do not find it:

# %%
fixed = Pipeline([Clever((exp_of_difference,))])
alone = Pipeline(["canonicalize"]).run(traced(softmax, np.zeros((2, 4)))).func
truth, changed = Truth(alone), fixed.run(alone).func
print("normal numbers:", truth.problem(changed, ["plain"]) or "no difference")
large = np.array([[200.0, 1.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0]], np.float32)
with np.errstate(all="ignore"):
    print(alone.interpret(large)[0], "became", changed.interpret(large)[0])

# %% [markdown]
# exp(200) is infinite, and infinity over infinity is nan: the maximum was subtracted for a
# reason. A check is as good as its inputs. Those of `check=True` are of many kinds:

# %%
for kind in truth.kinds:
    found = truth.problem(changed, [kind])
    print(f"{kind:10} {KINDS[kind]}: {found or 'no difference'}")

# %% [markdown]
# `stackc opt FILE --pass-pipeline=... --check` and `--fuel N` do this for a file of IR.
#
# ## Exercise
#
# A detective of your own: it names the guilty pass and rewrite of any pipeline, and finds an
# input for which two functions differ.
